"""The tables of korvet.spark.tables.catalog as lazy frames.

tables = Tables(source, log, as_of_ms)
tables.view("group_status").show()
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as sf

from korvet.spark.tables import anomalies, decode, health, membership, queues, views
from korvet.spark.tables.catalog import NEED_RECORDS, TABLES, Table
from korvet.spark.tables.health import Rules
from korvet.spark.tables.needs import Needs, first_bursts
from korvet.spark.tables.readers import SIZES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame

    from korvet.spark.session.tuning import Keep


class Views(ABC):
    """Tables that are computed from commits and group states, which a subclass supplies.

    Lag and status also need the topics' logs and the ends of partitions.
    """

    @property
    @abstractmethod
    def _offset_commits(self) -> DataFrame: ...

    @property
    @abstractmethod
    def _last_commits(self) -> DataFrame:
        """The commits that the status of partitions depends on (health.recent_history), at least."""

    @property
    @abstractmethod
    def _states(self) -> DataFrame: ...

    def __init__(
        self,
        log: DataFrame | None,
        as_of_ms: int,
        ends: DataFrame | None,
        rules: Rules | None,
        pending: DataFrame | None = None,
        sizes: DataFrame | None = None,
        share_queues: DataFrame | None = None,
    ) -> None:
        self._log = None if log is None else views.appended_until(views.as_runs(log), as_of_ms)
        self._as_of_ms = as_of_ms
        self._rules = rules or Rules()
        self._ends = ends
        self._pending = pending
        self._sizes = sizes
        self._share_queues = share_queues
        self._kept: frozenset[str] = frozenset()

    def needs(self) -> Needs:
        """Return what lag and status need of the topics' logs."""
        commits = self._window
        now_ms, first = sf.lit(self._as_of_ms).cast("bigint"), sf.lit(0).cast("bigint")
        from_start = self._uncommitted.withColumns({"committed_offset": first, "at_ms": now_ms})
        needs = Needs.of_commits(commits).with_lags(from_start).with_lags(first_bursts(commits))
        if self._share_queues is None:
            return needs
        marks = queues.positions(self._share_queues).withColumn("at_ms", now_ms)
        return needs.with_lags(marks).with_waits(marks.where("is_first"))

    def looked_up(self, needs: Needs) -> Collection[str]:
        """Return the topics that these tables depend on, beside `__consumer_offsets`."""
        return {*needs.starts, *(() if self._share_queues is None else (queues.SHARE_STATE_TOPIC,))}

    def with_logs(self, log: DataFrame, ends: DataFrame | None = None) -> Self:
        """Return the same tables with the logs that `needs` depends on, and the ends of partitions."""
        counting = copy.copy(self)
        counting._log, counting._ends = views.appended_until(views.as_runs(log), self._as_of_ms), ends
        return counting

    @property
    def names(self) -> list[str]:
        """The tables of TABLES that can be computed."""
        return [name for name in TABLES if self._log is not None or name not in NEED_RECORDS]

    @property
    def empty(self) -> Collection[str]:
        """Tables that have no rows, known without computing them."""
        looked_up = {
            "pending_offsets": self._pending,
            "topic_sizes": self._sizes,
            "queues": self._share_queues,
        }
        return [name for name, frame in looked_up.items() if frame is None]

    def view(self, name: str) -> DataFrame:
        """Return one table of TABLES. Raises KeyError for another name, or if the table needs `log`."""
        table = TABLES[name]
        frame: DataFrame = self._lag if name in ("record_lag", "time_lag") else getattr(self, f"_{name}")
        return shaped(frame, table)

    def share(self, keep: Keep) -> None:
        """Compute the frames that several tables share once, as `keep` does (tuning.keeping).

        Tables with logs share what the same tables shared without logs.
        """
        for name in self._shared:
            if name not in self._kept:
                self.__dict__[name] = keep(getattr(self, name))
                self._kept |= {name}

    @property
    def _shared(self) -> list[str]:
        """The properties of these frames, each before those that are computed from it."""
        lag = ["_lag"] if "record_lag" in self.names else []
        waiting = ["_queues"] if lag and self._share_queues is not None else []
        return ["_offset_commits", "_states", "_current_offsets", "_window", *lag, *waiting]

    def create_views(self, prefix: str = "") -> None:
        """Create a temporary view for SQL of each available table, named prefix + table name."""
        for name in self.names:
            self.view(name).createOrReplaceTempView(prefix + name)

    @cached_property
    def _current_states(self) -> DataFrame:
        return membership.current_groups(self._states)

    @cached_property
    def _current_offsets(self) -> DataFrame:
        return views.current_offsets(self._offset_commits)

    @cached_property
    def _members(self) -> DataFrame:
        return membership.members(self._states)

    @cached_property
    def _window(self) -> DataFrame:
        return health.recent_commits(self._last_commits, self._rules.window_commits)

    @cached_property
    def _uncommitted(self) -> DataFrame:
        return membership.uncommitted_partitions(self._current_states, self._window)

    @cached_property
    def _pending_offsets(self) -> DataFrame:
        if self._pending is None:
            pending = self._offset_commits.where(sf.lit(False))
        else:
            pending = decode.offset_commits(self._pending.where(decode.not_after(self._as_of_ms)))
        return views.pending_offsets(pending, self._offset_commits, self._as_of_ms)

    @cached_property
    def _topic_sizes(self) -> DataFrame:
        spark = self._offset_commits.sparkSession
        sizes = spark.createDataFrame([], SIZES) if self._sizes is None else self._sizes
        return sizes.withColumn("as_of_ts", sf.timestamp_millis(sf.lit(self._as_of_ms)))

    @cached_property
    def _lag(self) -> DataFrame:
        return health.partition_lag(
            self._window, self._topic_logs, self._as_of_ms, self._ends, self._uncommitted
        )

    @cached_property
    def _topic_logs(self) -> DataFrame:
        if self._log is None:
            raise KeyError("lag and status need the topics' logs")
        return self._log

    @cached_property
    def _commit_rate(self) -> DataFrame:
        return views.commit_rate(self._offset_commits)

    @cached_property
    def _group_generations(self) -> DataFrame:
        return dated(membership.group_generations(self._states))

    @cached_property
    def _rebalances(self) -> DataFrame:
        return membership.rebalances(self._group_generations)

    @cached_property
    def _partition_status(self) -> DataFrame:
        return health.partition_status(self._lag, self._as_of_ms, self._rules)

    @cached_property
    def _queues(self) -> DataFrame:
        found = self._share_queues
        if found is None:
            found = queues.as_frame(self._offset_commits.sparkSession, ())
        limit_ms = self._rules.behind_ms
        return queues.queue_status(found, self._topic_logs, self._as_of_ms, self._ends, limit_ms)

    @cached_property
    def _group_status(self) -> DataFrame:
        partitions = self._partition_status
        if self._share_queues is not None:
            waiting = self._queues.withColumnRenamed("depth", "record_lag")
            partitions = partitions.unionByName(waiting, allowMissingColumns=True)
        return health.group_status(partitions, self._current_states, self._as_of_ms)

    @cached_property
    def _stale_groups(self) -> DataFrame:
        return health.stale_groups(self._current_offsets, self._current_states, self._as_of_ms, self._rules)

    @cached_property
    def _expiring_offsets(self) -> DataFrame:
        return health.expiring_offsets(
            self._current_offsets, self._current_states, self._as_of_ms, self._rules
        )

    @cached_property
    def _topic_consumers(self) -> DataFrame:
        return membership.topic_consumers(self._current_offsets, self._members)

    @cached_property
    def _anomalies(self) -> DataFrame:
        moved = anomalies.moves(self._offset_commits)
        if self._ends is not None:
            return anomalies.anomalies(moved, self._ends, self._rules)
        ends = None if self._log is None else log_ends(self._log)
        return anomalies.anomalies(moved, ends, self._rules, complete=False)


