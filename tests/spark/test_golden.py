"""A real `__consumer_offsets` topic in Spark, from Redis and by the official connector: the decoded rows
equal the output of Kafka's formatters, and the final state equals the broker's answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.offsets.wire import uuid_text
from korvet.spark.source.address import Address
from korvet.spark.tables import readers
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.readers import KafkaReader, RedisReader
from tests.support.admin import create_topic
from tests.support.confluent import producer
from tests.unit.offsets.golden import printed, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Connector
    from tests.spark.keyspace import Keyspace
    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.spark

COMMIT = b"\0\0\0\1"
PARTITIONS = 50
COPY = "golden-copy"
# A time after all records.
LAST_MS = 2**42


class Written(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


def committed_records() -> list[Written]:
    """The records that read_committed returns, including those of transactions that ended after open ones."""
    found: list[Written] = []
    open_: dict[tuple[int, int], list[Written]] = {}
    for row in rows(".", "records"):
        key = bytes.fromhex(row["key_hex"])
        value = None if row["value_hex"] is None else bytes.fromhex(row["value_hex"])
        record = Written(row["partition"], row["offset"], row["timestamp"], key, value)
        transaction = (record.partition, row["producer_id"])
        if row["control"]:
            ended = open_.pop(transaction, [])
            found += ended if record.key == COMMIT else []
        elif row["transactional"]:
            open_.setdefault(transaction, []).append(record)
        else:
            found.append(record)
    assert any(open_.values())
    return sorted(found)


def check(source: DataFrame, newest: DataFrame, records: list[Written]) -> None:
    """`records` equal those of `source`, in the same order within each partition; `newest` has the end."""
    source.cache()
    try:
        check_rows(Tables(source, None, LAST_MS), records)
        check_end(Tables(newest, None, LAST_MS, names=names_in(records)))
    finally:
        source.unpersist()


def names_in(records: list[Written]) -> dict[str, str]:
    """The names of topics by ID, as the commits of newer groups have both."""
    found = {}
    for record in records:
        key = decode_key(record.key)
        if isinstance(key, OffsetCommitKey) and record.value is not None:
            value = decode_value(key, record.value)
            if isinstance(value, OffsetCommitValue) and value.topic_id is not None:
                found[uuid_text(value.topic_id)] = key.topic
    assert found
    return found


def check_rows(tables: Tables, records: list[Written]) -> None:
    captured = [(record.partition, record.offset) for record in records]
    offsets = {place: json.loads(text) for place, text in printed(".", "decoded_offsets").items()}
    groups = printed(".", "decoded_groups") | printed(".", "decoded_other")
    commits = in_order(tables.view("offset_commits"))
    expected = [offsets[place] for place in captured if place in offsets]
    assert [as_formatted(row) for row in commits] == expected
    shown = [row["data"] for row in in_order(tables.view("group_records"))]
    assert shown == [groups[place] for place in captured if place in groups]
    assert len(commits) + len(shown) == len(records)
    assert tables.view("quarantine").count() == 0


def in_order(frame: DataFrame) -> list[Any]:
    return frame.orderBy("src_partition", "src_offset").collect()


def as_formatted(row: Any) -> dict[str, Any]:
    """Formats a row of offset_commits like OffsetsMessageFormatter."""
    key = {"group": row["group"], "topic": row["topic"], "partition": row["partition"]}
    document: dict[str, Any] = {"key": {"type": row["key_version"], "data": key}, "value": None}
    if row["tombstone"]:
        return document
    data = {
        "offset": row["committed_offset"],
        "metadata": row["metadata"],
        "commitTimestamp": row["commit_ms"],
    }
    if row["value_version"] >= 3:
        data["leaderEpoch"] = row["leader_epoch"]
    if row["value_version"] == 1:
        data["expireTimestamp"] = row["expire_ms"]
    if row["topic_id"] is not None:
        data["topicId"] = uuid_text(bytes(row["topic_id"]))
    document["value"] = {"version": row["value_version"], "data": data}
    return document


def check_end(tables: Tables) -> None:
    answers = [row for row in rows(".", "final_state") if row["kind"] == "group"]
    current = tables.view("current_offsets").collect()
    assert {
        (r["group"], r["topic"], r["partition"]): (r["committed_offset"], r["leader_epoch"], r["metadata"])
        for r in current
    } == {
        (answer["group"], o["topic"], o["partition"]): (o["offset"], o["leader_epoch"], o["metadata"])
        for answer in answers
        for o in answer.get("offsets", ())
    }
    assert {
        (r["group"], r["member_id"]): (r["client_id"], r["client_host"], places(r["assigned"]))
        for r in tables.view("members").where("active").collect()
    } == {
        (answer["group"], m["member_id"]): (m["client_id"], m["host"], sorted(m["assignment"]))
        for answer in answers
        for m in answer.get("members", ())
    }


def places(assigned: list[Any] | None) -> list[str]:
    return sorted(f"{part['topic']}-{number}" for part in assigned or () for number in part["partitions"])


@pytest.mark.short
def test_from_redis(spark: SparkSession, keyspace: Keyspace) -> None:
    records = committed_records()
    keyspace.offsets_topic()
    for record in records:
        keyspace.next_offset[record.partition] = record.offset
        keyspace.raw_offset_record(record.partition, record.key, record.value, record.timestamp_ms)
    reader = RedisReader(Address(keyspace.url))
    source, newest = reader.offsets_topic(spark), reader.newest_records(spark, 1, LAST_MS)
    assert source is not None
    assert newest is not None
    check(source, newest, records)


@pytest.mark.long
@pytest.mark.usefixtures("own_driver")
def test_by_the_official_connector(
    spark: SparkSession, server: KorvetServer, connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a copy of the topic under another name: korvet accepts no records for the real one."""
    records = committed_records()
    create_topic(server.bootstrap, COPY, PARTITIONS, {"offset.assignment": "dense"})
    client = producer(server.bootstrap)
    for record in records:
        client.produce(
            COPY, record.value, record.key, partition=record.partition, timestamp=record.timestamp_ms
        )
    assert client.flush(60) == 0
    del client
    monkeypatch.setattr(readers, "OFFSETS_TOPIC", COPY)
    source = KafkaReader(server.bootstrap).offsets_topic(spark)
    assert source is not None
    check(source, source, records)
