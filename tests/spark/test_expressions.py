"""Decoding by SQL expressions compared with the codec, for golden, random and damaged records.

Also runs without the conftest.py files, in Spark 3.5: `python -m tools.spark_versions 3.5`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, OffsetCommitKey, OffsetCommitValue
from korvet.spark.expressions import MAX_TIME_MS, current_offsets, group_states, offset_commits, quarantine
from tests.spark.offset_records import Record, check_commit, codec_reads, golden_records, random_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"


def frame(spark: SparkSession, records: list[Record]) -> DataFrame:
    rows = [(key, value, 0, at, None) for at, (key, value) in enumerate(records)]
    return spark.createDataFrame(rows, SCHEMA)


def by_offset(found: DataFrame) -> dict[int, Any]:
    rows = found.collect()
    assert len({row["src_offset"] for row in rows}) == len(rows)
    return {row["src_offset"]: row for row in rows}


def check(spark: SparkSession, records: list[Record]) -> tuple[int, int, int]:
    source = frame(spark, records)
    commits, states = by_offset(offset_commits(source)), by_offset(group_states(source))
    refused = by_offset(quarantine(source))
    for at, record in enumerate(records):
        places = (at in commits, at in states, at in refused)
        key_bytes = record[0] or b""
        if key_bytes[:2] == b"\0\2":
            check_state(states.get(at), record, refused=at in refused)
            continue
        if len(key_bytes) >= 2 and key_bytes[:2] not in {b"\0\0", b"\0\1"}:
            assert places == (False, False, False), record
            continue
        key, value = codec_reads(record) or (None, None)
        if key is None or (value is not None and value.unknown_tags):
            assert places == (False, False, True), record
            assert (refused[at]["key"], refused[at]["value"]) == record
            continue
        assert places == (True, False, False), (record, refused.get(at))
        check_commit(commits[at], key, value)
    return len(commits), len(states), len(refused)


def check_state(row: Any, record: Record, *, refused: bool) -> None:
    """The expressions don't read members, so damage in members is not found."""
    assert refused == (row is None), record
    read = codec_reads(record)
    if read is None:
        return
    key, value = read
    assert isinstance(key, GroupMetadataKey)
    if value is not None and value.version == 4:
        assert refused
        return
    assert (row["group"], row["tombstone"]) == (key.group, value is None)
    if isinstance(value, GroupMetadataValue):
        names = ("protocol_type", "generation", "protocol", "leader")
        assert [row[name] for name in names] == [getattr(value, name) for name in names]
        assert row["member_count"] == len(value.members)
        assert (row["state_ts"] is not None) == (0 <= value.current_state_timestamp_ms <= MAX_TIME_MS)


def test_all_golden_records(spark: SparkSession) -> None:
    commits, states, refused = check(spark, golden_records())
    assert commits > 500
    assert states > 60
    assert refused == 0


def test_random_and_damaged_records(spark: SparkSession) -> None:
    commits, states, refused = check(spark, random_records(0))
    assert commits >= 1500
    assert states >= 200
    assert refused > 500


def test_sizes_of_metadata_in_one_two_and_three_bytes(spark: SparkSession) -> None:
    key = encode_key(OffsetCommitKey("g", "t", 0))
    sizes = [0, 1, 126, 127, 128, 16_382, 16_383, 16_384, 32_767]
    values = [OffsetCommitValue(5, 1, "m" * size, 9, -1, bytes(16), 4) for size in sizes]
    found = by_offset(offset_commits(frame(spark, [(key, encode_value(value)) for value in values])))
    assert [len(found[at]["metadata"]) for at in range(len(sizes))] == sizes
    assert {bytes(row["topic_id"]) for row in found.values()} == {bytes(16)}


def test_why_a_record_is_refused(spark: SparkSession) -> None:
    key = encode_key(OffsetCommitKey("g", "t", 0))
    cases: list[tuple[Record, str]] = [
        ((None, b""), "no key"),
        ((b"\0", b""), "the key is shorter than its version"),
        ((key[:-1], None), "damaged offset commit key"),
        ((key, b""), "damaged offset commit value"),
        ((key, b"\0\5future"), "unknown offset commit value version 5"),
        ((key, encode_value(OffsetCommitValue(5, 1, "m", 9))[:-1]), "damaged offset commit value"),
        ((b"\0\2\0\1", None), "damaged group metadata key"),
        ((b"\0\2\0\1g", b"\0\4"), "unknown group metadata value version 4"),
        ((b"\0\2\0\1g", b"\0\3\0"), "damaged group metadata value"),
    ]
    found = by_offset(quarantine(frame(spark, [record for record, _ in cases])))
    assert [found[at]["reason"] for at in range(len(cases))] == [reason for _, reason in cases]


def test_the_newest_commit_of_each_partition(spark: SparkSession) -> None:
    def commit(partition: int, offset: int | None) -> Record:
        value = None if offset is None else encode_value(OffsetCommitValue(offset, commit_timestamp_ms=1))
        return encode_key(OffsetCommitKey("g", "t", partition)), value

    records = [commit(0, 5), commit(1, 6), commit(0, 3), commit(2, 9), commit(2, None)]
    rows = current_offsets(frame(spark, records)).orderBy("partition").collect()
    assert [(row["partition"], row["committed_offset"], row["src_offset"]) for row in rows] == [
        (0, 3, 2),
        (1, 6, 1),
    ]
