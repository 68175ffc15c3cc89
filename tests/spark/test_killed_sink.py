"""Streams into the sink that are killed at random while records are added: each record is there once."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.spark.killing import Writer, killed_runs, planned, run_to_the_end
from tests.spark.sinking import load_functions

if TYPE_CHECKING:
    from pathlib import Path

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3000)]

PARTITIONS = 3
LONGEST_RUN_S = 4.0


def test_every_record_is_there_once(keyspace: Keyspace, tmp_path: Path) -> None:
    """Drivers with and without their JVM are killed, and the first attempt of each large task fails."""
    load_functions(keyspace.client)
    keyspace.topic("in", PARTITIONS)
    keyspace.topic("t", PARTITIONS)
    writer = Writer(keyspace, "in")
    command = [sys.executable, "-m", "tests.spark.sink_job", keyspace.url, str(tmp_path / "checkpoint")]
    partial = 0
    for _ in killed_runs(command, tmp_path, writer, LONGEST_RUN_S):
        newest = planned(tmp_path / "checkpoint")
        finished = (tmp_path / "checkpoint" / "commits" / str(newest)).exists()
        partial += not finished and newest in progress(keyspace)
    run_to_the_end([*command, "available-now"], tmp_path)
    found = [stream(keyspace, "t", partition) for partition in range(PARTITIONS)]
    assert sorted(int(value) for values in found for value in values) == list(range(writer.count))
    # In the order of the source.
    assert found == [stream(keyspace, "in", partition) for partition in range(PARTITIONS)]
    assert partial, "no kill came after a part of a batch was written"


def stream(keyspace: Keyspace, topic: str, partition: int) -> list[bytes]:
    return [fields[b"value"] for _, fields in keyspace.client.xrange(f"korvet:{topic}:{partition}")]


def progress(keyspace: Keyspace) -> set[int]:
    """The newest batch of each task on each partition of which records were written."""
    keys = keyspace.client.keys("{korvet:t:*}:written:*")
    return {int(noted.partition(b" ")[0]) for key in keys for noted in keyspace.client.hvals(key)}
