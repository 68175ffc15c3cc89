"""Streams that are killed at random while records are added."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

from tests.support.polling import until
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.spark.keyspace import Keyspace

SEED = int(os.environ.get("KORVET_TEST_SEED", "20261121"))
MS = 1_700_000_000_000
START_DEADLINE_S = 180
END_DEADLINE_S = 240
PAUSE_S = 0.02
KILLS, ATTEMPTS = 20, 5
# For a few records the JVM's second compiler takes longer than the work.
QUICK_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
ENVIRON = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_JAVA}


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


def killed_runs(command: list[str], folder: Path, writer: Writer, longest_run_s: float) -> Iterator[None]:
    """Start the command again and again, and kill it while the writer adds records. Yields after each kill.

    The checkpoint of the command is in the folder.
    """
    chance = random.Random(SEED)
    for number in range(KILLS):
        writer.until(time.monotonic() + PAUSE_S)
        child = _at_work(command, folder)
        try:
            writer.until(time.monotonic() + chance.uniform(0, longest_run_s))
        finally:
            # Half of the time only the driver is killed, and the JVM must end by itself.
            if number % 2:
                os.kill(child.pid, signal.SIGKILL)
            else:
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()
        yield


def run_to_the_end(command: list[str], folder: Path) -> None:
    """Run the command, which ends when it has processed what there is."""
    last = Child(command, folder / "log", ENVIRON)
    until(lambda: not last.running, END_DEADLINE_S, "the stream ends")
    assert last.exit_code == 0, last.output()[-3000:]


def _at_work(command: list[str], folder: Path) -> Child:
    """A running stream that has planned a batch since its start."""
    checkpoint = folder / "checkpoint"
    for _ in range(ATTEMPTS):
        before = planned(checkpoint)
        child = Child(command, folder / "log", ENVIRON)
        until(
            lambda child=child, before=before: not child.running or planned(checkpoint) > before,
            START_DEADLINE_S,
            "the stream begins",
        )
        if child.running:
            return child
        # Spark waits ten seconds for a worker to start. On a busy machine that is not always enough.
        assert "Timed out while waiting for the Python worker" in child.output(), child.output()[-3000:]
    raise AssertionError("the stream does not begin")


def planned(checkpoint: Path) -> int:
    """The newest batch that is planned; -1 without one."""
    return max((int(path.name) for path in checkpoint.glob("offsets/[0-9]*")), default=-1)
