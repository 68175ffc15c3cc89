"""The tables of `__consumer_offsets` from where it is kept: all of them as of now, or one as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from korvet.spark.export.target import ExportError
from korvet.spark.export.topics import stream_topics
from korvet.spark.source.source import SCHEMA
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables import decode, health
from korvet.spark.tables.batch_tables import Tables, shaped
from korvet.spark.tables.catalog import NEED_RECORDS, TABLES, Table
from korvet.spark.tables.readers import smallest_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address
    from korvet.spark.tables.readers import TopicReader

# Their rows come from one record each, so that they can be added as records come.
GROWING: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "offset_commits": decode.offset_commits,
    "group_records": decode.group_records,
    "quarantine": decode.quarantine,
}


def batch_table(spark: SparkSession, reader: TopicReader, name: str, as_of_ms: int) -> DataFrame:
    """One table of the catalogue as of a moment. Raises SourceError, ExportError as what it calls does."""
    table_named(name)
    rules = health.Rules()
    source = reader.offsets_topic(spark)
    if source is None:
        source = spark.createDataFrame([], SCHEMA)
    records, ends = None, None
    if name in NEED_RECORDS or name == "anomalies":
        recent = health.recent_commits(decode.offset_commits(source), rules.window_commits)
        starts = smallest_offsets(recent)
        ends = reader.ends(spark, starts)
        if name != "anomalies":
            records = reader.records(spark, starts)
    return Tables(source, records, as_of_ms, ends=ends, rules=rules).view(name)


def stream_table(
    spark: SparkSession, address: Address, name: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """One table of GROWING as a stream. Raises ExportError for another, SourceError without the topic."""
    table = growing_table(name)
    source = stream_topics(spark, address, [OFFSETS_TOPIC], options)
    rows = GROWING[name](source)
    return shaped(rows.withColumn("src_date", sf.to_date("src_ts")), table)


def growing_table(name: str) -> Table:
    """The catalogue's entry of one of GROWING. Raises ExportError for another."""
    table = table_named(name)
    if name not in GROWING:
        raise ExportError(
            f"{name} changes with what comes, it does not only grow: export it once, or continuously one of "
            f"{', '.join(GROWING)}"
        )
    return table


def table_named(name: str) -> Table:
    """The catalogue's entry. Raises ExportError for a table that is not in it."""
    if name not in TABLES:
        raise ExportError(f"no table {name}; there are {', '.join(TABLES)}")
    return TABLES[name]
