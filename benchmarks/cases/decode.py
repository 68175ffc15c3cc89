"""Spark decodes offset commits on one core, compared with only reading their keys and values."""

from __future__ import annotations

import functools
import os
import random
import time
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND
from benchmarks.rig.measuring import KORVET, Row, Sample
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.spark.session.session import build_session
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.decode import offset_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.rig.rig import Rig

COMMITS = 5_000_000
PARTITIONS = 4
PLACES = 16_000
# Out of a hundred: commits in the newest version, with a topic id, and tombstones. The others are plain.
NEWEST, TOMBSTONES = 30, 2
UNDECODED = "key and value"
# A time after all records.
LAST_MS = 4_000_000_000_000
WAYS = {
    "all columns": offset_commits,
    "the columns of current offsets": lambda records: offset_commits(
        records, ("group", "topic", "partition", "committed_offset")
    ),
    "the table current_offsets": lambda records: Tables(records, None, LAST_MS).view("current_offsets"),
}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the rows per second of each way to decode, and of reading, in the same rounds."""
    topic = rig.korvet.with_topics({"offset.assignment": "dense"}).new_topic(PARTITIONS)
    count = rig.scaled(COMMITS)
    fill(rig.korvet.bootstrap, topic, count)
    spark = build_session("decoding", "local[1]")
    try:
        options = {"redis": rig.store.url, "keyspace": rig.korvet.keyspace, "topic": topic}
        records = spark.read.format("korvet").options(**options).load()
        undecoded = records.select("key", "value")
        for way, decode in WAYS.items():
            for frame in (undecoded, decode(records)):
                read(frame, count)  # compiles and warms up
            sides: dict[str, Callable[[], Sample]] = {
                KORVET: functools.partial(read, decode(records), count),
                UNDECODED: functools.partial(read, undecoded, count),
            }
            yield from rig.rows(f"decode commits, {way}", sides, {RATE: RECORDS_PER_SECOND})
    finally:
        spark.stop()
        rig.korvet.drop_topic(topic)


def read(frame: DataFrame, count: int) -> Sample:
    """Compute every row of a frame of `count` records, without writing it."""
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Sample({RATE: count / (time.perf_counter() - began)})


def fill(bootstrap: str, topic: str, count: int) -> None:
    """Produce synthetic commits, cycling through PLACES partitions."""
    source = random.Random(0)
    keys = [
        encode_key(OffsetCommitKey(f"group-{place % 200}", f"topic-{place // 200}", place % 16))
        for place in range(PLACES)
    ]
    client = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
    )
    for number in range(count):
        value = commit(source, number)
        while True:
            try:
                client.produce(topic, value, keys[number % PLACES], partition=number % PARTITIONS)
                break
            except BufferError:
                client.poll(0.1)
    assert client.flush(120) == 0


@functools.cache
def topic_ids() -> list[bytes]:
    """Returns the IDs of a few topics."""
    return [os.urandom(16) for _ in range(80)]


def commit(source: random.Random, number: int) -> bytes | None:
    """Returns the value of one commit; None for a tombstone."""
    kind, at_ms = source.randrange(100), 1_700_000_000_000 + number
    if kind < TOMBSTONES:
        return None
    offset = at_ms << 10
    if kind < TOMBSTONES + NEWEST:
        return encode_value(
            OffsetCommitValue(offset, -1, "", at_ms, topic_id=source.choice(topic_ids()), version=4)
        )
    return encode_value(OffsetCommitValue(offset, -1, "", at_ms))
