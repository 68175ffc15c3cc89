"""When a group will have read everything, if it goes on as in the window of its last bursts of commits.

The window lasts from the first of these bursts until now. Everything is counted in records, because offsets
are sparse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

# A single burst doesn't tell how fast a group reads.
MIN_BURSTS = 2


def partition_drain(as_of_ms: int) -> Mapping[str, Column]:
    """Return the columns about draining of health.partition_lag's rows.

    consumed_per_s: records between the first burst of the window and the newest. produced_per_s: records
    appended since the first burst that the group has to read. Both are per second of the window, and null if
    it has fewer than MIN_BURSTS bursts or its first one has no time before now. drain_ms: the unread
    records over the difference of the rates; 0 without unread records, null if the difference isn't above 0.
    """
    window_ms = sf.lit(as_of_ms) - sf.col("first_ms")
    known = (sf.col("commits") >= MIN_BURSTS) & sf.col("first_ms").between(0, as_of_ms - 1)
    first, unread = sf.col("first"), sf.col("record_lag")
    fewer = first["lag_then"] - unread
    drained_ms = sf.ceil(unread * (window_ms / fewer))
    return {
        "consumed_per_s": sf.when(known, (first["record_lag"] - unread) * 1000 / window_ms),
        "produced_per_s": sf.when(known, (first["record_lag"] - first["lag_then"]) * 1000 / window_ms),
        "drain_ms": sf.when(unread == 0, sf.lit(0)).when(known & (fewer > 0), drained_ms),
    }


def group_drain() -> Mapping[str, Column]:
    """Return the aggregates over a group's partitions, of health.partition_status."""
    never = sf.col("drain_ms").isNull() & sf.col("consumed_per_s").isNotNull()
    return {
        "drain_ms": sf.when(sf.bool_and(sf.col("drain_ms").isNotNull()), sf.max("drain_ms")),
        "partitions_not_draining": sf.count_if(never),
    }
