"""Makes the format `korvet` known to a session, classic or of Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.spark.source.source import KorvetDataSource
from korvet.spark.versions import warn_if_untested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_format(session: SparkSession) -> None:
    """Register the format. Logs a warning for a Spark that was not tested."""
    warn_if_untested()
    from pyspark.errors import AnalysisException  # noqa: PLC0415 (imports Py4J: not needed on executors)

    try:
        session.dataSource.register(KorvetDataSource)
    except AnalysisException as error:
        # Spark 4.0 refuses a format that it has found by itself.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
