"""Share groups: what members and Redis workers did with the records of partitions, and the table of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from korvet.offsets.packing import entry_id

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from tests.spark.reckoning.commits import Commits
    from tests.spark.reckoning.logs import Log
    from tests.spark.reckoning.records import Row

GROUP = "g-shared"
RELEASED, REJECTED, EXHAUSTED = "korvet:released", "korvet:rejected", "korvet:exhausted"
NOBODY = (RELEASED, REJECTED, EXHAUSTED, "korvet:unreadable")
WORKERS = ("kafka:one", "kafka:two", "me")
IDLE_MS = 7
"""In place of the time since a worker last asked."""
LIMIT_MS = 300_000


@dataclass
class Delivered:
    """The pending entries of a partition, by offset: who has it, and how often it was delivered."""

    log: Log
    end: int = 0
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def run(self, chance: random.Random) -> None:
        """Let workers take entries, and accept, release, reject or keep them."""
        client, stream = self.log.keyspace.client, self.log.stream
        client.xgroup_create(stream, GROUP, "0")
        for entry in self.log.entries[: len(self.log.entries) * 2 // 3]:
            worker, offset = chance.choice(WORKERS), entry.offset
            ((_, ((taken, _),)),) = client.xreadgroup(GROUP, worker, {stream: ">"}, count=1)
            assert taken.decode() == self._id(offset)
            self.end = offset + 1
            self.seen.add(worker)
            taker = chance.choice((None, None, worker, *NOBODY))
            if taker is None:
                client.xack(stream, GROUP, taken)
                continue
            times = chance.randrange(1, 5)
            client.xclaim(stream, GROUP, taker, 0, [taken], retrycount=times)
            self.pending[offset] = (taker, times)

    def _id(self, offset: int) -> str:
        return entry_id(offset, bias=int(self.log.dense))


def queues(
    places: Mapping[tuple[str, int], Delivered | None], commits: Commits, logs: Mapping[tuple[str, int], Log]
) -> list[Row]:
    return [
        _queue(topic, partition, found, commits, logs[topic, partition])
        for (topic, partition), found in places.items()
    ]


def _queue(topic: str, partition: int, found: Delivered | None, commits: Commits, log: Log) -> Row:
    place = {"group": GROUP, "topic": topic, "partition": partition, "as_of_ts": commits.as_of_ms}
    if found is None:
        unknown = ("start_offset", "end_offset", "depth", "in_flight", "waiting_again", "deliveries", "dead")
        nothing = dict.fromkeys((*unknown, "oldest_ts", "lag_ms", "workers"))
        return {**place, **nothing, "status": "UNKNOWN", "exact": True}
    held = {offset: one for offset, one in found.pending.items() if one[0] not in NOBODY}
    again = {offset: one for offset, one in found.pending.items() if one[0] == RELEASED}
    left = {**held, **again}
    where = (GROUP, topic, partition)
    depth = len(left) + len(commits.unread(where, found.end).records)
    oldest = commits.unread(where, min(left, default=found.end))
    lag_ms = oldest.wait_ms if depth else 0
    return {
        **place,
        "status": "BEHIND" if lag_ms > LIMIT_MS else "OK",
        "start_offset": min(found.pending, default=found.end),
        "end_offset": log.end,
        "depth": depth,
        "exact": True,
        "in_flight": len(held),
        "waiting_again": len(again),
        "deliveries": max((times for _, times in left.values()), default=0),
        "dead": sum(one[0] in (REJECTED, EXHAUSTED) for one in found.pending.values()),
        "oldest_ts": oldest.first.timestamp_ms if depth and oldest.first else None,
        "lag_ms": lag_ms,
        "workers": [
            {
                "name": name.removeprefix("kafka:"),
                "is_member": name.startswith("kafka:"),
                "in_flight": sum(one[0] == name for one in held.values()),
                "idle_ms": IDLE_MS,
            }
            for name in sorted(found.seen, key=lambda name: name.removeprefix("kafka:"))
        ],
    }
