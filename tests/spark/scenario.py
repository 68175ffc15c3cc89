"""Groups in every state, created on a real korvet by a Kafka client and native writers, with answers computed
by hand: the committed offsets, and the unread records.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, send, take
from tests.support.polling import until
from tests.support.records import Record

if TYPE_CHECKING:
    from tests.support.servers import KorvetServer

Place = tuple[str, str, int]
HOUR_MS = 3_600_000
BEYOND = 5_000_000
METADATA = "half way \u2713"


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected report on one group's partition."""

    committed: int
    unread: int
    first_unread_ms: int | None


@dataclass(slots=True)
class Scenario:
    """The server, the group member that still runs, and the expected numbers."""

    server: KorvetServer
    base_ms: int
    member: Consumer
    lag: dict[Place, Expected] = field(default_factory=dict)
    # For every group, its number of commits and of tombstones.
    commits: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def as_of_ms(self) -> int:
        """The time of the report."""
        return self.base_ms + 2 * HOUR_MS

    @property
    def groups(self) -> set[str]:
        """Returns the groups that have offsets at the end."""
        return {group for group, _, _ in self.lag}

    def lag_ms(self, place: Place) -> int:
        first = self.lag[place].first_unread_ms
        return 0 if first is None else self.as_of_ms - first


class _Script:
    """Plays the scenario. Record i of a partition has the create time base + i seconds."""

    def __init__(self, server: KorvetServer) -> None:
        self._server = server
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap})
        self._producer = producer(server.bootstrap)
        self.base_ms = time.time_ns() // 1_000_000 - HOUR_MS
        self.commits: dict[str, tuple[int, int]] = {}
        self.lag: dict[Place, Expected] = {}

    def produce(self, topic: str, partition: int, first: int, count: int) -> list[int]:
        """Returns the offsets of the records from number `first` on."""
        records = [
            Record(b"k%d" % n, b"r%d" % n, (("n", b"%d" % n),), self.time_ms(n))
            for n in range(first, first + count)
        ]
        return send(self._producer, topic, partition, records)

    def time_ms(self, number: int) -> int:
        return self.base_ms + 1000 * number

    def pause(self) -> None:
        """Wait until the store's clock has advanced: the next offsets are thousands higher."""

        def now_ms() -> int:
            seconds, micros = self._server.redis.time()
            return int(seconds) * 1000 + int(micros) // 1000

        start = now_ms()
        until(lambda: now_ms() > start + 20, 10, "the store's clock moves")

    def add_native(self, topic: str, partition: int) -> int:
        """XADD with an automatic ID, as any Redis client does it. Returns the entry's offset."""
        entry = self._server.redis.xadd(f"korvet:{topic}:{partition}", {"sku": "42", "city": "Köln"})
        ms, sequence = bytes(entry).split(b"-")
        return (int(ms) << 10) + int(sequence)

    def delete_entry(self, topic: str, partition: int, position: int) -> None:
        entry = f"{position >> 10}-{position & 1023}"
        assert self._server.redis.xdel(f"korvet:{topic}:{partition}", entry) == 1

    def commit(self, group: str, *offsets: tuple[str, int, int], metadata: str = "") -> None:
        client = consumer(self._server.bootstrap, group)
        wanted = [TopicPartition(topic, part, offset, metadata=metadata) for topic, part, offset in offsets]
        client.commit(offsets=wanted, asynchronous=False)
        client.close()
        self._count(group, len(wanted), 0)

    def _count(self, group: str, commits: int, tombstones: int) -> None:
        before = self.commits.get(group, (0, 0))
        self.commits[group] = (before[0] + commits, before[1] + tombstones)

    def acknowledge(self, group: str, topic: str, partition: int, offsets: list[int], committed: int) -> None:
        """A native consumer of the Redis group reads and acknowledges these records in one step. Waits until
        that is committed.
        """
        stream, asked = f"korvet:{topic}:{partition}", ConsumerGroupTopicPartitions(group)
        with self._server.redis.pipeline(transaction=True) as pipeline:
            pipeline.xreadgroup(group, "native", {stream: ">"}, count=len(offsets))
            pipeline.xack(stream, group, *(f"{offset >> 10}-{offset & 1023}" for offset in offsets))
            assert pipeline.execute()[1] == len(offsets)

        def is_committed() -> bool:
            answer = self._admin.list_consumer_group_offsets([asked])[group].result(20)
            return [place.offset for place in answer.topic_partitions] == [committed]

        until(is_committed, 30, f"{group} has committed {committed}")
        self._count(group, 1, 0)

    def expect(self, group: str, topic: str, partition: int, answer: Expected) -> None:
        self.lag[group, topic, partition] = answer

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(20)
        self._count(group, 0, 1)

    def delete_topic(self, topic: str, group: str) -> None:
        """Delete a topic, and wait until the group's commit on it is removed too."""
        self._admin.delete_topics([topic])[topic].result(20)
        asked = ConsumerGroupTopicPartitions(group)

        def forgotten() -> bool:
            answer = self._admin.list_consumer_group_offsets([asked])[group].result(20)
            return not answer.topic_partitions

        until(forgotten, 20, "the commit on the deleted topic is gone")
        self._count(group, 0, 1)

    def join(self, group: str, topic: str, count: int, commits: list[tuple[str, int, int]]) -> Consumer:
        """A member that reads everything, commits, and stays in the group."""
        client = consumer(
            self._server.bootstrap,
            group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            client_id="packer",
            # Nobody polls it: it would leave, which is a record.
            max_poll_interval_ms=24 * HOUR_MS,
        )
        client.subscribe([topic])
        take(client, count)
        offsets = [TopicPartition(*place) for place in commits]
        client.commit(offsets=offsets, asynchronous=False)
        self._count(group, len(offsets), 0)
        return client


