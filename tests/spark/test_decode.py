"""Decoded tables compared with the codec, for golden and random records."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from korvet.spark.records import commits
from korvet.spark.records.commits import Newest, read_commits, refused_commits
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.decode import (
    COMMIT_TYPE,
    QUARANTINE_TYPE,
    group_metadata,
    newest_commits,
    offset_commits,
    quarantine,
)
from korvet.spark.tables.views import current_offsets
from korvet.spark.versions import arrow_schema
from tests.spark.offset_records import (
    GOLDEN,
    Record,
    check_commit,
    codec_reads,
    golden_records,
    random_records,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.short]


def frame(spark: SparkSession, records: list[Record]) -> DataFrame:
    rows = [
        (key, value, "__consumer_offsets", 0, at, None, 0, None) for at, (key, value) in enumerate(records)
    ]
    return spark.createDataFrame(rows, SCHEMA)


def check_against_codec(spark: SparkSession, records: list[Record]) -> tuple[int, int, int]:
    source = frame(spark, records)
    commits = {row["src_offset"]: row for row in offset_commits(source).collect()}
    groups = {row["src_offset"]: row for row in group_metadata(source).collect()}
    refused = {row["src_offset"]: row for row in quarantine(source).collect()}
    for at, record in enumerate(records):
        read = codec_reads(record)
        if read is None:
            assert refused[at]["reason"], record
            assert (at in commits, at in groups) == (False, False), record
            assert (refused[at]["key"], refused[at]["value"]) == record
            continue
        key, value = read
        assert at not in refused, (refused.get(at), record)
        assert (at in commits) == isinstance(key, OffsetCommitKey)
        assert (at in groups) == isinstance(key, GroupMetadataKey)
        if at in commits:
            check_commit(commits[at], key, value)
        if at in groups:
            check_group(groups[at], key, value)
    return len(commits), len(groups), len(refused)


def check_group(row: Any, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    assert row["group"] == key.group
    assert row["tombstone"] == (value is None)
    if value is None:
        return
    assert (row["protocol_type"], row["generation"], row["protocol"], row["leader"], row["member_count"]) == (
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        len(value.members),
    )
    assert [(m["member_id"], m["instance_id"], m["client_id"], m["client_host"]) for m in row["members"]] == [
        (m.member_id, m.group_instance_id, m.client_id, m.client_host) for m in value.members
    ]


def test_all_golden_records(spark: SparkSession) -> None:
    records = golden_records()
    commits, groups, refused = check_against_codec(spark, records)
    assert commits > 500
    assert groups > 60
    assert refused == 0


def test_golden_members_as_kafka_parses_them(spark: SparkSession) -> None:
    """decoded_members.jsonl contains each member as Kafka's ConsumerProtocol decodes it."""
    expected: dict[tuple[int, int, str], Any] = {}
    for line in (GOLDEN / "decoded_members.jsonl").read_text().splitlines():
        document = json.loads(line)
        place = (document["partition"], document["offset"], document["member_id"])
        expected[place] = (
            document["subscription"]["topics"] if document["subscription"] else None,
            sorted(document["assignment"]["partitions"]) if document["assignment"] else None,
        )
    rows = []
    for line in (GOLDEN / "records.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["key_hex"].startswith("0002") and record["value_hex"]:
            key, value = bytes.fromhex(record["key_hex"]), bytes.fromhex(record["value_hex"])
            rows.append((key, value, "o", record["partition"], record["offset"], None, 0, None))
    table = group_metadata(spark.createDataFrame(rows, SCHEMA)).collect()
    got = {
        (row["src_partition"], row["src_offset"], member["member_id"]): (
            member["topics"],
            None if member["assigned"] is None else partition_names(member["assigned"]),
        )
        for row in table
        for member in row["members"]
    }
    assert got == expected


def partition_names(assigned: list[Any]) -> list[str]:
    return sorted(f"{part['topic']}-{partition}" for part in assigned for partition in part["partitions"])


def test_random_records_and_damaged_ones(spark: SparkSession) -> None:
    commits, groups, refused = check_against_codec(spark, random_records(0))
    assert commits >= 1500
    assert groups >= 200
    assert refused > 500


def arrow(records: list[Record]) -> pa.RecordBatch:
    """The records in batches, as mapInArrow gets them."""
    rows = len(records)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in records], type=pa.binary()),
            "value": pa.array([value for _, value in records], type=pa.binary()),
            "partition": pa.array([0] * rows, type=pa.int32()),
            "offset": pa.array(range(rows), type=pa.int64()),
            "timestamp": pa.array([None] * rows, type=pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.mark.parametrize("seed", range(1, 4))
def test_batches_of_random_records(seed: int) -> None:
    records = random_records(seed)
    # A slice of a batch starts inside its buffers.
    batch = arrow(records).slice(seed * 10)
    commit_rows = read_commits(batch, arrow_schema(COMMIT_TYPE)).to_pylist()
    refused_rows = refused_commits(batch, arrow_schema(QUARANTINE_TYPE)).to_pylist()
    commits = {row["src_offset"]: row for row in commit_rows}
    refused = {row["src_offset"]: row for row in refused_rows}
    assert (len(commits), len(refused)) == (len(commit_rows), len(refused_rows))
    for at, record in list(enumerate(records))[seed * 10 :]:
        read = codec_reads(record)
        if read is not None:
            assert at not in refused
            assert (at in commits) == isinstance(read[0], OffsetCommitKey)
            if at in commits:
                check_commit(commits[at], *read)
        elif record[0] is None or len(record[0]) < 2 or record[0][:2] in (b"\0\0", b"\0\1"):
            assert at not in commits
            assert (refused[at]["key"], refused[at]["value"]) == record


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, b"", "no key"),
        (b"\0", b"", "the key is shorter than its version"),
        (b"\0\1\0\1g", b"", "damaged offset commit key: 2 bytes needed at byte 5 of 5"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0", "damaged offset commit value: 2 bytes needed at byte 0 of 1"),
        (b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\5", "unknown offset commit value version 5"),
    ],
)
def test_why_a_commit_is_refused(key: bytes | None, value: bytes, reason: str) -> None:
    schema = arrow_schema(QUARANTINE_TYPE)
    (row,) = refused_commits(arrow([(key, value)]), schema).to_pylist()
    assert row["reason"] == reason


