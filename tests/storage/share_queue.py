"""A share group on one stream, and the tests' calls of korvet_share_*."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.offsets.packing import entry_id, pack
from korvet.redis_groups.share import (
    FROM_START,
    Acknowledged,
    Acquired,
    Demand,
    Found,
    Limits,
    Range,
    ShareQueue,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.storage.conftest import Bench

GROUP = "workers"
LOCK_MS = 30_000
GAP, ACCEPT, RELEASE, REJECT, RENEW = b"0", b"1", b"2", b"3", b"4"


def seen(acquired: Acquired) -> Found:
    """What the function has found besides records."""
    assert acquired.found is not None
    return acquired.found


class Queue:
    """A share group on one stream, which the tests write themselves. Offsets are the sequences of ms 1."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        self.bench = bench
        self.client = bench.client
        self.topic = bench.topic("t", **options)
        self.bias = self.topic.bias
        keyspace = bench.store.commands.keyspace
        self.stream = keyspace.stream("t", 0)
        self.aborted = keyspace.aborted("t", 0)
        self.queue = ShareQueue(bench.store.commands, self.topic, 0, GROUP)
        self.limits = Limits(LOCK_MS, 5, 2000)

    def add(self, *offsets: int, value: bytes = b"v", **fields: bytes | int) -> None:
        for offset in offsets:
            self.client.xadd(self.stream, {"value": value, **fields}, id=entry_id(offset, self.bias))

    def initialise(self, after: str = FROM_START) -> bool:
        return self.bench.run(self.queue.initialise(after))

    def acquire(self, member: str = "a", records: int = 500, **demand: Any) -> Acquired:
        asked = Demand(records, demand.pop("size_bytes", 1 << 20), **demand)
        return self.bench.run(self.queue.acquire(member, self.limits, asked, 0))

    def runs(self, member: str = "a", records: int = 500, **demand: Any) -> list[tuple[int, ...]]:
        return [tuple(run) for run in self.acquire(member, records, **demand).runs]

    def acknowledge(self, member: str, *ranges: tuple[int, int, bytes]) -> Acknowledged | None:
        return self.bench.run(self.queue.acknowledge(member, self.limits, [Range(*one) for one in ranges]))

    def release(self, member: str, end: int | None = None) -> tuple[int, int]:
        return self.bench.run(self.queue.release(member, self.limits, end))

    def owners(self) -> dict[int, tuple[str, int]]:
        """The owner and the deliveries of each pending entry, by offset."""
        rows = self.client.xpending_range(self.stream, GROUP, "-", "+", 10_000)
        return {
            pack(*map(int, row["message_id"].split(b"-"))) - self.bias: (
                row["consumer"].decode(),
                row["times_delivered"],
            )
            for row in rows
        }

    def age(self, offsets: Iterable[int], idle_ms: int = LOCK_MS) -> None:
        """Let pending entries look as if they had been delivered long ago."""
        for offset, (owner, _) in self.owners().items():
            if offset in set(offsets):
                ids = [entry_id(offset, self.bias)]
                self.client.xclaim(self.stream, GROUP, owner, 0, ids, idle=idle_ms, justid=True)

    def read_natively(self, count: int, consumer: str = "native") -> list[bytes]:
        reply = self.client.xreadgroup(GROUP, consumer, {self.stream: ">"}, count=count)
        return [entry for entry, _ in reply[0][1]] if reply else []
