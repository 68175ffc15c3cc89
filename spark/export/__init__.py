"""Exports of topics and tables to files, Delta, Iceberg or a database."""

from korvet.spark.export.export import export_batch, export_stream
from korvet.spark.export.tables import batch_table, stream_table
from korvet.spark.export.target import ExportError, Target
from korvet.spark.export.topics import read_topics, stream_topics

__all__ = [
    "ExportError",
    "Target",
    "batch_table",
    "export_batch",
    "export_stream",
    "read_topics",
    "stream_table",
    "stream_topics",
]
