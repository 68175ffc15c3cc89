"""What changed by group and partition: since an earlier report, or since a time by the commits until then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from korvet.spark.report.thresholds import parse_duration
from korvet.spark.report.times import iso
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.trends import Span, lag_over_time, positions_over_time
from korvet.spark.tables.views import GROUP_PARTITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGES: Final = "changes"
"""The folder of the table in a report's folder."""
CHANGES_SCHEMA: Final = (
    "group string, topic string, partition int, change string, status_before string, status string, "
    "committed_before bigint, committed_offset bigint, record_lag_before bigint, record_lag bigint, "
    "lag_ms_before bigint, lag_ms bigint, read_records bigint, before_ts timestamp, as_of_ts timestamp"
)
STATUS_TABLE: Final = "partition_status"
NEW, GONE, KEPT = "new", "gone", "kept"
# The state that a partition is compared with. Without a status, its lag is counted from the records.
_EARLIER: Final = ("status", "committed_offset", "record_lag", "lag_ms")


class ComparisonError(SourceError):
    """There is nothing to compare with. The message states the reason."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a report is compared with: a time in ms, or the folder of an earlier report."""

    at_ms: int | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """The state of partitions at `at_ms`: group, topic, partition and the columns of _EARLIER."""

    at_ms: int
    positions: DataFrame


def parse_reference(text: str, as_of_ms: int) -> Reference:
    """Return what the command line names: a report's folder, a time in ISO 8601, or a duration before now.

    A time without an offset is in UTC. Raises ComparisonError.
    """
    if "://" in text or Path(text).is_dir():
        if "://" not in text and not Path(text, STATUS_TABLE).is_dir():
            raise ComparisonError(f"{text} has no table {STATUS_TABLE}: name the folder of an earlier report")
        return Reference(folder=text)
    at_ms = _time_of(text, as_of_ms)
    if at_ms < 0:
        raise ComparisonError(f"{text} is before 1970")
    return Reference(at_ms=at_ms)


def _time_of(text: str, as_of_ms: int) -> int:
    """The time in ms of a duration before now or a time in ISO 8601. Raises ComparisonError."""
    try:
        return as_of_ms - parse_duration(text)
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ComparisonError(
            f"{text!r} is no folder, no duration such as 24h, and no time such as 2026-01-31T08:00Z"
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    at_ms = round(time.timestamp() * 1000)
    if at_ms >= as_of_ms:
        raise ComparisonError(f"{text} is not in the past")
    return at_ms


def kept_state(spark: SparkSession, folder: str, as_of_ms: int) -> Earlier:
    """Return the newest state in a report's folder. Raises ComparisonError if it is not an earlier one."""
    table = spark.read.parquet(f"{folder.rstrip('/')}/{STATUS_TABLE}")
    newest = table.agg(sf.unix_millis(sf.max("as_of_ts")).alias("newest")).collect()[0]["newest"]
    if newest is None:
        raise ComparisonError(f"the report in {folder} has no partitions to compare with")
    if newest >= as_of_ms:
        raise ComparisonError(f"the report in {folder} is of {iso(newest)}, not earlier than this one")
    return state_of(table.where(sf.unix_millis("as_of_ts") == newest), newest)


def state_of(status: DataFrame, at_ms: int) -> Earlier:
    """Return the state in the rows of partition_status at a time, without uncommitted partitions."""
    return Earlier(at_ms, _committed(status))


def _committed(status: DataFrame) -> DataFrame:
    return status.where(sf.col("committed_offset").isNotNull()).select(*GROUP_PARTITION, *_EARLIER)


def state_at(commits: DataFrame, at_ms: int) -> Earlier:
    """Return the state at a time, from the commits made until then that are still in the log."""
    made_ms = sf.coalesce("commit_ms", sf.unix_millis("src_ts"))
    # A span of one step that ends at the time.
    positions = positions_over_time(commits.where(made_ms <= at_ms), Span(at_ms - 1, at_ms, 1))
    unknown = {
        "status": sf.lit(None).cast("string"),
        "record_lag": sf.lit(None).cast("bigint"),
        "lag_ms": sf.lit(None).cast("bigint"),
    }
    return Earlier(at_ms, positions.withColumns(unknown).select(*GROUP_PARTITION, *_EARLIER))


def changes(earlier: Earlier, current: DataFrame, log: DataFrame | None, as_of_ms: int) -> DataFrame:
    """Return one row per committed partition of then or now, with the columns of CHANGES_SCHEMA.

    current: partition_status at as_of_ms. log: the topics' logs from the smallest position on; without them
    the number of records read since is null. The records read since are those after the earlier position
    that are not unread; a rewind makes them negative.
    """
    keys = list(GROUP_PARTITION)
    counted = _counted(earlier, log, as_of_ms)
    before = earlier.positions.join(counted, on=keys, how="left").select(
        *keys,
        sf.col("status").alias("status_before"),
        sf.col("committed_offset").alias("committed_before"),
        sf.coalesce("record_lag", "lag_then").alias("record_lag_before"),
        sf.coalesce("lag_ms", "wait_then").alias("lag_ms_before"),
        "remaining",
    )
    after = _committed(current)
    is_new, is_gone = sf.col("committed_before").isNull(), sf.col("committed_offset").isNull()
    joined = before.join(after, on=keys, how="full").withColumns(
        {
            "change": sf.when(is_new, NEW).when(is_gone, GONE).otherwise(KEPT),
            "read_records": sf.col("remaining") - sf.col("record_lag"),
            "before_ts": sf.timestamp_millis(sf.lit(earlier.at_ms)),
            "as_of_ts": sf.timestamp_millis(sf.lit(as_of_ms)),
        }
    )
    return joined.select(*(part.split()[0] for part in CHANGES_SCHEMA.split(", ")))


def _counted(earlier: Earlier, log: DataFrame | None, as_of_ms: int) -> DataFrame:
    """The lag of the earlier positions: `lag_then` and `wait_then` at their time, `remaining` at as_of_ms."""
    keys = list(GROUP_PARTITION)
    if log is None:
        unknown = {name: sf.lit(None).cast("bigint") for name in ("lag_then", "wait_then", "remaining")}
        return earlier.positions.select(*keys).withColumns(unknown)
    # A span of two steps that end at these times.
    between_ms = as_of_ms - earlier.at_ms
    span = Span(earlier.at_ms - between_ms, as_of_ms, between_ms)
    both = {"first_step": sf.lit(0), "last_step": sf.lit(1)}
    then, now = sf.col("step") == 0, sf.col("step") == 1
    return (
        lag_over_time(earlier.positions.select(*keys, "committed_offset").withColumns(both), log, span)
        .groupBy(*keys)
        .agg(
            sf.max(sf.when(then, sf.col("record_lag"))).alias("lag_then"),
            sf.max(sf.when(then, sf.col("lag_ms"))).alias("wait_then"),
            sf.max(sf.when(now, sf.col("record_lag"))).alias("remaining"),
        )
    )


def group_changes(table: DataFrame) -> DataFrame:
    """Return one row per group of the table: totals of then and now, and its new and gone partitions."""
    return table.groupBy("group").agg(
        sf.sum("record_lag_before").alias("record_lag_before"),
        sf.max("lag_ms_before").alias("lag_ms_before"),
        sf.sum("read_records").alias("read_records"),
        sf.count_if(sf.col("change") == NEW).alias("new_partitions"),
        sf.count_if(sf.col("change") == GONE).alias("gone_partitions"),
        sf.count("*").alias("partitions"),
    )
