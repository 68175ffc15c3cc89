"""The Spark data source `korvet`."""

from korvet.spark.source.source import KorvetDataSource

__all__ = ["KorvetDataSource"]
