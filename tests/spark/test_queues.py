"""Queues of share groups: by records of their state, and by pending entries, in tables, alerts and page."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.offsets.codec import encode_key
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import GroupRecordKey
from korvet.offsets.share_state import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    SNAPSHOT,
    UPDATE,
    ShareSnapshot,
    ShareStateKey,
    ShareUpdate,
    StateBatch,
    encode_share_key,
    encode_share_value,
)
from korvet.spark.export.all_tables import update_tables
from korvet.spark.export.tables import batch_table
from korvet.spark.report.report import ALERTS_NAME, PAGE_NAME, write_report
from korvet.spark.report.thresholds import Thresholds
from korvet.spark.session.kafka_state import Rights
from korvet.spark.source.address import Address
from korvet.spark.tables.kafka_offsets import NOT_READ, missing
from korvet.spark.tables.kafka_queues import State, fold, kafka_queues, queue_of
from korvet.spark.tables.queues import SHARE_STATE_TOPIC, Place, Queue
from korvet.spark.tables.readers import KafkaReader, RedisReader
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.sharing import RECORDS, begin, work
from tests.support.polling import until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from korvet.spark.tables.readers import TopicReader
    from tests.spark.conftest import Connector
    from tests.spark.keyspace import Keyspace
    from tests.support.servers import KorvetServer

TOPIC_ID = UUID(int=7).bytes
PLACE = Place("workers", "jobs", 0)
STATES = (AVAILABLE, ACKNOWLEDGED, ARCHIVED)
LAST = 24
BATCH = st.tuples(st.integers(0, LAST), st.integers(0, 8), st.sampled_from(STATES), st.integers(0, 4)).map(
    lambda each: StateBatch(each[0], each[0] + each[1], *each[2:])
)
CHANGES = st.lists(st.tuples(st.integers(-1, LAST), st.lists(BATCH, max_size=3)), max_size=8)


def key(version: int) -> bytes:
    return encode_share_key(ShareStateKey("workers", TOPIC_ID, 0, version))


def snapshot(start: int, *batches: StateBatch) -> tuple[bytes, bytes]:
    return key(SNAPSHOT), encode_share_value(ShareSnapshot(0, 0, 0, start, 0, 0, batches))


def update(start: int, *batches: StateBatch) -> tuple[bytes, bytes]:
    return key(UPDATE), encode_share_value(ShareUpdate(0, 0, start, batches))


def folded(*records: tuple[bytes | None, bytes | None]) -> State | None:
    states: dict[tuple[str, bytes, int], State] = {}
    fold(states, records)
    return states.get(("workers", TOPIC_ID, 0))


def counted(queue: Queue, offsets: set[int]) -> tuple[int, int]:
    """Records that are left and that wait again, if the log has records at these offsets."""
    sums = [0, 0]
    for mark in queue.marks:
        unread = sum(offset >= mark.offset for offset in offsets)
        sums[0] += mark.left * unread
        sums[1] += mark.again * unread
    return sums[0], sums[1]


@given(CHANGES, st.sets(st.integers(0, LAST + 12)))
def test_each_record_is_left_unless_it_is_accepted_or_archived(
    changes: list[tuple[int, list[StateBatch]]], offsets: set[int]
) -> None:
    """Also if offsets have gaps, and retention has deleted records after the start."""
    now, start, updates = dict[int, tuple[int, int]](), 0, []
    for moved, batches in changes:
        # -1 says that it is the same.
        updates.append(update(moved if moved > start else -1, *batches))
        start = max(start, moved)
        for batch in batches:
            state = batch.delivery_state, batch.delivery_count
            now |= dict.fromkeys(range(batch.first_offset, batch.last_offset + 1), state)
    found = folded(snapshot(0), *updates)
    assert found is not None
    queue = queue_of(PLACE, found.start_offset, found.batches)
    left = {offset for offset in offsets if offset >= start and now.get(offset, (0, 0))[0] == AVAILABLE}
    again = {offset: now[offset][1] for offset in left if now.get(offset, (0, 0))[1]}
    assert counted(queue, offsets) == (len(left), len(again))
    assert queue.start_offset == start
    assert queue.first_offset is not None
    assert queue.first_offset <= min(left, default=queue.first_offset)
    assert all(offset < start or now.get(offset, (0, 0))[0] for offset in range(start, queue.first_offset))
    assert max(again.values(), default=0) <= (queue.deliveries or 0) <= 4


def test_a_state_is_unknown_until_it_can_be_read() -> None:
    done = StateBatch(0, 4, ACKNOWLEDGED, 1)
    assert folded() is None
    assert folded(snapshot(3), (key(SNAPSHOT), None)) is None
    # Retention deleted the snapshot before the update; a damaged record; a version of the future.
    assert folded(update(3)) == State()
    assert folded(snapshot(3), (key(UPDATE), b"\0\0")) == State()
    assert folded(snapshot(3), (key(UPDATE), b"\0\x09"), update(9)) == State()
    assert folded((key(UPDATE), b"\0\0"), snapshot(0, done)) == State(0, [done])
    assert folded((None, None), (b"\0", None), (b"\0\x09x", None), snapshot(5, done)) == State(5, [])


def test_a_queue_without_a_state() -> None:
    assert queue_of(PLACE, None, []) == queue_of(PLACE, -1, []) == Queue(*PLACE)
    (unread, empty) = kafka_queues([PLACE, Place("workers", "jobs", 1)], [], {}, {("jobs", 1): 8})
    assert unread == Queue(*PLACE)
    assert counted(empty, {1, 2}) == (0, 0)
    assert empty.start_offset == empty.first_offset == 8


@pytest.mark.parametrize(
    ("rights", "absent", "said"),
    [
        (Rights(unreadable=frozenset([SHARE_STATE_TOPIC])), [], "can't be read with this login"),
        (Rights(hidden=frozenset([SHARE_STATE_TOPIC])), [SHARE_STATE_TOPIC], "can't be read with this login"),
        (Rights(), [SHARE_STATE_TOPIC], "there is no __share_group_state"),
    ],
)
def test_what_is_missing_is_named(rights: Rights, absent: list[str], said: str) -> None:
    (finding,) = missing(rights, absent)
    assert (finding.kind, finding.topic) == (NOT_READ, SHARE_STATE_TOPIC)
    assert said in finding.message
    assert "depth of queues" in finding.message


# From Redis

MS = 1_700_000_000_000
MINUTE = 60_000
NOW = MS + 10 * MINUTE


def scenario(keyspace: Keyspace) -> None:
    """A record a minute in partition 0, six of which were delivered; nobody has read partition 1."""
    keyspace.offsets_topic()
    keyspace.topic("jobs", 2, topic_id=str(UUID(bytes=TOPIC_ID)))
    for minute in range(8):
        keyspace.record("jobs", 0, pack(MS + minute * MINUTE, 0), b"job")
    client, stream = keyspace.client, "korvet:jobs:0"
    client.xgroup_create(stream, "workers", "0")
    for minute, worker in enumerate(("kafka:one", "kafka:one", "kafka:one", "me", "me", "me")):
        client.xreadgroup("workers", worker, {stream: ">"}, count=1)
        assert client.xpending(stream, "workers")["max"].decode() == f"{MS + minute * MINUTE}-0"
    # The first one waits to become a dead letter; the second one is accepted, the third one released.
    client.xclaim(stream, "workers", "korvet:rejected", 0, [f"{MS}-0"], retrycount=9)
    client.xack(stream, "workers", f"{MS + MINUTE}-0")
    client.xclaim(stream, "workers", "korvet:released", 0, [f"{MS + 2 * MINUTE}-0"], retrycount=2)
    begin(keyspace, "workers", TOPIC_ID, "jobs", 0, 1)


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows")
def test_a_queue_in_redis_in_tables_alerts_and_page(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path
) -> None:
    scenario(keyspace)
    limits = Thresholds().with_defaults(max_unread=5, max_wait=None)
    done = write_report(spark, RedisReader(Address(keyspace.url)), tmp_path, NOW, thresholds=limits)
    rows = {row["partition"]: row for row in spark.read.parquet(str(tmp_path / "queues")).collect()}
    one = rows[0].asDict(recursive=True)
    workers = {each["name"]: (each["is_member"], each["in_flight"]) for each in one.pop("workers")}
    assert workers == {"one": (True, 0), "me": (False, 3)}
    del one["as_of_ts"], one["oldest_ts"]
    assert one == {
        "group": "workers",
        "topic": "jobs",
        "partition": 0,
        "status": "OK",
        "start_offset": pack(MS, 0),
        "end_offset": pack(MS + 7 * MINUTE, 0) + 1,
        "depth": 6,
        "exact": True,
        "in_flight": 3,
        "waiting_again": 1,
        "deliveries": 2,
        "dead": 1,
        "lag_ms": NOW - MS - 2 * MINUTE,
    }
    assert (rows[1]["status"], rows[1]["depth"], rows[1]["start_offset"]) == ("UNKNOWN", None, None)
    (status,) = spark.read.parquet(str(tmp_path / "group_status")).collect()
    assert (status["record_lag"], status["time_lag_ms"], status["partitions"]) == (6, one["lag_ms"], 2)
    assert spark.read.parquet(str(tmp_path / "stale_groups")).isEmpty()
    # The group has no members for years: only the limits tell that it needs attention.
    (alert,) = json.loads((tmp_path / ALERTS_NAME).read_text())["alerts"]
    assert (alert["kind"], alert["group"], alert["topic"]) == ("unread", "workers", "jobs")
    assert alert["message"] == "has 6 records left, limit 5 records (jobs)"
    assert (done.groups, done.troubled) == (1, 1)
    text = (tmp_path / PAGE_NAME).read_text()
    page = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    (group,) = page["groups"]
    shown = [dict(zip(page["columns"]["queues"], row, strict=True)) for row in group["queues"]]
    assert group["queue"] == {
        "partitions": 2,
        "depth": 6,
        "in_flight": 3,
        "again": 1,
        "deliveries": 2,
        "dead": 1,
        "workers": 2,
        "natives": 1,
    }
    assert [(row["depth"], row["dead"], row["status"]) for row in shown] == [
        (6, 1, "OK"),
        (None, None, "UNKNOWN"),
    ]
    assert [row[:3] for row in group["workers"]] == [["me", False, 3], ["one", True, 0]]


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows")
def test_the_oldest_record_waits_too_long(spark: SparkSession, keyspace: Keyspace) -> None:
    scenario(keyspace)
    reader = RedisReader(Address(keyspace.url))
    found = batch_table(spark, reader, "queues", NOW).collect()
    # The default of max_wait is five minutes.
    assert {row["partition"]: row["status"] for row in found} == {0: "BEHIND", 1: "UNKNOWN"}
    (group,) = batch_table(spark, reader, "group_status", NOW).collect()
    assert (group["status"], group["partitions_behind"], group["worst_partition"]) == ("BEHIND", 1, 0)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("delta", "few_rows", "own_driver")
def test_each_snapshot_has_the_queues(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of an update without new records, and after the group was deleted."""
    scenario(keyspace)
    now_ms = NOW
    monkeypatch.setattr("time.time_ns", lambda: now_ms * 1_000_000)
    folder = str(tmp_path / "tables")
    depths = []
    for _ in range(3):
        update_tables(spark, Address(keyspace.url), folder)
        rows = StoredTables(spark, folder).read("queues", now_ms).collect()
        depths.append({row["partition"]: row["depth"] for row in rows})
        now_ms += MINUTE
        if len(depths) == 1:
            keyspace.record("jobs", 0, pack(now_ms, 0), b"job")
        else:
            for version in (15, 11):
                gone = encode_key(GroupRecordKey("workers", version))
                keyspace.raw_offset_record(partition_for("workers"), gone, None, now_ms)
    assert depths == [{0: 6, 1: None}, {0: 7, 1: None}, {}]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("few_rows", "own_driver")
def test_redis_and_the_kafka_protocol_tell_the_same(
    spark: SparkSession, connector: Connector, server: KorvetServer
) -> None:
    """Of korvet, whose leaders write the state some seconds later. Offsets have gaps."""
    work(server.bootstrap)
    columns = ("partition", "status", "start_offset", "end_offset", "depth", "waiting_again", "deliveries")
    now_ms = time.time_ns() // 1_000_000 + 3_600_000

    def told(reader: TopicReader) -> list[Row]:
        return batch_table(spark, reader, "queues", now_ms).select(*columns).orderBy("partition").collect()

    redis = RedisReader(Address(f"unix://{server.socket_path()}"))
    until(lambda: told(KafkaReader(server.bootstrap))[:2] == told(redis)[:2], 60, lambda: str(told(redis)))
    rows = told(redis)
    assert [row["partition"] for row in rows] == [0, 1, 2]
    assert 0 < sum(row["depth"] for row in rows[:2]) < 2 * RECORDS
    assert rows[2]["depth"] == told(KafkaReader(server.bootstrap))[2]["depth"] == 0
