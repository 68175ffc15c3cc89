"""A run: fills a queue, starts workers, kills one after the other, and checks what they have noted."""

from __future__ import annotations

import itertools
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.packing import pack
from robustness.checkers.deliveries import Deliveries, check_deliveries, deliveries
from robustness.dice import Dice
from robustness.queue.journal import Notes
from robustness.queue.worker import AT_ONCE, WORK_S
from tests.faults.share_load import GROUP, share
from tests.support.admin import create_topic
from tests.support.confluent import producer
from tests.support.java import JavaTools
from tests.support.polling import until
from tests.support.processes import Child, bound_to_us
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from robustness.checkers.violation import Violation

TOPIC: Final = "queue"
# Workers on a busy machine keep records for seconds, and members of all workers together hold thousands.
LOCK_MS: Final = 10_000
_SETTINGS: Final = (
    "group.share.min.record.lock.duration.ms=1000",
    f"group.share.record.lock.duration.ms={LOCK_MS}",
    "group.share.partition.max.record.locks=4000",
    # Each kill costs its records a delivery.
    "group.share.delivery.count.limit=10",
)
_PAGE: Final = 10_000
_DONE_S: Final = 600
_STOP_S: Final = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does."""

    records: int = 1_000_000
    kafka: int = 20
    """Share consumers of librdkafka."""
    java: int = 0
    """Share consumers of Java."""
    redis: int = 20
    """Redis clients."""
    kill_s: float = 1.0
    """The time between two kills."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Found:
    """What a run has shown."""

    deliveries: Deliveries
    violations: list[Violation]
    kills: int


class Workers:
    """Processes of both kinds, each with a journal."""

    def __init__(self, server: KorvetServer, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._serials = itertools.count()
        self._running: list[tuple[str, Path, Child]] = []
        self.notes: list[Notes] = []

    def start(self, kind: str) -> None:
        """Start a worker: kafka, java or redis."""
        path = self._folder / f"{next(self._serials)}-{kind}"
        address = f"unix://{self._server.socket_path()}" if kind == "redis" else self._server.bootstrap
        program = [sys.executable, "-m", "robustness.queue.worker", kind, address, TOPIC, GROUP, str(LOCK_MS)]
        if kind == "java":
            arguments = [address, TOPIC, GROUP, str(AT_ONCE), str(round(WORK_S * 1000))]
            program = JavaTools.resolve().command("QueueWorker", arguments)
        child = Child([*bound_to_us(), *program, str(path)], path.with_suffix(".log"))
        self._running.append((kind, path, child))

    def replace(self, dice: Dice) -> None:
        """Kill a worker (kill -9), and start one of the same kind."""
        kind, path, child = self._running.pop(dice.below(len(self._running)))
        assert child.running, child.output()
        child.kill()
        self._read(path, was_killed=True)
        self.start(kind)

    def stop(self) -> None:
        """Let all workers end."""
        for _, path, child in self._running:
            assert child.running, child.output()
            child.terminate(_STOP_S)
            self._read(path, was_killed=False)
        self._running = []

    def discard(self) -> None:
        """Kill all that run."""
        for _, _, child in self._running:
            child.kill()

    def _read(self, path: Path, *, was_killed: bool) -> None:
        with path.open() if path.exists() else path.open("x+") as lines:
            self.notes.append(Notes(lines, was_killed=was_killed))


def run(plan: Plan, folder: Path) -> Found:
    """Make the run. Raises DeadlineMissed if the queue does not get empty."""
    with KorvetServer(*(f"--set={setting}" for setting in _SETTINGS)) as server:
        share(server)
        create_topic(server.bootstrap, TOPIC, 1)
        _fill(server, plan.records)
        workers, dice, kills = Workers(server, folder), Dice(plan.seed, "kills"), itertools.count()
        try:
            for kind in ["kafka"] * plan.kafka + ["java"] * plan.java:
                workers.start(kind)
            until(lambda: _group(server), _STOP_S, "the first share consumer has made the group")
            for _ in range(plan.redis):
                workers.start("redis")
            due_s = time.monotonic() + plan.kill_s

            def is_empty() -> bool:
                nonlocal due_s
                if time.monotonic() >= due_s:
                    workers.replace(dice)
                    next(kills)
                    due_s = time.monotonic() + plan.kill_s
                group = _group(server)
                return group is not None and group["pending"] == group["lag"] == 0

            until(is_empty, _DONE_S, "all records are accepted")
            workers.stop()
        finally:
            workers.discard()
        stored = set(_stored(server))
        assert len(stored) == plan.records
        violations = list(check_deliveries(stored, workers.notes))
        return Found(deliveries(stored, workers.notes), violations, next(kills))


def _fill(server: KorvetServer, records: int) -> None:
    client = producer(server.bootstrap, linger_ms=20, queue_buffering_max_messages=records + 1)
    for number in range(records):
        client.produce(TOPIC, b"%0100d" % number)
        if number % _PAGE == 0:
            client.poll(0)
    assert client.flush(_DONE_S) == 0


def _group(server: KorvetServer) -> dict[str, Any] | None:
    """What XINFO GROUPS tells of the group, if it exists."""
    client: Any = server.redis
    groups = client.xinfo_groups(f"korvet:{TOPIC}:0")
    return next((group for group in groups if group["name"] == GROUP.encode()), None)


def _stored(server: KorvetServer) -> Iterator[int]:
    """The offsets of all records."""
    client: Any = server.redis
    first = "-"
    while page := client.xrange(f"korvet:{TOPIC}:0", first, "+", _PAGE):
        for entry_id, _ in page:
            yield pack(*map(int, entry_id.split(b"-")))
        first = b"(" + page[-1][0]
