"""The views on a scripted scenario with answers computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from korvet.offsets.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartitions,
    encode_assignment,
    encode_subscription,
)
from korvet.offsets.packing import pack
from korvet.offsets.schema import GroupMetadataValue, MemberMetadata
from korvet.spark.source.address import Address
from korvet.spark.tables import views
from korvet.spark.tables.decode import group_metadata, offset_commits
from korvet.spark.tables.readers import RedisReader

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.short]

MS = 1_700_000_000_000
NOW = MS + 3_600_000
DAY = 86_400_000


def member(name: str, *partitions: int) -> MemberMetadata:
    subscription = encode_subscription(Subscription(("orders",)))
    assignment = encode_assignment(Assignment((TopicPartitions("orders", partitions),)))
    return MemberMetadata(name, None, f"client-{name}", "/10.0.0.1", 60_000, 45_000, subscription, assignment)


def stable(generation: int, at_ms: int, members: Iterable[MemberMetadata]) -> GroupMetadataValue:
    everyone = tuple(members)
    leader = everyone[0].member_id if everyone else None
    return GroupMetadataValue("consumer", generation, "range" if everyone else None, leader, at_ms, everyone)


def scenario(keyspace: Keyspace) -> None:
    """Topic orders: partition 0 has a record per minute from MS to MS+59 min (sequence 5), but the 10th and
    the 20th were deleted; partition 1 has four records in one millisecond at MS+50 min; partition 2 is empty.
    """
    keyspace.offsets_topic()
    keyspace.topic("orders", 3)
    for minute in range(60):
        keyspace.record("orders", 0, pack(MS + minute * 60_000, 5), b"r")
    keyspace.client.xdel("korvet:orders:0", f"{MS + 10 * 60_000}-5", f"{MS + 20 * 60_000}-5")
    for sequence in range(4):
        keyspace.record("orders", 1, pack(MS + 50 * 60_000, sequence), b"r", MS + 50 * 60_000 - 1000)
    # billing: has read partition 0 up to minute 8, so minute 9 is the first unread record.
    keyspace.commit("billing", "orders", 0, pack(MS + 2 * 60_000, 6), at_ms=MS + 121_000)
    keyspace.commit("billing", "orders", 0, pack(MS + 8 * 60_000, 6), at_ms=NOW - 30_000, metadata="m")
    keyspace.commit("billing", "orders", 1, pack(MS + 50 * 60_000, 2), at_ms=NOW - 30_000)
    keyspace.commit("billing", "orders", 2, 0, at_ms=NOW - 30_000)
    # audit: has read everything; then one offset was removed.
    keyspace.commit("audit", "orders", 0, pack(MS + 59 * 60_000, 6), at_ms=NOW - 10_000)
    keyspace.commit("audit", "orders", 1, pack(MS, 0), at_ms=NOW - 20_000)
    keyspace.commit("audit", "orders", 1, None, at_ms=NOW - 5_000)
    # lost: committed a deleted record's offset long ago; beyond: committed past the end.
    keyspace.commit("lost", "orders", 0, pack(MS + 20 * 60_000, 5), at_ms=NOW - 2 * DAY)
    keyspace.commit("beyond", "orders", 0, pack(NOW, 0), at_ms=NOW)
    keyspace.group("billing", stable(1, MS, [member("a", 0, 1, 2)]), at_ms=MS)
    keyspace.group("billing", stable(2, MS + 1, [member("a", 0, 1), member("b", 2)]), at_ms=MS + 1)
    keyspace.group("billing", stable(3, MS + 2, [member("b", 0, 1, 2)]), at_ms=MS + 2)
    keyspace.group("audit", stable(1, MS, [member("c", 0)]), at_ms=MS)
    keyspace.group("audit", stable(2, MS, []), at_ms=MS + 5)
    keyspace.group("gone", stable(1, MS, [member("d", 0)]), at_ms=MS)
    keyspace.group("gone", None, at_ms=MS + 7)


def tables(spark: SparkSession, keyspace: Keyspace) -> tuple[DataFrame, DataFrame, DataFrame]:
    """Returns commits, group states, and the records from the smallest commits on."""
    reader = RedisReader(Address(keyspace.url))
    source = reader.offsets_topic(spark)
    assert source is not None
    commits = offset_commits(source)
    starts: dict[str, dict[int, int]] = {}
    smallest = views.current_offsets(commits).groupBy("topic", "partition").agg(sf.min("committed_offset"))
    for topic, partition, offset in smallest.collect():
        starts.setdefault(topic, {})[partition] = offset
    return commits, group_metadata(source), reader.records(spark, starts)


@pytest.fixture
def filled(keyspace: Keyspace) -> Keyspace:
    scenario(keyspace)
    return keyspace


def by_place(frame: DataFrame, *columns: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return {(r["group"], r["topic"], r["partition"]): tuple(r[c] for c in columns) for r in frame.collect()}


def test_lag_in_records_and_time(spark: SparkSession, filled: Keyspace) -> None:
    commits, _, records = tables(spark, filled)
    lag = views.record_lag(views.current_offsets(commits), records, NOW)
    expected = {
        # Minutes 9 to 59 without 10 and 20: 51 - 2.
        ("billing", "orders", 0): (49, NOW - (MS + 9 * 60_000)),
        # Sequences 2 and 3, made a second before they were appended.
        ("billing", "orders", 1): (2, 10 * 60_000 + 1000),
        ("billing", "orders", 2): (0, 0),
        ("audit", "orders", 0): (0, 0),
        # The record at the committed offset is deleted: minutes 21 to 59.
        ("lost", "orders", 0): (39, 39 * 60_000),
        ("beyond", "orders", 0): (0, 0),
    }
    assert by_place(lag, "record_lag", "lag_ms") == expected
    # The same numbers from Redis itself.
    for (_, topic, partition), row in by_place(lag, "committed_offset", "record_lag").items():
        offset, count = row
        start = f"{offset >> 10}-{offset & 1023}"
        assert len(filled.client.xrange(f"korvet:{topic}:{partition}", start)) == count


def test_records_without_a_timestamp_wait(spark: SparkSession) -> None:
    """The source returns null for a time after the year 9999, for example one in microseconds."""
    first = {"clock": pack(MS, 0), "dense": 7}
    records = spark.createDataFrame(
        [(topic, 0, offset, None) for topic, offset in first.items()],
        "topic string, partition int, offset bigint, timestamp timestamp",
    )
    commits = spark.createDataFrame(
        [("g", topic, 0, offset, MS) for topic, offset in first.items()],
        "group string, topic string, partition int, committed_offset bigint, commit_ms bigint",
    )
    lag = views.record_lag(commits, records, NOW)
    assert by_place(lag, "record_lag", "lag_ms") == {
        ("g", "clock", 0): (1, NOW - MS),
        ("g", "dense", 0): (1, None),
    }


def test_records_appended_later_are_left_out(spark: SparkSession) -> None:
    offsets = [pack(MS - 1, 0), pack(MS, 0), pack(MS, 1023), pack(MS + 1, 0), 7]
    records = spark.createDataFrame([(offset,) for offset in offsets], "offset long")
    kept = {row["offset"] for row in views.appended_until(records, MS).collect()}
    assert kept == {pack(MS - 1, 0), pack(MS, 0), pack(MS, 1023), 7}


def test_commits_and_their_rate(spark: SparkSession, filled: Keyspace) -> None:
    commits, _, _ = tables(spark, filled)
    first, second = commits.where("group = 'billing' and partition = 0").orderBy("src_offset").collect()
    assert second["committed_offset"] - first["committed_offset"] == 6 * 60_000 * 1024
    assert second["commit_ms"] - first["commit_ms"] == NOW - 30_000 - MS - 121_000
    assert second["metadata"] == "m"
    rate = {(r["group"], sf_ms(r["minute"])): r["commits"] for r in views.commit_rate(commits).collect()}
    minute = 60_000
    assert rate["billing", (NOW - 30_000) // minute * minute] == 3
    assert rate["billing", (MS + 121_000) // minute * minute] == 1
    assert sum(rate.values()) == 8


def sf_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