class _AllTables(Views):
    """All tables of one `__consumer_offsets`, as of one moment. Frames are lazy: persist those used often.

    rows: the records of the offsets topic. Those after as_of_ms don't count. log: those of consumed topics
    (topic, partition, offset, timestamp), or runs of them (runs.RUNS), from each partition's oldest commit in
    the window on; without it lag and status raise KeyError. ends: the existing partitions (see readers.ENDS);
    without it the ends come from the log. pending: records of open transactions in the offsets topic; without
    them no offset is pending. sizes: of the topics' partitions (readers.SIZES); without them topic_sizes is
    empty. names: those of topics by ID, for assignments of newer groups; an ID without one stays.
    share_queues: what a reader tells of the share groups (queues.QUEUES); without them `queues` is empty.
    """

    def __init__(
        self,
        rows: DataFrame,
        log: DataFrame | None,
        as_of_ms: int,
        *,
        ends: DataFrame | None = None,
        rules: Rules | None = None,
        pending: DataFrame | None = None,
        sizes: DataFrame | None = None,
        names: Mapping[str, str] | None = None,
        share_queues: DataFrame | None = None,
    ) -> None:
        super().__init__(log, as_of_ms, ends, rules, pending, sizes, share_queues)
        self._rows = rows
        self._names = names or {}


