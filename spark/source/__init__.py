"""The Spark data source `korvet`."""

from korvet.spark.source.address import Address
from korvet.spark.source.errors import DataLoss, SourceError
from korvet.spark.source.source import KorvetDataSource

__all__ = ["Address", "DataLoss", "KorvetDataSource", "SourceError"]
