"""Spark makes tables of `__consumer_offsets`: from Redis, and by the official connector from a real Kafka.

Both sides have the same records, and the tables are computed alike: the connector returns keys and values,
which korvet decodes. Spark's processes share one core, the servers have the others. Without Kafka or the
connector's jars (`korvet jars`) there is nothing to compare.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.rig.goals import Goal
from benchmarks.rig.kafka import Kafka
from benchmarks.rig.measuring import KORVET, Sample
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.packing import entry_id
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.spark.export.tables import batch_table
from korvet.spark.session.session import build_session
from korvet.spark.source.address import Address
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables.readers import KafkaReader, RedisReader
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.rig.measuring import Row
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster
    from korvet.spark.tables.readers import TopicReader

COMMITS = 1_000_000
KEYSPACE = "bench-tables"
# 100 groups, each with all partitions of 4 of the topics: 1,600 committed offsets.
GROUPS, TOPICS, READ, PARTITIONS = 100, 10, 4, 4
# Records of each partition, and the number that a commit leaves unread at most.
RECORDS, UNREAD = 2_000, 1_000
OFFSETS_PARTITIONS = 50
PIPELINE = 10_000
WARM_UP_STEPS = 3
TABLES = ("current_offsets", "record_lag")
# The columns that both sides must agree on; the others are positions in `__consumer_offsets`.
COMPARED = ("group", "topic", "partition", "committed_offset")
RATE, RATE_UNIT, CONNECTOR = "rate", "commits/s", "kafka"


def title(table: str) -> str:
    """Returns the benchmark's name for a table."""
    return f"Spark makes {table} of {COMMITS:,} commits"


GOALS = tuple(Goal(title(table), RATE, CONNECTOR, 2.0) for table in TABLES)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the commits per second of each table; nothing without Kafka or the connector."""
    jars = rig.connector_jars()
    if not jars or rig.kafka is None:
        return
    # Its `__consumer_offsets` has only the records of this benchmark.
    with contextlib.closing(Kafka(WARM_UP_STEPS)) as kafka:
        count = rig.scaled(COMMITS)
        topics = [kafka.cluster.new_topic(PARTITIONS) for _ in range(TOPICS)]
        written = commits(topics, count)
        fill_kafka(kafka.cluster, topics, written)
        fill_redis(rig.store.client, topics, written)
        readers: dict[str, TopicReader] = {
            KORVET: RedisReader(Address(rig.store.url, KEYSPACE)),
            CONNECTOR: KafkaReader(kafka.cluster.bootstrap),
        }
        with session_on_one_core(jars) as spark:
            for table in TABLES:
                yield from measure_table(rig, spark, readers, table, count)
        remove(rig.store.client)


def measure_table(
    rig: Rig, spark: SparkSession, readers: dict[str, TopicReader], table: str, count: int
) -> Iterator[Row]:
    """Compare the rows of both sides, which also warms up; then measure rounds."""
    found = {side: rows_of(spark, reader, table) for side, reader in readers.items()}
    assert found[KORVET] == found[CONNECTOR]
    assert len(found[KORVET]) == min(count, GROUPS * READ * PARTITIONS)
    sides: dict[str, Callable[[], Sample]] = {
        side: functools.partial(computed, spark, reader, table, count) for side, reader in readers.items()
    }
    yield from rig.rows(title(table), sides, {RATE: RATE_UNIT})


@contextmanager
def session_on_one_core(jars: Sequence[Path]) -> Iterator[SparkSession]:
    """A session whose JVM and Python workers share one core, until the end of the block."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        spark = build_session("tables", "local[1]", jars=jars, conf={"spark.driver.memory": "1g"})
    finally:
        os.sched_setaffinity(0, cores)
    try:
        yield spark
    finally:
        spark.stop()