class Tables(_AllTables):
    """All tables from records in the columns of Spark's Kafka source."""

    @cached_property
    def _source(self) -> DataFrame:
        return self._rows.where(decode.not_after(self._as_of_ms))

    @cached_property
    def _offset_commits(self) -> DataFrame:
        return dated(decode.offset_commits(self._source))

    @cached_property
    def _last_commits(self) -> DataFrame:
        return decode.newest_commits(self._source, self._rules.window_commits)

    @cached_property
    def _current_offsets(self) -> DataFrame:
        return views.current_offsets(decode.newest_commits(self._source))

    @cached_property
    def _states(self) -> DataFrame:
        records = decode.group_records(self._source)
        return membership.group_states(membership.with_topic_names(records, self._names))

    @cached_property
    def _group_records(self) -> DataFrame:
        return dated(decode.group_records(self._source))

    @cached_property
    def _quarantine(self) -> DataFrame:
        return dated(decode.quarantine(self._source))


class DecodedTables(_AllTables):
    """All tables from rows of decode.decoded, which should be cached."""

    @property
    def _shared(self) -> list[str]:
        return [name for name in super()._shared if name != "_offset_commits"]

    @cached_property
    def _offset_commits(self) -> DataFrame:
        return dated(decode.decoded_commits(self._rows))

    @cached_property
    def _last_commits(self) -> DataFrame:
        return health.recent_history(self._offset_commits, self._rules.window_commits)

    @cached_property
    def _states(self) -> DataFrame:
        return membership.group_states(membership.with_topic_names(self._group_records, self._names))

    @cached_property
    def _group_records(self) -> DataFrame:
        return dated(decode.decoded_groups(self._rows))

    @cached_property
    def _quarantine(self) -> DataFrame:
        return dated(decode.decoded_quarantine(self._rows))


def log_ends(runs: DataFrame) -> DataFrame:
    """Return the ends of partitions by their runs. Runs don't determine the starts."""
    unknown = sf.lit(None).cast("bigint")
    end = sf.max(sf.col("offset") + sf.col("records"))
    ends = runs.groupBy("topic", "partition").agg(end.alias("end_offset"))
    return ends.withColumns({"start_offset": unknown, "known_from": unknown})


def shaped(frame: DataFrame, table: Table) -> DataFrame:
    """Return the frame with the table's columns and types."""
    return frame.select(*(sf.col(column.name).cast(column.type) for column in table.columns))


def dated(frame: DataFrame) -> DataFrame:
    """Return the frame with `src_date`, the day (UTC) that partitions a stored history."""
    return frame.withColumn("src_date", views.utc_day(sf.col("src_ts")))
