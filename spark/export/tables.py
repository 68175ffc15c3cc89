"""The tables of `__consumer_offsets` as frames: any table as of a moment, or a growing one as a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.spark.export.target import ExportError
from korvet.spark.export.topics import stream_topics
from korvet.spark.source.source import SCHEMA
from korvet.spark.source.topics import OFFSETS_TOPIC
from korvet.spark.tables import decode, health, membership, queues
from korvet.spark.tables.batch_tables import Tables, dated, shaped
from korvet.spark.tables.catalog import NEED_NAMES, NEED_NEWEST, NEED_RECORDS, TABLES, Table
from korvet.spark.tables.readers import OFFSETS_OPTIONS, KafkaReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.source.address import Address
    from korvet.spark.tables.kafka_offsets import Finding
    from korvet.spark.tables.readers import TopicReader

# Tables whose rows come from one record each, so that rows can be added as records are added.
GROWING: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "offset_commits": decode.offset_commits,
    "group_records": decode.group_records,
    "quarantine": decode.quarantine,
}


def batch_table(
    spark: SparkSession,
    reader: TopicReader,
    name: str,
    as_of_ms: int,
    tell: Callable[[Finding], None] = lambda finding: None,
) -> DataFrame:
    """Return a table as of a moment. Raises ExportError for an unknown table, SourceError as the reader.

    tell: called with each finding about the cluster that is read. For the tables that need names of topics,
    `__consumer_offsets` is read once: the newest records of groups stay cached until the session ends.
    """
    table_named(name)
    make = _counting_table if name in NEED_RECORDS else _plain_table
    with reader.connected(spark):
        return make(spark, reader, name, as_of_ms, tell)


def _plain_table(
    spark: SparkSession, reader: TopicReader, name: str, as_of_ms: int, tell: Callable[[Finding], None]
) -> DataFrame:
    """A table that counts no records of topics."""
    for finding in reader.findings(spark, (), as_of_ms):
        tell(finding)
    is_current = name in NEED_NEWEST
    source = reader.newest_records(spark, 1, as_of_ms) if is_current else reader.offsets_topic(spark)
    if source is None:
        source = spark.createDataFrame([], SCHEMA)
    ends = None
    if name == "anomalies":
        topics = decode.offset_commits(source, ("topic",)).distinct().collect()
        ends = reader.ends(spark, [row["topic"] for row in topics])
    pending = reader.open_transactions(spark) if name == "pending_offsets" else None
    sizes = reader.sizes(spark) if name == "topic_sizes" else None
    names = topic_names(spark, reader, source.persist()) if name in NEED_NAMES else None
    return Tables(source, None, as_of_ms, ends=ends, pending=pending, sizes=sizes, names=names).view(name)


def _counting_table(
    spark: SparkSession, reader: TopicReader, name: str, as_of_ms: int, tell: Callable[[Finding], None]
) -> DataFrame:
    """A table that counts the topics' records."""
    window = health.Rules().window_commits
    newest = reader.newest_records(spark, window, as_of_ms)
    if newest is None:
        newest = spark.createDataFrame([], SCHEMA)
    names, has_queues = _asked(spark, reader, newest.persist())
    found = _queues(spark, reader, newest, names, as_of_ms) if has_queues else None
    tables = Tables(newest, None, as_of_ms, names=names, share_queues=found)
    needs = tables.needs()
    for finding in reader.findings(spark, tables.looked_up(needs), as_of_ms):
        tell(finding)
    return tables.with_logs(reader.logs(spark, needs, as_of_ms), reader.ends(spark, needs.starts)).view(name)


def topic_names(spark: SparkSession, reader: TopicReader, source: DataFrame) -> Mapping[str, str]:
    """Return the names of the topics by ID that assignments in records of `__consumer_offsets` contain."""
    return _asked(spark, reader, source)[0]


def _asked(spark: SparkSession, reader: TopicReader, source: DataFrame) -> tuple[Mapping[str, str], bool]:
    """The names of topics, and whether there are share groups."""
    records = decode.group_records(source)
    ((ids, has_queues),) = records.agg(membership.topic_ids(), queues.are_there()).collect()
    return reader.topic_names(spark, ids), has_queues


def _queues(
    spark: SparkSession, reader: TopicReader, source: DataFrame, names: Mapping[str, str], as_of_ms: int
) -> DataFrame:
    records = membership.with_topic_names(decode.group_records(source), names)
    return reader.queues(spark, queues.places(records), as_of_ms)


def stream_table(
    spark: SparkSession, source: Address | KafkaReader, name: str, options: Mapping[str, str] | None = None
) -> DataFrame:
    """Return a table of GROWING as a stream. options: of the source in Redis.

    Raises ExportError for another table, SourceError.
    """
    table = growing_table(name)
    if isinstance(source, KafkaReader):
        records = source.stream(spark)
    else:
        records = stream_topics(spark, source, [OFFSETS_TOPIC], {**OFFSETS_OPTIONS, **(options or {})})
    rows = GROWING[name](records)
    return shaped(dated(rows), table)


def growing_table(name: str) -> Table:
    """Return the declaration of a table of GROWING. Raises ExportError for another."""
    table = table_named(name)
    if name not in GROWING:
        raise ExportError(
            f"rows of {name} change: export it once, or export one of {', '.join(GROWING)} continuously"
        )
    return table


def table_named(name: str) -> Table:
    """Return the declaration of a table. Raises ExportError for an unknown table."""
    if name not in TABLES:
        raise ExportError(f"unknown table {name}; tables are {', '.join(TABLES)}")
    return TABLES[name]
