"""Which lags and waits the tables and charts need of topics, so that readers look up no more than these."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as sf

from korvet.spark.tables.views import GROUP_PARTITION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

Starts = dict[str, dict[int, int]]
"""Offsets by topic and partition."""
TopicPartition = tuple[str, int]
UNKNOWN_MS: Final = -1
"""The moment of a commit without a time. Nobody looks up what had been appended by then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is needed of one partition.

    lags: moments in ms, each with the largest and the smallest offset whose lag at that moment is needed.
    waits: offsets whose first unread record is needed, with its timestamp.
    """

    lags: dict[int, tuple[int, int]] = field(default_factory=dict)
    waits: set[int] = field(default_factory=set)

    @property
    def start(self) -> int:
        """The smallest offset."""
        return max(0, min([*self.waits, *(smallest for _, smallest in self.lags.values())], default=0))


@dataclass(frozen=True)
class Needs:
    """Offsets whose lag is needed, as frames: with topic, partition, committed_offset.

    lags: also with at_ms, the moment of the lag, and read_to: without a record at or after it, the lag does
    not matter; null if it always does. waits: those of them whose wait is needed to the millisecond.
    """

    lags: DataFrame
    waits: DataFrame

    @classmethod
    def of_commits(cls, commits: DataFrame) -> Needs:
        """Return what the lag and the status of groups need, by the last commits of each partition.

        commits: GROUP_PARTITION, committed_offset, commit_ms and src_offset, without tombstones. While a
        partition has no unread record, its earlier lags don't matter for its status.
        """
        newest = sf.max_by("committed_offset", "src_offset").over(Window.partitionBy(*GROUP_PARTITION))
        placed = commits.withColumn("read_to", newest)
        at_ms = sf.coalesce("commit_ms", sf.lit(UNKNOWN_MS).cast("bigint"))
        lags = placed.select("topic", "partition", "committed_offset", at_ms.alias("at_ms"), "read_to")
        return cls(lags, placed.select("topic", "partition", sf.col("read_to").alias("committed_offset")))

    def with_lags(self, positions: DataFrame) -> Needs:
        """Return these needs, and lags at any moments: topic, partition, committed_offset, at_ms."""
        columns = ("topic", "partition", "committed_offset", "at_ms")
        lags = positions.select(*columns, sf.lit(None).cast("bigint").alias("read_to"))
        return replace(self, lags=self.lags.union(lags))

    def with_waits(self, positions: DataFrame) -> Needs:
        """Return these needs, and the waits of the offsets in a frame: topic, partition, committed_offset."""
        offsets = positions.select("topic", "partition", "committed_offset")
        return replace(self, waits=self.waits.union(offsets))

    def with_state(self, state: DataFrame, moments: Sequence[int]) -> Needs:
        """Return these needs, and those of the offsets in a frame: their waits, and their lags at moments."""
        needs = self.with_waits(state)
        for moment in moments:
            needs = needs.with_lags(state.withColumn("at_ms", sf.lit(moment).cast("bigint")))
        return needs

    def with_all_waits(self) -> Needs:
        """Return these needs with a wait for each offset that has a lag."""
        return self.with_waits(self.lags)

    @cached_property
    def starts(self) -> Starts:
        """The offset of each partition from which records are needed to count every lag."""
        return smallest_offsets(self.lags)

    def asked(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, Asked]:
        """Return what is needed of each partition. ends: the log ends of those that exist."""
        found: dict[TopicPartition, Asked] = defaultdict(Asked)
        waits = self.waits.withColumn("wait_at", sf.col("committed_offset"))
        asked = self.lags.unionByName(waits, allowMissingColumns=True)
        rows = asked.groupBy("topic", "partition", "at_ms", "wait_at").agg(
            sf.max("committed_offset").alias("largest"),
            sf.min("committed_offset").alias("smallest"),
            sf.min(sf.coalesce("read_to", sf.lit(-1))).alias("read_to"),
        )
        for row in rows.collect():
            place = (row["topic"], row["partition"])
            if place in ends and row["wait_at"] is not None:
                found[place].waits.add(row["wait_at"])
            elif place in ends and row["read_to"] < ends[place]:
                found[place].lags[row["at_ms"]] = (row["largest"], row["smallest"])
        return dict(found)


def first_bursts(commits: DataFrame) -> DataFrame:
    """Return where the rates of partitions begin (korvet.spark.tables.drain), as for Needs.with_lags.

    commits: of health.recent_commits.
    """
    first = sf.min_by(sf.struct("committed_offset", "commit_ms"), "src_offset").alias("first")
    at_ms = sf.coalesce("first.commit_ms", sf.lit(UNKNOWN_MS).cast("bigint")).alias("at_ms")
    return (
        commits.where("is_burst")
        .groupBy(*GROUP_PARTITION)
        .agg(first)
        .select("topic", "partition", "first.committed_offset", at_ms)
    )


def smallest_offsets(commits: DataFrame) -> Starts:
    """Return, for each committed partition, the offset from which records are needed to count every lag."""
    starts: Starts = defaultdict(dict)
    smallest = commits.groupBy("topic", "partition").agg(sf.min("committed_offset").alias("start"))
    for row in smallest.collect():
        # A partition with only tombstones has no committed offset.
        starts[row["topic"]][row["partition"]] = max(0, row["start"] or 0)
    return dict(starts)
