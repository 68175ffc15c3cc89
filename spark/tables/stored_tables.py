"""The tables of korvet.spark.tables.catalog, stored in a folder and updated incrementally.

    stored = StoredTables(spark, "/data/groups")
    stored.update(
        stream,
        as_of_ms,
        logs=reader.logs,
        ends=reader.ends,
    )
    stored.read("group_status")

A query with a checkpoint reads each record of the stream once. Histories grow, partitioned by day; only the
row of a group's newest epoch changes if assignments of this epoch follow. The state that later rows depend on
is stored separately and is small, so no history is read again. Every batch writes rows with its number, from
the state of the previous batch. An interrupted batch runs again, and its rows count once. Spark plans a batch
in the checkpoint before it runs, so only a batch that was planned before an update may have rows already.
korvet.spark.tables.store keeps the rows.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import date
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from korvet.spark.session.folders import Folder
from korvet.spark.session.together import together
from korvet.spark.session.tuning import gathered, keeping, tuned_for
from korvet.spark.source.errors import SourceError
from korvet.spark.tables import anomalies, decode, health, membership, queues, views
from korvet.spark.tables.batch_tables import Views, dated, shaped
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.health import Rules
from korvet.spark.tables.kafka_offsets import NOT_READ, Finding
from korvet.spark.tables.membership import IS_ASSIGNED_ANEW, IS_NEW
from korvet.spark.tables.questions import QUESTIONS, question_sql
from korvet.spark.tables.states import COMMITS, GROUPS, MEMBERS, NAMES, SHARES, State, States, numbers
from korvet.spark.tables.store import AS_OF_DATE, BATCH, STATE, Store, day_of
from korvet.spark.tables.views import GROUP_PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from korvet.spark.tables.needs import Needs
    from korvet.spark.tables.questions import Objectives

    LogsOf = Callable[[SparkSession, Needs, int], DataFrame]
    EndsOf = Callable[[SparkSession, Collection[str]], DataFrame]
    Lookup = Callable[[SparkSession], DataFrame | None]
    FindingsOf = Callable[[SparkSession, Collection[str], int], Sequence[Finding]]
    QueuesOf = Callable[[SparkSession, Sequence[queues.Place], int], DataFrame]
    NamesOf = Callable[[SparkSession, Collection[str]], Mapping[str, str]]

CHECKPOINT: Final = "_checkpoint"
# What Spark writes into a checkpoint first.
QUERY: Final = "metadata"
# The folder in a checkpoint with a file for each batch that was planned.
PLANNED: Final = "offsets"
# The table that makes a snapshot complete.
LAST_WRITTEN: Final = "group_status"
# Columns that the states of groups don't need.
NO_STATE: Final = ("key", "value", "data", "reason")
# A commit in a transaction appears late; a later tombstone still removes it. No transaction lasts that long.
KEPT_TOMBSTONES_MS: Final = 24 * 3_600_000


class StoredTables:
    """Tables in a folder on any of Spark's file systems. Only one process at a time may update them."""

    def __init__(self, spark: SparkSession, folder: str, rules: Rules | None = None) -> None:
        self._spark = spark
        self._folder = Folder(spark, folder)
        self._states = States(self._folder.child(STATE))
        self._rules = rules or Rules()

    def update(
        self,
        source: DataFrame,
        as_of_ms: int,
        *,
        logs: LogsOf | None = None,
        ends: EndsOf | None = None,
        pending: Lookup | None = None,
        sizes: Lookup | None = None,
        names: NamesOf | None = None,
        later: Lookup | None = None,
        findings: FindingsOf | None = None,
        share_queues: QueuesOf | None = None,
    ) -> Sequence[Finding]:
        """Process the new records of `source`, a stream of `__consumer_offsets`, and add a snapshot.

        logs: returns the logs of topics as of a moment (readers.TopicReader.logs); without it there is no lag
        and no status. ends: returns the existing partitions of topics with their starts and ends; without it,
        no commit is known to be outside the log. pending: returns the records of open transactions, None if
        they can't be told; without it no offset is pending. sizes: returns those of the topics' partitions,
        or None; without it topic_sizes gets no rows. names: returns the names of topics by ID, for the
        assignments of newer groups; an ID without a name stays. later: returns the records of
        `__consumer_offsets` that count but that the stream has only when earlier transactions end; their
        commits are in the snapshot. findings: returns the findings about the cluster and these consumed
        topics, which are stored with the snapshot, and returned. share_queues: returns what is known of
        partitions of share groups (readers.TopicReader.queues); without it queues gets no rows. All get the
        session to use. Raises SourceError if the folder has lost its checkpoint or is of an earlier release,
        JarsMissing if the session lacks Delta, and the error of a failed query; a later call continues from
        there.
        """
        location, rules = self._folder.location, self._rules
        checkpoint = self._folder.child(CHECKPOINT)
        # A new query counts its batches from 0 again: those that the tables have would be skipped.
        if not checkpoint.child(QUERY).exists() and self._states.newest() is not None:
            raise SourceError(
                f"the tables in {location} have no checkpoint any more: restore the folder as a whole, or "
                "begin again in another one"
            )
        Store.begin(self._folder)
        attempted = max(numbers(checkpoint.child(PLANNED)), default=-1)
        self._store = Store(self._folder, attempted)

        # Spark Connect sends this function to the server. A session can't be sent.
        def take(batch: DataFrame, number: int) -> None:
            tables = StoredTables(batch.sparkSession, location, rules)
            tables._store = Store(tables._folder, attempted)
            tables._take(batch, number, as_of_ms, ends, names)

        query = (
            source.writeStream.foreachBatch(take)
            .option("checkpointLocation", checkpoint.location)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = self._add_snapshot(
            as_of_ms, _Lookups(logs, ends, pending, sizes, later, findings, share_queues)
        )
        self._store.finish()
        return found

    @property
    def spark(self) -> SparkSession:
        """The session that reads and writes the tables."""
        return self._spark

    def newest_snapshot(self, until_ms: int | None = None) -> int | None:
        """Return the time of the newest snapshot with the status of groups, in ms; None without one.

        until_ms: the latest time that counts.
        """
        table, at_ms = TABLES[LAST_WRITTEN], sf.unix_millis("as_of_ts")
        last_day = date.max if until_ms is None else day_of(until_ms)
        rows = self._store.rows(table)
        if until_ms is not None:
            rows = rows.where(at_ms <= until_ms)
        for day in sorted(self._store.days(table), reverse=True):
            if day <= last_day:
                last = rows.where(sf.col(AS_OF_DATE) == day).agg(sf.max(at_ms).alias("ms"))
                newest: int | None = last.collect()[0]["ms"]
                if newest is not None:
                    return newest
        return None

    def findings(self, as_of_ms: int) -> Sequence[Finding]:
        """Return the findings about the cluster that are stored with the newest snapshot, of this time."""
        note = self._states.snapshot_note(as_of_ms)
        if note is None:
            message = (
                "hanging transactions and missing rights are unknown: the refresh after this snapshot was "
                "interrupted, and the next one looks for them"
            )
            return [Finding(NOT_READ, message)]
        return [Finding(**each) for each in json.loads(note)]

    def read(self, name: str, as_of_ms: int | None = None) -> DataFrame:
        """Return one table of TABLES: all rows of histories and snapshots, current rows of the others.

        as_of_ms: only this snapshot, of a table of snapshots. Rows of an incomplete batch are left out, and
        current rows are those of the last update that wrote the table. Raises KeyError for another name.
        """
        table = TABLES[name]
        rows = self._store.rows(table)
        if table.kind == "current":
            return shaped(rows, table)
        if table.kind == "snapshot":
            if as_of_ms is not None:
                at_ts = sf.timestamp_millis(sf.lit(as_of_ms))
                rows = rows.where(
                    (sf.col(AS_OF_DATE) == sf.lit(day_of(as_of_ms))) & (sf.col("as_of_ts") == at_ts)
                )
            return shaped(rows, table)
        done = self._states.newest()
        kept = rows.where(sf.col(BATCH) <= sf.lit(-1 if done is None else done))
        if name == "commit_rate":
            kept = kept.groupBy("group", "minute").agg(sf.sum("commits").alias("commits"))
        return shaped(kept, table)

    def compact(self, as_of_ms: int) -> int:
        """Merge the files that updates wrote for the days before that of `as_of_ms`, table by table.

        Returns the number of days merged in all tables. The files that were replaced stay for 7 days, for
        queries that run.
        """
        return self._store.compact(as_of_ms)

    def create_views(self, prefix: str = "", objectives: Objectives | None = None) -> None:
        """Create temporary views for SQL, named prefix + name, of all tables and of all QUESTIONS.

        Their rows are those at the time of this call. objectives: the numbers in the questions.
        """
        for name in TABLES:
            self.read(name).createOrReplaceTempView(prefix + name)
        for name in QUESTIONS:
            answer = self._spark.sql(question_sql(name, prefix, objectives))
            answer.createOrReplaceTempView(prefix + name)

    # A batch

    def _take(
        self, batch: DataFrame, number: int, as_of_ms: int, ends: EndsOf | None, names: NamesOf | None
    ) -> None:
        """Add a batch to all tables, unless it is complete. Raises SourceError without the former state."""
        complete = self._states.complete()
        if number and not complete & {number - 1, number}:
            raise SourceError(
                f"the tables in {self._folder.location} lack the state after batch {number - 1}, which their "
                "checkpoint has: restore the folder as a whole, or begin again in another one"
            )
        before = self._states.after(number - 1 if number - 1 in complete else None)
        if number not in complete:
            rows = decode.decoded(batch).persist()
            try:
                written = self._take_rows(rows, before, number, as_of_ms, ends, names)
            finally:
                rows.unpersist()
            self._states.finish(number, before, written)
        if number - 2 in complete:
            self._states.forget(number - 2, before)

    def _take_rows(
        self,
        rows: DataFrame,
        before: State,
        number: int,
        as_of_ms: int,
        ends: EndsOf | None,
        names: NamesOf | None,
    ) -> Collection[str]:
        """Add the decoded records of a batch. Returns the states that it changed."""
        spark, found, written = rows.sparkSession, _counted(rows), []
        if found.commits:
            with tuned_for(spark, found.commits + before.count(spark, COMMITS)):
                # Looked up after the commits were read, so that no end is before a commit.
                partitions = None if ends is None else ends(spark, found.topics)
                self._take_commits(rows, before, number, as_of_ms, partitions)
            written += [COMMITS]
        if found.of_groups:
            known = {} if names is None else names(spark, found.topic_ids)
            with tuned_for(spark, found.of_groups + before.count(spark, GROUPS, MEMBERS)):
                self._take_groups(rows, before, number, known, has_shares=found.has_shares)
            written += [GROUPS, MEMBERS, *([SHARES] if found.has_shares else [])]
        if found.refused:
            with tuned_for(spark, found.refused):
                self._add("quarantine", number, dated(decode.decoded_quarantine(rows)))
        return written

    def _take_commits(
        self, rows: DataFrame, before: State, number: int, as_of_ms: int, partitions: DataFrame | None
    ) -> None:
        """Add the commits of a batch. partitions: those of its topics (readers.ENDS)."""
        spark, new = rows.sparkSession, dated(decode.decoded_commits(rows))
        known = dated(before.read(spark, COMMITS, TABLES["offset_commits"].schema))
        # All that follows needs no other exchange of commits.
        both = gathered(_marked(known, new), *GROUP_PARTITION).persist()
        try:
            commits = both.where(IS_NEW)
            odd = anomalies.anomalies(anomalies.moves(both), partitions, self._rules)
            # N intervals need N + 1 commits.
            count = max(self._rules.window_commits, anomalies.USUAL_INTERVALS + 1)
            recent = health.recent_history(both, count).where(~sf.col("tombstone") | _is_recent(as_of_ms))
            together(
                spark,
                [
                    partial(self._add, "offset_commits", number, commits),
                    partial(self._add, "commit_rate", number, views.commit_rate(commits)),
                    partial(self._add, "anomalies", number, odd.where(IS_NEW)),
                    partial(self._states.keep, recent.drop(IS_NEW), COMMITS, number),
                ],
            )
        finally:
            both.unpersist()

    def _take_groups(
        self, rows: DataFrame, before: State, number: int, names: Mapping[str, str], *, has_shares: bool
    ) -> None:
        """Add the records on groups of a batch. names: those of topics by ID. has_shares: whether there are
        partitions of share groups.
        """
        spark = rows.sparkSession
        records = membership.with_topic_names(decode.decoded_groups(rows), names)
        needed = records.drop(*NO_STATE)
        known = before.read(spark, GROUPS, needed.schema)
        both = gathered(_marked(known, needed), "group").persist()
        changed = membership.group_states(both).persist()
        try:
            generations = dated(membership.group_generations(changed))
            seen = membership.members_seen(changed)
            earlier = before.read(spark, MEMBERS, seen.schema)
            passes = earlier.withColumn("pass", sf.lit(0)).unionByName(seen.withColumn("pass", sf.lit(1)))
            members = membership.merged_members(gathered(passes, "group", "member_id"))
            rebalances = membership.rebalances(generations)
            kept = partial(self._keep_shares, records, before, number)
            together(
                spark,
                [
                    *([kept] if has_shares else []),
                    partial(self._add, "group_records", number, dated(records)),
                    partial(self._add_generations, number, generations),
                    partial(self._add, "rebalances", number, rebalances.where(IS_NEW)),
                    partial(self._states.keep, members, MEMBERS, number),
                    partial(self._states.keep, membership.group_seed(both.drop(IS_NEW)), GROUPS, number),
                ],
            )
        finally:
            changed.unpersist()
            both.unpersist()

    def _keep_shares(self, records: DataFrame, before: State, number: int) -> None:
        """Keep the newest partitions of each share group."""
        new = queues.share_partitions(records)
        known = before.read(records.sparkSession, SHARES, queues.SHARES)
        self._states.keep(queues.share_partitions(known.unionByName(new)), SHARES, number)

    def _add_generations(self, number: int, generations: DataFrame) -> None:
        """Add the new states of groups. An earlier state gets the assignments that only this batch has."""
        self._add("group_generations", number, generations.where(IS_NEW))
        revised = generations.where(~sf.col(IS_NEW) & sf.col(IS_ASSIGNED_ANEW))
        self._store.revise(TABLES["group_generations"], "owners", revised)

    # A snapshot

    def _add_snapshot(self, as_of_ms: int, lookups: _Lookups) -> Sequence[Finding]:
        spark, number = self._spark, self._states.newest()
        state = self._states.after(number)
        read, ends = lookups.logs, lookups.ends
        size = state.count(spark, *NAMES)
        with ExitStack() as cached:
            with tuned_for(spark, size):
                later = None if lookups.later is None else lookups.later(spark)
                keep = cached.enter_context(keeping())
                commits = keep(gathered(self._commits_now(state, as_of_ms, later), *GROUP_PARTITION))
                more = [
                    None if look_up is None else look_up(spark)
                    for look_up in (lookups.pending, lookups.sizes)
                ]
                more += [self._queues_now(state, as_of_ms, lookups.share_queues)]
                tables = _StateViews(state, commits, as_of_ms, self._rules, *more)
                tables.share(keep)
                needs = tables.needs()
                unread = None if read is None else keep(read(spark, needs, as_of_ms))
                look = lookups.findings
                found = [] if look is None else look(spark, tables.looked_up(needs), as_of_ms)
                again = self._states.begin_snapshot(as_of_ms, json.dumps([asdict(each) for each in found]))
            if unread is not None:
                size += unread.count()
                tables = tables.with_logs(unread, None if ends is None else ends(spark, needs.starts))
            with tuned_for(spark, size):
                tables.share(keep)
                self._write_snapshot(tables, as_of_ms, number, again=again, is_whole=later is None)
        return found

    def _write_snapshot(
        self, tables: Views, as_of_ms: int, number: int | None, *, again: bool, is_whole: bool
    ) -> None:
        """The status of groups is written last: it makes a snapshot the newest one.

        number: the newest batch, None before the first. again: as for Store.add_snapshot. is_whole: whether
        all rows of the tables are from batches.
        """
        store = self._store
        known = [TABLES[name] for name in tables.names if name not in tables.empty]
        snapshots = {
            table.name: partial(store.add_snapshot, table, as_of_ms, tables.view(table.name), again=again)
            for table in known
            if table.kind == "snapshot"
        }
        last = [snapshots.pop(LAST_WRITTEN)] if LAST_WRITTEN in snapshots else []
        writes = list(snapshots.values())
        if number is not None or not is_whole:
            writes += [
                partial(store.replace, table, number if is_whole else None, tables.view(table.name))
                for table in known
                if table.kind == "current"
            ]
        together(self._spark, writes)
        together(self._spark, last)

    def _queues_now(self, state: State, as_of_ms: int, look_up: QueuesOf | None) -> DataFrame | None:
        """What is known of share groups; None without any."""
        if look_up is None or SHARES not in state.writers:
            return None
        records = state.read(self._spark, SHARES, queues.SHARES)
        return look_up(self._spark, queues.places(records), as_of_ms)

    def _commits_now(self, state: State, as_of_ms: int, later: DataFrame | None) -> DataFrame:
        """The last commits of each partition. later: records that the stream does not have yet."""
        commits = state.read(self._spark, COMMITS, TABLES["offset_commits"].schema)
        if later is None:
            return commits
        more = dated(decode.offset_commits(later.where(decode.not_after(as_of_ms))))
        return commits.unionByName(more.select(*commits.columns))

    # Files

    @cached_property
    def _store(self) -> Store:
        return Store.of(self._folder) or Store(self._folder)

    def _add(self, name: str, number: int, frame: DataFrame) -> None:
        """Write a batch's rows of a history."""
        self._store.add(TABLES[name], number, frame)


@dataclass(frozen=True, slots=True)
class _Lookups:
    """What an update looks up outside the topic that it follows."""

    logs: LogsOf | None = None
    ends: EndsOf | None = None
    pending: Lookup | None = None
    sizes: Lookup | None = None
    later: Lookup | None = None
    findings: FindingsOf | None = None
    share_queues: QueuesOf | None = None


class _StateViews(Views):
    """The current tables, from the state between batches."""

    def __init__(
        self,
        state: State,
        commits: DataFrame,
        as_of_ms: int,
        rules: Rules,
        pending: DataFrame | None = None,
        sizes: DataFrame | None = None,
        share_queues: DataFrame | None = None,
    ) -> None:
        super().__init__(None, as_of_ms, None, rules, pending, sizes, share_queues)
        self._state = state
        self._commits = commits

    @property
    def _offset_commits(self) -> DataFrame:
        return self._commits

    @property
    def _last_commits(self) -> DataFrame:
        return self._commits

    @cached_property
    def _states(self) -> DataFrame:
        needed = StructType([field for field in decode.GROUP_TYPE if field.name not in NO_STATE])
        return membership.group_states(self._read(GROUPS, needed))

    @cached_property
    def _members(self) -> DataFrame:
        seen = self._read(MEMBERS, membership.members_seen(self._states).schema)
        return membership.with_activity(seen, self._states)

    def _read(self, name: str, schema: StructType) -> DataFrame:
        return gathered(self._state.read(self._commits.sparkSession, name, schema), "group")


def _is_recent(as_of_ms: int) -> Column:
    """Whether a late commit may be older than a tombstone."""
    written_ms = sf.coalesce(sf.unix_millis("src_ts"), sf.lit(as_of_ms))
    return written_ms >= as_of_ms - KEPT_TOMBSTONES_MS


def _marked(known: DataFrame, new: DataFrame) -> DataFrame:
    return known.withColumn(IS_NEW, sf.lit(False)).unionByName(new.withColumn(IS_NEW, sf.lit(True)))


@dataclass(frozen=True, slots=True)
class _Found:
    """What a batch contains: numbers of records, the topics of its commits, and the IDs in assignments."""

    commits: int
    of_groups: int
    refused: int
    has_shares: bool
    topics: Sequence[str]
    topic_ids: Sequence[str]


def _counted(rows: DataFrame) -> _Found:
    """rows: of decode.decoded."""
    is_commit = sf.expr(decode.IS_COMMIT)
    counted = rows.agg(
        sf.count_if(is_commit).alias("commits"),
        sf.count_if(sf.expr(decode.IS_OF_GROUP)).alias("of_groups"),
        sf.count_if(sf.expr(decode.IS_REFUSED)).alias("refused"),
        queues.are_there().alias("has_shares"),
        sf.collect_set(sf.when(is_commit, sf.col("topic"))).alias("topics"),
        membership.topic_ids().alias("topic_ids"),
    )
    return _Found(**counted.collect()[0].asDict())
