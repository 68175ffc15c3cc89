"""The tables of `__consumer_offsets`: decoding, views, health, history."""

from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.decode import (
    group_metadata,
    group_records,
    newest_commits,
    offset_commits,
    quarantine,
)
from korvet.spark.tables.health import Rules
from korvet.spark.tables.needs import Needs, smallest_offsets
from korvet.spark.tables.questions import QUESTIONS, Objectives, question_sql
from korvet.spark.tables.readers import ENDS, KafkaReader, RedisReader
from korvet.spark.tables.stored_tables import StoredTables

__all__ = [
    "ENDS",
    "QUESTIONS",
    "TABLES",
    "KafkaReader",
    "Needs",
    "Objectives",
    "RedisReader",
    "Rules",
    "StoredTables",
    "Tables",
    "group_metadata",
    "group_records",
    "newest_commits",
    "offset_commits",
    "quarantine",
    "question_sql",
    "smallest_offsets",
]
