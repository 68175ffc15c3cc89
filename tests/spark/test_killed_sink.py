"""Streams into the sink that are killed at random while records are added: each record is there once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.spark.sinking import load_functions
from tests.spark.test_killed_exports import (
    END_DEADLINE_S,
    KILLS,
    PAUSE_S,
    QUICK_JAVA,
    SEED,
    Writer,
    at_work,
    planned,
)
from tests.support.polling import until
from tests.support.processes import Child

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
    chance, writer = random.Random(SEED), Writer(keyspace, "in")
    command = [sys.executable, "-m", "tests.spark.sink_job", keyspace.url, str(tmp_path / "checkpoint")]
    environ = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    partial = 0
    for number in range(KILLS):
        writer.until(time.monotonic() + PAUSE_S)
        child = at_work(command, tmp_path, environ)
        try:
            writer.until(time.monotonic() + chance.uniform(0, LONGEST_RUN_S))
        finally:
            # Half of the time only the driver is killed, and the JVM must end by itself.
            if number % 2:
                os.kill(child.pid, signal.SIGKILL)
            else:
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
        newest = planned(tmp_path / "checkpoint")
        finished = (tmp_path / "checkpoint" / "commits" / str(newest)).exists()
        partial += not finished and newest in progress(keyspace)
    last = Child([*command, "available-now"], tmp_path / "log", environ)
    until(lambda: not last.running, END_DEADLINE_S, "the job ends")
    assert last.exit_code == 0, last.output()[-3000:]
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
