"""The tables: columns as in the catalogue, missing records, and groups in unusual places."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from korvet.offsets.packing import entry_id, pack
from korvet.spark.export.tables import batch_table
from korvet.spark.session.folders import Folder
from korvet.spark.source.address import Address
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import NEED_RECORDS, TABLES
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.store import Store
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.test_views import DAY, MS, NOW

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.short]
RECORDS = "topic string, partition int, offset bigint, timestamp timestamp"


def test_no_records_at_all(spark: SparkSession) -> None:
    tables = Tables(spark.createDataFrame([], SCHEMA), spark.createDataFrame([], RECORDS), NOW)
    for name, table in TABLES.items():
        view = tables.view(name)
        assert (
            ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in view.schema)
            == table.schema
        )
    assert [
        name for name in ("anomalies", "group_status", "topic_consumers") if tables.view(name).count()
    ] == []


def test_without_the_topics_records(spark: SparkSession) -> None:
    tables = Tables(spark.createDataFrame([], SCHEMA), None, NOW)
    for name in NEED_RECORDS:
        with pytest.raises(KeyError, match="logs"):
            tables.view(name)
    tables.create_views("without_")
    assert {table.name for table in spark.catalog.listTables(pattern="without_*")} == {
        f"without_{name}" for name in TABLES if name not in NEED_RECORDS
    }


@pytest.mark.usefixtures("delta", "new_york")
def test_days_are_in_utc(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    day, late = date(2023, 11, 14), MS // DAY * DAY + DAY - 1
    keyspace.offsets_topic()
    for at_ms in (late - DAY + 1, late):
        keyspace.commit("g", "orders", 0, 5, at_ms=at_ms)
    source = RedisReader(Address(keyspace.url)).offsets_topic(spark)
    assert source is not None
    rows = Tables(source, None, late).view("offset_commits").collect()
    assert [row["src_date"] for row in rows] == [day, day]
    stored = StoredTables(spark, str(tmp_path))
    store = Store(Folder(spark, str(tmp_path)))
    table = TABLES["topic_sizes"]
    for at_ms in (late, late + 1):
        as_of_ts = sf.timestamp_millis(sf.lit(at_ms)).alias("as_of_ts")
        nulls = [sf.lit(None).cast(each.type).alias(each.name) for each in table.columns[:-1]]
        store.add_snapshot(table, at_ms, spark.range(1).select(*nulls, as_of_ts), again=False)
        assert stored.read("topic_sizes", at_ms).count() == 1
    assert sorted(store.days(table)) == [day, day + timedelta(days=1)]


@pytest.mark.parametrize("filler", ["x", "\N{SNOWMAN}"])
def test_a_group_with_the_longest_name(spark: SparkSession, keyspace: Keyspace, filler: str) -> None:
    """Strings in Kafka's records have at most 32,767 bytes."""
    group = filler * (32_767 // len(filler.encode()))
    keyspace.offsets_topic()
    keyspace.topic("orders")
    keyspace.record("orders", 0, pack(MS, 0), b"v")
    keyspace.record("orders", 0, pack(MS + 1, 0), b"v")
    keyspace.commit(group, "orders", 0, pack(MS, 1), at_ms=MS + 10)
    reader = RedisReader(Address(keyspace.url))
    (found,) = batch_table(spark, reader, "group_status", MS + 20).collect()
    assert (found["group"], found["record_lag"]) == (group, 1)


def test_groups_that_stand_outside_the_log(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.offsets_topic()
    keyspace.topic("counted", 1, {"offset.assignment": "dense"})
    keyspace.topic("timed", 1)
    for number in range(10):
        keyspace.add("counted", 0, entry_id(number, 1), b"value", b"v", b"ts", str(MS))
        keyspace.record("timed", 0, pack(MS + number, 0), b"v")
    for topic in ("counted", "timed"):
        keyspace.client.xtrim(f"korvet:{topic}:0", maxlen=4, approximate=False)
    # A superseded commit has lost nothing.
    keyspace.commit("lost", "counted", 0, 1, at_ms=MS + 100)
    keyspace.commit("lost", "counted", 0, 2, at_ms=MS + 101)
    keyspace.commit("there", "counted", 0, 2, at_ms=MS + 100)
    keyspace.commit("there", "counted", 0, 6, at_ms=MS + 101)
    keyspace.commit("ahead", "counted", 0, 11, at_ms=MS + 101)
    # It is unknown whether there were records between its offset and the log start.
    keyspace.commit("unknown", "timed", 0, pack(MS + 2, 1), at_ms=MS + 101)
    reader = RedisReader(Address(keyspace.url))
    found = batch_table(spark, reader, "group_status", MS + 102).collect()
    assert {row["group"]: (row["status"], row["record_lag"], row["lost_records"]) for row in found} == {
        "lost": ("LOST", 4, 4),
        "there": ("UNKNOWN", 4, 0),
        "ahead": ("AHEAD", 0, 0),
        "unknown": ("UNKNOWN", 4, None),
    }
    odd = batch_table(spark, reader, "anomalies", MS + 102).collect()
    assert {(row["group"], row["kind"], row["committed_offset"], row["lost_records"]) for row in odd} == {
        ("lost", "lost_records", 2, 4),
        ("ahead", "past_end", 11, None),
    }
