"""What changed since a time or since an earlier report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import pack
from korvet.spark.report.alerts import OK
from korvet.spark.report.comparison import (
    CHANGES,
    ComparisonError,
    Reference,
    kept_state,
    parse_reference,
)
from korvet.spark.report.report import ALERTS_NAME, write_report
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import RedisReader
from tests.spark.test_views import MS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

MINUTE = 60_000


def test_references(tmp_path: Path) -> None:
    assert parse_reference("90m", MS) == Reference(at_ms=MS - 90 * MINUTE)
    assert parse_reference("2023-11-14T22:13Z", MS) == Reference(at_ms=MS - 20_000)
    assert parse_reference("2023-11-14T23:13+01:00", MS) == Reference(at_ms=MS - 20_000)
    # Without an offset it is in UTC.
    assert parse_reference("2023-11-14T22:13", MS) == Reference(at_ms=MS - 20_000)
    assert parse_reference("s3a://lake/report", MS) == Reference(folder="s3a://lake/report")
    (tmp_path / "partition_status").mkdir()
    assert parse_reference(str(tmp_path), MS) == Reference(folder=str(tmp_path))
    for text, message in [
        ("soon", "'soon' is no folder, no duration such as 24h, and no time"),
        ("2023-11-14T22:14Z", "is not in the past"),
        ("1969-12-31T23:59Z", "1969-12-31T23:59Z is before 1970"),
        ("999999d", "999999d is before 1970"),
        (str(tmp_path / "partition_status"), "has no table partition_status"),
    ]:
        with pytest.raises(ComparisonError, match=message):
            parse_reference(text, MS)


@pytest.mark.spark
@pytest.mark.long
def test_a_report_is_compared_with_the_one_before_in_its_folder(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path
) -> None:
    """A group reads two of four records, another goes back; a partition comes, and another goes."""
    reader = RedisReader(Address(keyspace.url))
    keyspace.offsets_topic()
    keyspace.topic("t", 3)
    for number in range(4):
        keyspace.record("t", 0, pack(MS + number * MINUTE, 0), b"r")
    now = MS + 10 * MINUTE
    keyspace.commit("reads", "t", 0, pack(MS, 0), at_ms=now - 1000)
    keyspace.commit("back", "t", 0, pack(MS + 3 * MINUTE, 1), at_ms=now - 1000)
    keyspace.commit("moves", "t", 1, 0, at_ms=now - 1000)
    out = tmp_path / "out"
    write_report(spark, reader, out, now)

    later = now + MINUTE
    keyspace.commit("reads", "t", 0, pack(MS + MINUTE, 1), at_ms=later - 1000)
    keyspace.commit("back", "t", 0, pack(MS + 2 * MINUTE, 0), at_ms=later - 1000)
    keyspace.commit("moves", "t", 1, None, at_ms=later - 1000)
    keyspace.commit("moves", "t", 2, 0, at_ms=later - 1000)
    write_report(spark, reader, out, later, compare_to=Reference(folder=str(out)))
    found = {
        (row["group"], row["partition"]): (
            row["change"],
            row["record_lag_before"],
            row["record_lag"],
            row["lag_ms_before"],
            row["lag_ms"],
            row["read_records"],
        )
        for row in spark.read.parquet(str(out / CHANGES)).collect()
    }
    assert found == {
        ("reads", 0): ("kept", 4, 2, 10 * MINUTE, 9 * MINUTE, 2),
        ("back", 0): ("kept", 0, 2, 0, 9 * MINUTE, -2),
        ("moves", 1): ("gone", 0, None, 0, None, None),
        ("moves", 2): ("new", None, 0, None, 0, None),
    }
    assert json.loads((out / ALERTS_NAME).read_text("utf-8"))["compared_to_ms"] == now
    assert not (out / "earlier_status").exists()

    with pytest.raises(ComparisonError, match="is of 2023-11-14T22:24:20Z, not earlier than this one"):
        kept_state(spark, str(out), later)
    # A report that is not compared leaves no changes of an earlier one behind.
    keyspace.client.flushall()
    done = write_report(spark, reader, out, later + MINUTE)
    assert not (out / CHANGES).exists()
    assert done.alerts["severity"] == OK
    with pytest.raises(ComparisonError, match="has no partitions to compare with"):
        kept_state(spark, str(out), later + 2 * MINUTE)
