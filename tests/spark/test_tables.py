"""The tables: columns as in the catalogue, and numbers of a small scenario, computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.packing import entry_id, pack
from korvet.spark.export.tables import batch_table
from korvet.spark.source.address import Address
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import NEED_RECORDS, TABLES
from korvet.spark.tables.readers import RedisReader
from tests.spark.test_views import MS, NOW, scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark
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
        with pytest.raises(KeyError, match="records"):
            tables.view(name)
    tables.create_views("without_")
    assert {table.name for table in spark.catalog.listTables(pattern="without_*")} == {
        f"without_{name}" for name in TABLES if name not in NEED_RECORDS
    }


def test_a_scenario_through_the_data_source(spark: SparkSession, keyspace: Keyspace) -> None:
    scenario(keyspace)
    reader = RedisReader(Address(keyspace.url))
    source = reader.offsets_topic(spark)
    assert source is not None
    records = reader.records(spark, {"orders": dict.fromkeys(range(3), 0)})
    tables = Tables(source.cache(), records.cache(), NOW)

    def rows(name: str, *columns: str) -> set[tuple[Any, ...]]:
        return {tuple(row[column] for column in columns) for row in tables.view(name).collect()}

    assert rows("record_lag", "group", "partition", "record_lag") == {
        ("billing", 0, 49),
        ("billing", 1, 2),
        ("billing", 2, 0),
        ("audit", 0, 0),
        ("lost", 0, 39),
        ("beyond", 0, 0),
    }
    assert rows("group_status", "group", "status", "record_lag", "member_count") == {
        # The last commit of each partition was half a minute ago; only partition 0 has two commits.
        ("billing", "STOPPED", 51, 1),
        ("audit", "OK", 0, 0),
        ("lost", "STOPPED", 39, 0),
        ("beyond", "OK", 0, 0),
    }
    assert rows("stale_groups", "group", "partitions") == {("lost", 1)}
    assert rows("anomalies", "group", "partition", "kind", "committed_offset") == {
        ("beyond", 0, "past_end", pack(NOW, 0)),
        # Committed two days before the record at that offset was appended.
        ("lost", 0, "past_end", pack(MS + 20 * 60_000, 5)),
    }
    assert rows("rebalances", "group", "generation", "kind", "joined", "left") == {
        ("billing", 1, "formed", 1, 0),
        ("billing", 2, "rebalanced", 1, 0),
        ("billing", 3, "rebalanced", 0, 1),
        ("audit", 1, "formed", 1, 0),
        ("audit", 2, "emptied", 0, 1),
        ("gone", 1, "formed", 1, 0),
    }
    assert rows("members", "group", "member_id", "active", "assigned_partitions") == {
        ("billing", "a", False, 2),
        ("billing", "b", True, 3),
        ("audit", "c", False, 1),
        ("gone", "d", False, 1),
    }
    assert rows("topic_consumers", "topic", "group", "committed_partitions", "assigned_partitions") == {
        ("orders", "billing", 3, 3),
        ("orders", "audit", 1, 0),
        ("orders", "lost", 1, 0),
        ("orders", "beyond", 1, 0),
    }
    first = MS + 9 * 60_000
    assert (("billing", 0, pack(first, 5), NOW - first)) in rows(
        "time_lag", "group", "partition", "first_unread_offset", "lag_ms"
    )


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
        "there": ("WARNING", 4, 0),
        "ahead": ("AHEAD", 0, 0),
        "unknown": ("OK", 4, None),
    }
    odd = batch_table(spark, reader, "anomalies", MS + 102).collect()
    assert {(row["group"], row["kind"], row["committed_offset"], row["lost_records"]) for row in odd} == {
        ("lost", "lost_records", 2, 4),
        ("ahead", "past_end", 11, None),
    }
