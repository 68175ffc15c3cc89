"""Settings for queries of few rows, in which planning and compiling take longer than the work."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

# Number of rows up to which a query is better not compiled.
FEW_ROWS: Final = 200_000
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ONE: Final = "1"
# Neither whole stages nor expressions are compiled. One task per exchange needs no new plan after a stage.
# Many parts of a table are listed in a job, by default with a task for each. The cache isn't compressed.
FEW_ROWS_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    _PARTITIONS: _ONE,
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
}


@contextmanager
def tuned_for(spark: SparkSession, rows: int) -> Iterator[None]:
    """Run the queries of a block with settings for few rows if there are few, else with the session's."""
    if rows > FEW_ROWS:
        yield
        return
    before = {name: str(spark.conf.get(name)) for name in FEW_ROWS_SETTINGS}
    try:
        for name, value in FEW_ROWS_SETTINGS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def gathered(frame: DataFrame, *columns: str) -> DataFrame:
    """Return the rows so that no query which groups by these columns exchanges them again.

    With the settings for few rows, this is one partition. Otherwise, without columns, the rows stay.
    """
    if frame.sparkSession.conf.get(_PARTITIONS) == _ONE:
        return frame.coalesce(1)
    return frame.repartition(*columns) if columns else frame
