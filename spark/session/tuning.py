"""Settings for queries of few rows, in which planning and compiling take longer than the work."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    Keep = Callable[[DataFrame], DataFrame]

# Number of rows up to which a query is better not compiled.
FEW_ROWS: Final = 200_000
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_ONE: Final = "1"
# Neither whole stages nor expressions are compiled. One task per exchange needs no new plan after a stage.
# Many parts of a table are listed in a job, by default with a task for each. The cache isn't compressed.
# Spark writes a text of each plan for its UI, even without one: here only the tree, with its arguments.
FEW_ROWS_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    _PARTITIONS: _ONE,
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.ui.explainMode": "simple",
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


@contextmanager
def keeping(folder: Path | None = None) -> Iterator[Keep]:
    """Yield a function that returns a frame with the same rows, which all queries of the block compute once.

    The rows are cached, or, if there are few (tuned_for), written to the folder, which executors share with
    the driver, and read again: Spark looks through the whole plan of a cached frame whenever another frame is
    made from it, and for few rows this takes longer. With a folder, a report took 0.94 of the CPU time.
    """
    kept: list[DataFrame] = []
    numbers = count()

    def keep(frame: DataFrame) -> DataFrame:
        if folder is None or not _has_few_rows(frame.sparkSession):
            kept.append(frame.persist())
            return frame
        path = str(folder / str(next(numbers)))
        frame.write.mode("overwrite").parquet(path)
        return gathered(frame.sparkSession.read.schema(frame.schema).parquet(path))

    try:
        yield keep
    finally:
        for frame in kept:
            frame.unpersist()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def gathered(frame: DataFrame, *columns: str) -> DataFrame:
    """Return the rows so that no query which groups by these columns exchanges them again.

    With the settings for few rows, this is one partition. Otherwise, without columns, the rows stay.
    """
    if _has_few_rows(frame.sparkSession):
        return frame.coalesce(1)
    return frame.repartition(*columns) if columns else frame


def _has_few_rows(spark: SparkSession) -> bool:
    """Whether the session has the settings for few rows."""
    return spark.conf.get(_PARTITIONS) == _ONE