def play(server: KorvetServer) -> Scenario:
    """Topic orders: partition 0 has r0-r9, two native entries, r10-r14, but r3 was deleted: 16 records.
    Partition 1 has r0-r3, but r3, its last record, was deleted. Partition 2 is empty. Topic ledger
    (dense) has six records, but the one at offset 4 was deleted.
    """
    script = _Script(server)
    create_topic(server.bootstrap, "orders", 3)
    create_topic(server.bootstrap, "ledger", 1, {"offset.assignment": "dense"})
    create_topic(server.bootstrap, "old", 1)
    o = script.produce("orders", 0, 0, 10)
    script.pause()
    n = [script.add_native("orders", 0), script.add_native("orders", 0)]
    script.pause()
    o += script.produce("orders", 0, 10, 5)
    p = script.produce("orders", 1, 0, 4)
    assert script.produce("ledger", 0, 0, 6) == list(range(6))
    script.delete_entry("orders", 0, o[3])
    script.delete_entry("orders", 1, p[3])
    script.delete_entry("ledger", 0, 4 + 1)  # dense topics keep offset o under the ID of o + 1
    member = _commit_everything(script, o, n, p)
    return Scenario(server, script.base_ms, member, script.lag, script.commits)


def _commit_everything(script: _Script, o: list[int], n: list[int], p: list[int]) -> Consumer:
    at, native_ms = script.time_ms, n[1] >> 10
    ends = [("orders", 0, o[14] + 1), ("orders", 1, p[2] + 1), ("orders", 2, 0)]
    member = script.join("caught-up", "orders", 16 + 3, ends)
    for topic, partition, offset in ends:
        script.expect("caught-up", topic, partition, Expected(offset, 0, None))

    script.commit("lagging", ("orders", 0, o[7]), ("orders", 1, p[1]), metadata=METADATA)
    script.expect("lagging", "orders", 0, Expected(o[7], 3 + 2 + 5, at(7)))
    script.expect("lagging", "orders", 1, Expected(p[1], 2, at(1)))

    script.commit("rewound", ("orders", 0, o[12]))
    script.commit("rewound", ("orders", 0, o[2]))
    script.expect("rewound", "orders", 0, Expected(o[2], 1 + 6 + 2 + 5, at(2)))

    script.commit("beyond", ("orders", 0, o[14] + BEYOND), ("orders", 2, BEYOND))
    script.expect("beyond", "orders", 0, Expected(o[14] + BEYOND, 0, None))
    script.expect("beyond", "orders", 2, Expected(BEYOND, 0, None))

    # Committed on a deleted record, and on a deleted last record: below the log end, yet nothing is unread.
    script.commit("on-deleted", ("orders", 0, o[3]), ("orders", 1, p[3]))
    script.expect("on-deleted", "orders", 0, Expected(o[3], 6 + 2 + 5, at(4)))
    script.expect("on-deleted", "orders", 1, Expected(p[3], 0, None))

    script.commit("in-the-gap", ("orders", 0, n[1] + 1))
    script.expect("in-the-gap", "orders", 0, Expected(n[1] + 1, 5, at(10)))

    script.commit("on-native", ("orders", 0, n[1]))
    script.expect("on-native", "orders", 0, Expected(n[1], 1 + 5, native_ms))

    script.commit("at-zero", ("orders", 0, 0), ("ledger", 0, 2))
    script.expect("at-zero", "orders", 0, Expected(0, 16, at(0)))
    script.expect("at-zero", "ledger", 0, Expected(2, 3, at(2)))

    # Kafka members and native members commit in turn; the last commit is native.
    script.commit("in-turn", ("orders", 0, o[1] + 1))
    script.acknowledge("in-turn", "orders", 0, [o[2], o[4]], o[4] + 1)
    script.commit("in-turn", ("orders", 0, o[6] + 1))
    script.acknowledge("in-turn", "orders", 0, [o[7], o[8]], o[8] + 1)
    script.expect("in-turn", "orders", 0, Expected(o[8] + 1, 1 + 2 + 5, at(9)))

    script.commit("deleted", ("orders", 0, o[5]))
    script.delete_group("deleted")
    script.commit("archivist", ("old", 0, 7))
    script.delete_topic("old", "archivist")
    return member