def test_some_columns_alone(spark: SparkSession) -> None:
    records = random_records(7)[:300]
    some = ["committed_offset", "topic", "src_offset", "group"]
    every = [[row[name] for name in some] for row in offset_commits(frame(spark, records)).collect()]
    found = offset_commits(frame(spark, records), some)
    assert found.columns == some
    assert sorted(map(repr, map(list, found.collect()))) == sorted(map(repr, every))
    with pytest.raises(KeyError):
        offset_commits(frame(spark, records), ["colour"])


def test_batches_without_commits() -> None:
    schema = arrow_schema(COMMIT_TYPE)
    assert read_commits(arrow([]), schema).num_rows == 0
    assert read_commits(arrow([(b"\0\2\0\1g", None)]), schema).num_rows == 0


def test_unknown_tags_do_not_hide_the_commit(spark: SparkSession) -> None:
    key = encode_key(OffsetCommitKey("g", "t", 0))
    topic_id = bytes(range(16))
    values = [
        OffsetCommitValue(5, 1, "m", 9, -1, None, 4, ((3, b"new"),)),
        OffsetCommitValue(6, 1, "m", 9, -1, topic_id, 4, ((3, b"new"), (9, b""))),
    ]
    rows = offset_commits(frame(spark, [(key, encode_value(value)) for value in values])).orderBy(
        "src_offset"
    )
    assert [(row["committed_offset"], row["topic_id"]) for row in rows.collect()] == [
        (5, None),
        (6, topic_id),
    ]


def records_at(offsets: list[int], found: list[Record]) -> pa.RecordBatch:
    """Records with these offsets, in batches."""
    plain = arrow(found)
    columns = {name: plain.column(name) for name in plain.schema.names} | {"offset": pa.array(offsets)}
    return pa.RecordBatch.from_pydict(columns)


@pytest.mark.parametrize(("at_once", "most"), [(100_000, 500_000), (1, 500_000), (20, 3)])
def test_the_newest_readable_commit_of_each_key(
    monkeypatch: pytest.MonkeyPatch, at_once: int, most: int
) -> None:
    """In any order, with any number of passes over the kept records. A damaged record hides no older one."""
    monkeypatch.setattr(commits, "_ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(commits, "_MAX_KEPT", most)
    schema = arrow_schema(COMMIT_TYPE)
    chance = random.Random(5)
    keys = [encode_key(OffsetCommitKey("g", "t", part)) for part in range(8)]
    rows: list[tuple[int, Record]] = [(-1, (b"\0\2\0\1g", b"")), (-2, (None, b"")), (-3, (b"\0", None))]
    expected: dict[int, int | None] = {}
    for offset in range(300):
        part, what = chance.randrange(8), chance.randrange(10)
        wanted = None if what == 0 else offset * 10
        value = None if wanted is None else encode_value(OffsetCommitValue(wanted, commit_timestamp_ms=1))
        if what in (1, 2) or (part == 7 and offset > 50):
            value = b"\0\3\0"
        else:
            expected[part] = wanted
        rows.append((offset, (keys[part], value)))
    chance.shuffle(rows)
    newest, found = Newest(1), []
    for start in range(0, len(rows), 17):
        offsets, some = zip(*rows[start : start + 17], strict=True)
        found += list(newest.take(records_at(list(offsets), list(some))))
    found += list(newest.rest())
    assert list(newest.rest()) == []
    decoded = [read_commits(batch, schema) for batch in found]
    kept = sorted((row for batch in decoded for row in batch.to_pylist()), key=lambda row: row["src_offset"])
    assert {row["partition"]: row["committed_offset"] for row in kept} == expected
    if most > len(keys):
        assert len(kept) == len(expected)


def test_current_offsets_from_the_newest_alone(spark: SparkSession) -> None:
    records = frame(spark, golden_records())
    found = current_offsets(newest_commits(records)).orderBy("group", "topic", "partition").collect()
    assert found == current_offsets(offset_commits(records)).orderBy("group", "topic", "partition").collect()
    assert len(found) > 10
