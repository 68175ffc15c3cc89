"""Makes the format `korvet` known to a session, classic or of Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source.source import KorvetDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_format(session: SparkSession) -> None:
    """Register the format. Spark 4.0 refuses a format that it has found by itself."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 (imports Py4J: not needed on executors)

    try:
        session.dataSource.register(KorvetDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
