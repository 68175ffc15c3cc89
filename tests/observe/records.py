"""Topics of every kind of storage, and a group that has read a part of each."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, TopicPartition

from korvet.offsets.packing import entry_id
from tests.support.admin import create_topic
from tests.support.confluent import as_read, consumer, producer, send
from tests.support.records import Record

if TYPE_CHECKING:
    from tests.observe.cluster import ObservedCluster

PARTITIONS = 2
READ_S = 60
# Configs by kind. Sparse offsets and single entries are the defaults.
KINDS: dict[str, dict[str, str]] = {
    "sparse": {},
    "dense": {"offset.assignment": "dense"},
    "batched": {"storage.layout": "batch"},
    "batched-dense": {"storage.layout": "batch", "offset.assignment": "dense"},
    "native": {},
    "mixed": {},
}
PRODUCED = 200
ADDED = 60
# Every tenth record of a topic of single records is deleted, as retention and native applications do.
DELETED_STEP = 10


def stream(topic: str, partition: int) -> str:
    return f"korvet:{topic}:{partition}"


def fill(cluster: ObservedCluster, topic: str, kind: str) -> None:
    """Append records to every partition; delete some, if each is an entry."""
    # With a linger time, records of batches arrive together.
    client = producer(cluster.bootstrap, linger_ms=50)
    now_ms = time.time_ns() // 1_000_000
    for partition in range(PARTITIONS):
        offsets: list[int] = []
        if kind != "native":
            records = [Record(b"k", b"%d" % number, (), now_ms + number) for number in range(PRODUCED)]
            offsets = send(client, topic, partition, records)
        if kind in ("native", "mixed"):
            for number in range(ADDED):
                cluster.store.client.xadd(stream(topic, partition), {"number": number})
        if "storage.layout" not in KINDS[kind] and offsets:
            deleted = [entry_id(offset) for offset in offsets[::DELETED_STEP]]
            cluster.store.client.xdel(stream(topic, partition), *deleted)


def prepared(cluster: ObservedCluster, kind: str, name: str) -> str:
    """Create a topic of a kind and fill it. Returns its name."""
    topic = f"{name}-{kind}"
    create_topic(cluster.bootstrap, topic, PARTITIONS, KINDS[kind])
    fill(cluster, topic, kind)
    return topic


def read(
    cluster: ObservedCluster, group: str, topics: list[str], each: int | None = None
) -> Counter[tuple[str, int]]:
    """Let a member of the group read `each` records of every partition, or all that are left, and commit.
    Returns the number of records that the member has read, by topic and partition.
    """
    client = consumer(
        cluster.bootstrap,
        group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        enable_partition_eof=True,
    )
    client.subscribe(topics)
    seen: Counter[tuple[str, int]] = Counter()
    next_offsets: dict[tuple[str, int], int] = {}
    done: set[tuple[str, int]] = set()
    deadline = time.monotonic() + READ_S
    try:
        while len(done) < len(topics) * PARTITIONS:
            assert time.monotonic() < deadline, (done, seen)
            for message in client.consume(100, 0.2):
                place = (str(message.topic()), int(message.partition() or 0))
                if (error := message.error()) is not None and error.code() == KafkaError._PARTITION_EOF:
                    done.add(place)
                elif place not in done:
                    next_offsets[place] = as_read(message).offset + 1
                    seen[place] += 1
                    if seen[place] == each:
                        done.add(place)
        if next_offsets:
            positions = [TopicPartition(*place, offset) for place, offset in next_offsets.items()]
            client.commit(offsets=positions, asynchronous=False)
    finally:
        client.close()
    return seen
