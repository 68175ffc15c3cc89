"""Whether a session has Delta, which it loads when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from korvet.spark.session.jars import DELTA, JarsMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_delta(spark: SparkSession) -> None:
    """Raises JarsMissing if the session has no Delta."""
    try:
        # Without a path, Delta itself refuses.
        spark.read.format(DELTA).load().schema  # noqa: B018 (a property that asks Spark)
    except PySparkException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND":
            raise JarsMissing(
                "this Spark session has no Delta: start it with the jars of `korvet jars delta`; "
                "a Spark Connect server needs them when it starts"
            ) from error
