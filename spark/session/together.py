"""Work of one session at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark import inheritable_thread_target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    Result = TypeVar("Result")

# Spark plans each query in one thread, and a query of few rows runs in one task.
THREADS: Final = 3


def together(spark: SparkSession, works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run functions in threads, at most THREADS at once, and return their results in order.

    Their jobs are part of what the caller does: they end with the stream whose batch the caller takes. Raises
    the first error in order, after all functions have ended.
    """
    with ThreadPoolExecutor(THREADS) as pool:
        # Each call copies the caller's properties: Spark changes those of a thread.
        started = [pool.submit(inheritable_thread_target(spark)(work)) for work in works]
    return [done.result() for done in started]
