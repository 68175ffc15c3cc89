"""Delta, which a session loads when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from korvet.spark.session.connect import SCHEME
from korvet.spark.session.jars import DELTA, SETTINGS, JarsMissing, find_jars, released
from korvet.spark.session.session import is_submitted

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession


def delta_session(master: str) -> tuple[list[Path], Mapping[str, str]]:
    """Return the jars and settings of a session with Delta.

    spark-submit and a Spark Connect server have their own jars. Raises JarsMissing.
    """
    if is_submitted() or master.startswith(SCHEME):
        return [], {}
    return find_jars(name=DELTA), SETTINGS[DELTA]


def check_delta(spark: SparkSession) -> None:
    """Raises JarsMissing if the session has no Delta."""
    try:
        # Without a path, Delta itself refuses.
        spark.read.format(DELTA).load().schema  # noqa: B018 (a property that asks Spark)
    except PySparkException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND":
            released(DELTA)
            raise JarsMissing(
                "this Spark session has no Delta: start it with the jars of `korvet jars delta`; "
                "a Spark Connect server needs them when it starts"
            ) from error