def rows_of(spark: SparkSession, reader: TopicReader, table: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a table without what differs between the sides, in order."""
    frame = batch_table(spark, reader, table, now_ms())
    lag = [name for name in ("record_lag",) if name in frame.columns]
    return sorted(map(tuple, frame.select(*COMPARED, *lag).collect()))


def computed(spark: SparkSession, reader: TopicReader, table: str, count: int) -> Sample:
    """Plan and compute a table of `count` commits, without writing it."""
    # Some tables leave frames in the session's cache.
    spark.catalog.clearCache()
    began = time.perf_counter()
    batch_table(spark, reader, table, now_ms()).write.format("noop").mode("overwrite").save()
    return Sample({RATE: count / (time.perf_counter() - began)})


def now_ms() -> int:
    """Returns the time now."""
    return time.time_ns() // 1_000_000


def commits(topics: Sequence[str], count: int) -> list[tuple[int, bytes, bytes, int]]:
    """Returns the commits of groups in turn: partition of `__consumer_offsets`, key, value and time in ms."""
    chance = random.Random(0)
    places = [
        (f"group-{group}", topics[(group + number) % TOPICS], partition)
        for number in range(READ)
        for partition in range(PARTITIONS)
        for group in range(GROUPS)
    ]
    keys = [(partition_for(place[0]), encode_key(OffsetCommitKey(*place))) for place in places]
    began_ms = now_ms() - 3_600_000
    found = []
    for number in range(count):
        partition, key = keys[number % len(keys)]
        at_ms = began_ms + number * 1_000 // count
        committed = RECORDS - chance.randrange(UNREAD)
        found.append((partition, key, encode_value(OffsetCommitValue(committed, 0, "", at_ms)), at_ms))
    return found


def fill_kafka(
    cluster: Cluster, topics: Sequence[str], written: Sequence[tuple[int, bytes, bytes, int]]
) -> None:
    """Produce the topics' records and the commits."""
    create_offsets_topic(cluster, topics[0])
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            # Kafka lets only its own tools write to internal topics.
            "client.id": "__admin_client",
            "linger.ms": 50,
            "queue.buffering.max.messages": 500_000,
        }
    )

    def produce(topic: str, partition: int, key: bytes | None, value: bytes, at_ms: int) -> None:
        while True:
            try:
                producer.produce(topic, value, key, partition=partition, timestamp=at_ms)
                return
            except BufferError:
                producer.poll(0.1)

    for topic in topics:
        for number in range(RECORDS * PARTITIONS):
            produce(topic, number % PARTITIONS, None, b"value", written[0][-1])
    for partition, key, value, at_ms in written:
        produce(OFFSETS_TOPIC, partition, key, value, at_ms)
    assert producer.flush(120) == 0


def create_offsets_topic(cluster: Cluster, topic: str) -> None:
    """Let Kafka create `__consumer_offsets`: a question for an offset does that, and writes nothing."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "nobody", "log_level": 4})

    def is_answered() -> bool:
        try:
            consumer.committed([TopicPartition(topic, 0)], timeout=10)
        except KafkaException:
            # The coordinator of a new partition is not ready at once.
            return False
        return True

    until(is_answered, 60, "Kafka has created the topic")
    consumer.close()


def fill_redis(client: Any, topics: Sequence[str], written: Sequence[tuple[int, bytes, bytes, int]]) -> None:
    """Add the same records as korvet stores them. client: of Redis."""
    pipeline = client.pipeline(transaction=False)
    ends: dict[tuple[str, int], int] = {}

    def add(topic: str, partition: int, at_ms: int, *fields: bytes) -> None:
        offset = ends.get((topic, partition), 0)
        ends[topic, partition] = offset + 1
        entry = entry_id(offset, bias=1)
        late_ms = str(at_ms - int(entry.partition("-")[0]))
        stream = f"{KEYSPACE}:{topic}:{partition}"
        pipeline.execute_command("XADD", stream, entry, *fields, b"ts", late_ms)
        if len(pipeline) >= PIPELINE:
            pipeline.execute()

    for topic, partitions in ((OFFSETS_TOPIC, OFFSETS_PARTITIONS), *((name, PARTITIONS) for name in topics)):
        configs = {"offset.assignment": "dense"}
        document = {"partitions": partitions, "configs": configs, "internal": topic == OFFSETS_TOPIC}
        client.hset(f"{{{KEYSPACE}}}:topics", topic, json.dumps(document))
    for topic in topics:
        for number in range(RECORDS * PARTITIONS):
            add(topic, number % PARTITIONS, written[0][-1], b"value", b"value")
    for partition, key, value, at_ms in written:
        add(OFFSETS_TOPIC, partition, at_ms, b"key", key, b"value", value)
    pipeline.execute()


def remove(client: Any) -> None:
    """Delete everything that fill_redis added."""
    client.delete(*client.scan_iter(f"{KEYSPACE}:*", count=1000), f"{{{KEYSPACE}}}:topics")
