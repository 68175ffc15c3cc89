"""Continuous exports that are killed at random while records are added: each record is exported once."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pytest

from tests.support.polling import until
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3000)]

SEED = int(os.environ.get("KORVET_TEST_SEED", "20261121"))
MS = 1_700_000_000_000
START_DEADLINE_S = 180
END_DEADLINE_S = 240
LONGEST_RUN_S = 5.0
PAUSE_S = 0.02
KILLS, ATTEMPTS = 20, 5
# For a few records the JVM's second compiler takes longer than the work.
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class Writer:
    """Adds records to a topic over time, with their numbers as offset and value."""

    def __init__(self, keyspace: Keyspace, topic: str = "t") -> None:
        self._keyspace = keyspace
        self._topic = topic
        self.count = 0

    def until(self, moment: float) -> None:
        while time.monotonic() < moment:
            pipe = self._keyspace.client.pipeline(transaction=False)
            for _ in range(20):
                fields: Any = {"key": b"k", "value": b"%d" % self.count}
                pipe.xadd(f"korvet:{self._topic}:{self.count % 3}", fields, id=f"{MS + self.count}-0")
                self.count += 1
            pipe.execute()
            time.sleep(PAUSE_S)


def test_every_record_is_there_once(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", 3)
    chance, writer = random.Random(SEED), Writer(keyspace)
    command = [sys.executable, "-m", "korvet", "export", "t", "--redis", keyspace.url, "--master", "local[2]"]
    command += ["--to", str(tmp_path / "out"), "--checkpoint", str(tmp_path / "checkpoint")]
    environ = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}
    continuous = [*command, "--continuous", "--every", "200 milliseconds"]
    for number in range(KILLS):
        writer.until(time.monotonic() + PAUSE_S)
        child = at_work(continuous, tmp_path, environ)
        try:
            writer.until(time.monotonic() + chance.uniform(0, LONGEST_RUN_S))
        finally:
            # Half of the time only the driver is killed, and the JVM must end by itself.
            if number % 2:
                os.kill(child.pid, signal.SIGKILL)
            else:
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
    last = Child([*command, "--available-now"], tmp_path / "log", environ)
    until(lambda: not last.running, END_DEADLINE_S, "the export ends")
    assert last.exit_code == 0, last.output()[-3000:]
    expected = list(range(writer.count))
    rows = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    assert sorted(int(row["value"]) for row in rows) == expected
    # Readers that ignore Spark's log find the same rows.
    found = ds.dataset(sorted((tmp_path / "out").glob("part-*.parquet"))).to_table(["value"])
    assert sorted(int(value.as_py()) for value in found["value"]) == expected


def at_work(command: list[str], folder: Path, environ: Mapping[str, str]) -> Child:
    """A running export that has planned a batch since its start."""
    checkpoint = folder / "checkpoint"
    for _ in range(ATTEMPTS):
        before = planned(checkpoint)
        child = Child(command, folder / "log", environ)
        until(
            lambda child=child, before=before: not child.running or planned(checkpoint) > before,
            START_DEADLINE_S,
            "the export begins",
        )
        if child.running:
            return child
        # Spark waits ten seconds for a worker to start. On a busy machine that is not always enough.
        assert "Timed out while waiting for the Python worker" in child.output(), child.output()[-3000:]
    raise AssertionError("the export does not begin")


def planned(checkpoint: Path) -> int:
    return max((int(path.name) for path in checkpoint.glob("offsets/[0-9]*")), default=-1)
