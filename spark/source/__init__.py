"""The Spark data source `korvet`. Raises UnsupportedSpark on import if this Spark has no such thing."""

from korvet.spark.versions import check_supported

check_supported()

from korvet.spark.source.address import Address  # noqa: E402 (the version's error comes first)
from korvet.spark.source.errors import DataLoss, SourceError  # noqa: E402
from korvet.spark.source.source import KorvetDataSource  # noqa: E402

__all__ = ["Address", "DataLoss", "KorvetDataSource", "SourceError"]
