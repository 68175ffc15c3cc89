"""The tables of korvet.spark.tables.catalog, stored in a folder as Parquet and updated incrementally.

    stored = StoredTables(spark, "/data/groups")
    stored.update(
        stream,
        as_of_ms,
        records=reader.records,
        ends=reader.ends,
    )
    stored.read("group_status")

A query with a checkpoint reads each record of the stream once. Histories only grow, partitioned by day. The
state that later rows depend on is stored separately and is small, so no history is read again. Every batch
writes files with its number, from the state of the previous batch. An interrupted batch runs again and
replaces its files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from korvet.spark.session.folders import Folder
from korvet.spark.session.tuning import tuned_for
from korvet.spark.tables import anomalies, decode, health, membership, views
from korvet.spark.tables.batch_tables import Views, dated, shaped
from korvet.spark.tables.catalog import NEED_RECORDS, TABLES, Table
from korvet.spark.tables.compaction import COMPACTED, Parts
from korvet.spark.tables.health import Rules
from korvet.spark.tables.membership import IS_NEW
from korvet.spark.tables.questions import QUESTIONS, question_sql
from korvet.spark.tables.readers import smallest_offsets
from korvet.spark.tables.views import GROUP_PARTITION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from korvet.spark.tables.questions import Objectives
    from korvet.spark.tables.readers import Starts

    RecordsFrom = Callable[[SparkSession, Starts], DataFrame]
    EndsOf = Callable[[SparkSession, Collection[str]], DataFrame]
    Lookup = Callable[[SparkSession], DataFrame | None]

CHECKPOINT: Final = "_checkpoint"
STATE: Final = "_state"
# The state between batches. DONE is written last and marks a complete batch.
COMMITS_STATE, GROUPS_STATE, MEMBERS_STATE, DONE = "commits", "groups", "members", "done"
STATES: Final = (COMMITS_STATE, GROUPS_STATE, MEMBERS_STATE)
# Columns that the states of groups don't need.
NO_STATE: Final = ("key", "value", "data", "reason")
BATCH: Final = "batch"
AS_OF_DATE: Final = "as_of_date"
AS_OF_MS: Final = "as_of_ms"
# A commit in a transaction appears late; a later tombstone still removes it. No transaction lasts that long.
KEPT_TOMBSTONES_MS: Final = 24 * 3_600_000


class StoredTables:
    """Tables in a folder on any of Spark's file systems. Only one process at a time may update them."""

    def __init__(self, spark: SparkSession, folder: str, rules: Rules | None = None) -> None:
        self._spark = spark
        self._folder = Folder(spark, folder)
        self._rules = rules or Rules()

    def update(
        self,
        source: DataFrame,
        as_of_ms: int,
        *,
        records: RecordsFrom | None = None,
        ends: EndsOf | None = None,
        pending: Lookup | None = None,
        sizes: Lookup | None = None,
    ) -> None:
        """Process the new records of `source`, a stream of `__consumer_offsets`, and add a snapshot.

        records: returns the topics' records from given offsets on; without it there is no lag and no status.
        ends: returns the existing partitions of topics with their starts and ends; without it, no commit is
        known to be outside the log. pending: returns the records of open transactions, None if they can't be
        told; without it no offset is pending. sizes: returns those of the topics' partitions, or None;
        without it topic_sizes gets no rows. All get the session to use. Raises the error of a failed query; a
        later call continues from there.
        """
        location, rules = self._folder.location, self._rules

        # Spark Connect sends this function to the server. A session can't be sent.
        def take(batch: DataFrame, number: int) -> None:
            StoredTables(batch.sparkSession, location, rules)._take(batch, number, as_of_ms, ends)

        checkpoint = self._folder.child(CHECKPOINT).location
        query = (
            source.writeStream.foreachBatch(take)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self._add_snapshot(as_of_ms, _Lookups(records, ends, pending, sizes))

    @property
    def spark(self) -> SparkSession:
        """The session that reads and writes the tables."""
        return self._spark

    def newest_snapshot(self) -> int | None:
        """Return the time of the newest snapshot with the status of groups, in ms; None without one."""
        rows = self._rows(TABLES["group_status"])
        day = rows.agg(sf.max(AS_OF_DATE).alias("newest")).collect()[0]["newest"]
        last = rows.where(sf.col(AS_OF_DATE) == sf.lit(day)).agg(
            sf.unix_millis(sf.max("as_of_ts")).alias("ms")
        )
        newest: int | None = last.collect()[0]["ms"]
        return newest

    def read(self, name: str, as_of_ms: int | None = None) -> DataFrame:
        """Return one table of TABLES: all rows of histories and snapshots, current rows of the others.

        as_of_ms: only this snapshot, of a table of snapshots. Rows of an incomplete batch are left out.
        Raises KeyError for another name.
        """
        table = TABLES[name]
        done = self._last_batch()
        if table.kind == "current":
            return self._state_views(done, self._commits(done), 0).view(name)
        rows = self._rows(table)
        if table.kind == "snapshot":
            at_ts = sf.timestamp_millis(sf.lit(as_of_ms))
            this = (sf.col(AS_OF_DATE) == sf.to_date(at_ts)) & (sf.col("as_of_ts") == at_ts)
            return shaped(rows if as_of_ms is None else rows.where(this), table)
        kept = rows.where(sf.col(BATCH) <= sf.lit(-1 if done is None else done))
        if name == "commit_rate":
            kept = kept.groupBy("group", "minute").agg(sf.sum("commits").alias("commits"))
        return shaped(kept, table)

    def compact(self, as_of_ms: int) -> int:
        """Merge the files that updates wrote for the days before that of `as_of_ms`, table by table.

        Returns the number of days merged in all tables. Files that were replaced are deleted by the next
        call, so that running queries keep them. No update may run at the same time.
        """
        today = datetime.fromtimestamp(as_of_ms / 1000, UTC).date()
        done, days = self._last_batch(), 0
        for table in TABLES.values():
            parts = self._parts(table)
            if parts is not None and self._folder.child(table.name).exists():
                newest = done if parts.part == BATCH else as_of_ms
                frame = self._files(table.name, _stored_schema(table))
                days += len(parts.compact(frame, today, -1 if newest is None else newest))
        return days

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

    def _take(self, batch: DataFrame, number: int, as_of_ms: int, ends: EndsOf | None) -> None:
        """Add a batch to all tables, unless it is complete."""
        if number not in self._complete():
            spark, batch = batch.sparkSession, batch.persist()
            try:
                records, of_groups = _counted(batch)
                with tuned_for(spark, records):
                    versions = dict(self._versions(number - 1))
                    self._take_commits(spark, batch, number, as_of_ms, ends)
                    versions[COMMITS_STATE] = number
                    if of_groups:
                        self._take_groups(spark, batch, number)
                        versions |= {GROUPS_STATE: number, MEMBERS_STATE: number}
                    self._add("quarantine", number, dated(decode.quarantine(batch)))
            finally:
                batch.unpersist()
            self._mark_done(number, versions)
        self._forget(number - 2)

    def _take_commits(
        self, spark: SparkSession, batch: DataFrame, number: int, as_of_ms: int, ends: EndsOf | None
    ) -> None:
        new = dated(decode.offset_commits(batch))
        known = dated(self._state(spark, COMMITS_STATE, number - 1, TABLES["offset_commits"].schema))
        # All that follows needs no other exchange of commits.
        both = _marked(known, new).repartition(*GROUP_PARTITION).persist()
        try:
            commits = both.where(IS_NEW)
            # Looked up after the commits were read, so that no end is before a commit.
            topics = [row[0] for row in commits.select("topic").distinct().collect()]
            partitions = None if ends is None else ends(spark, topics)
            self._add("offset_commits", number, commits)
            self._add("commit_rate", number, views.commit_rate(commits))
            odd = anomalies.anomalies(anomalies.moves(both), partitions, self._rules)
            self._add("anomalies", number, odd.where(IS_NEW))
            # N intervals need N + 1 commits.
            count = max(self._rules.window_commits, anomalies.USUAL_INTERVALS + 1)
            recent = health.recent_history(both, count).where(~sf.col("tombstone") | _is_recent(as_of_ms))
            self._keep(recent.drop(IS_NEW), COMMITS_STATE, number)
        finally:
            both.unpersist()

    def _take_groups(self, spark: SparkSession, batch: DataFrame, number: int) -> None:
        rows = decode.group_records(batch).persist()
        needed = rows.drop(*NO_STATE)
        both = _marked(self._state(spark, GROUPS_STATE, number - 1, needed.schema), needed)
        states = membership.group_states(both).persist()
        try:
            self._add("group_records", number, dated(rows))
            generations = dated(membership.group_generations(states))
            self._add("group_generations", number, generations.where(IS_NEW))
            self._add("rebalances", number, membership.rebalances(generations).where(IS_NEW))
            seen = membership.members_seen(states)
            known = self._state(spark, MEMBERS_STATE, number - 1, seen.schema)
            passes = known.withColumn("pass", sf.lit(0)).unionByName(seen.withColumn("pass", sf.lit(1)))
            self._keep(membership.merged_members(passes), MEMBERS_STATE, number)
            self._keep(membership.group_seed(both.drop(IS_NEW)), GROUPS_STATE, number)
        finally:
            states.unpersist()
            rows.unpersist()

    # A snapshot

    def _add_snapshot(self, as_of_ms: int, lookups: _Lookups) -> None:
        number = self._last_batch()
        commits = self._commits(number).persist()
        records, ends = lookups.records, lookups.ends
        try:
            starts = {} if records is None else smallest_offsets(commits.where(~sf.col("tombstone")))
            unread = None if records is None else records(self._spark, starts).persist()
            rows = commits.count() + (0 if unread is None else unread.count())
            partitions = None if records is None or ends is None else ends(self._spark, starts)
            with tuned_for(self._spark, rows):
                tables = self._state_views(
                    number, commits, as_of_ms, unread, partitions, *lookups.of_snapshots(self._spark)
                )
                with tables.shared():
                    self._write_snapshot(tables, as_of_ms)
            if unread is not None:
                unread.unpersist()
        finally:
            commits.unpersist()

    def _write_snapshot(self, tables: Views, as_of_ms: int) -> None:
        for name, table in TABLES.items():
            if table.kind == "snapshot" and (tables.has_records or name not in NEED_RECORDS):
                day = sf.to_date("as_of_ts").alias(AS_OF_DATE)
                frame = tables.view(name).select("*", day, sf.lit(as_of_ms).alias(AS_OF_MS))
                _write(frame, self._folder.child(name).location, AS_OF_DATE, AS_OF_MS)

    def _commits(self, number: int | None) -> DataFrame:
        """The last commits of each partition after a batch."""
        done = -1 if number is None else number
        return self._state(self._spark, COMMITS_STATE, done, TABLES["offset_commits"].schema)

    def _state_views(
        self,
        batch: int | None,
        commits: DataFrame,
        as_of_ms: int,
        records: DataFrame | None = None,
        ends: DataFrame | None = None,
        pending: DataFrame | None = None,
        sizes: DataFrame | None = None,
    ) -> Views:
        number = -1 if batch is None else batch
        needed = StructType([field for field in decode.GROUP_TYPE if field.name not in NO_STATE])
        states = membership.group_states(self._state(self._spark, GROUPS_STATE, number, needed))
        seen = self._state(self._spark, MEMBERS_STATE, number, membership.members_seen(states).schema)
        everyone = membership.with_topic_names(
            membership.with_activity(seen, states), views.current_offsets(commits)
        )
        return _StateViews((commits, states, everyone), records, as_of_ms, ends, self._rules, pending, sizes)

    # Files

    def _add(self, name: str, number: int, frame: DataFrame) -> None:
        """Write a batch's rows of a history."""
        table = TABLES[name]
        by_day = ("src_date",) if any(column.name == "src_date" for column in table.columns) else ()
        numbered = shaped(frame, table).withColumn(BATCH, sf.lit(number).cast("bigint"))
        _write(numbered, self._folder.child(name).location, *by_day, BATCH)

    def _files(self, name: str, schema: str) -> DataFrame:
        location = self._folder.child(name)
        if not location.exists():
            return self._spark.createDataFrame([], schema)
        return self._spark.read.schema(schema).parquet(location.location)

    def _rows(self, table: Table) -> DataFrame:
        """All rows of a history or of snapshots that count, with the columns of parts."""
        frame = self._files(table.name, _stored_schema(table))
        parts = self._parts(table)
        return frame if parts is None else parts.counted(frame)

    def _parts(self, table: Table) -> Parts | None:
        """The parts of a table that is partitioned by day; None for another."""
        if table.kind == "snapshot":
            day, part = AS_OF_DATE, AS_OF_MS
        elif table.kind == "history":
            day, part = "src_date", BATCH
        else:
            return None
        markers = self._folder.child(STATE).child(COMPACTED).child(table.name)
        return Parts(self._folder.child(table.name), markers, day, part)

    def _keep(self, frame: DataFrame, name: str, number: int) -> None:
        frame.write.mode("overwrite").parquet(self._version(name, number).location)

    def _state(self, spark: SparkSession, name: str, number: int, schema: str | StructType) -> DataFrame:
        """The state after a batch; empty without one."""
        version = self._versions(number).get(name)
        if version is None:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(self._version(name, version).location)

    def _version(self, name: str, number: int) -> Folder:
        return self._folder.child(STATE).child(name).child(str(number))

    def _versions(self, number: int) -> Mapping[str, int]:
        """The batch that wrote each state as of a complete batch. A batch without its records writes none."""
        if number not in self._complete():
            return {}
        text = self._version(DONE, number).read_text()
        # Earlier releases wrote an empty file here, and all states in every batch.
        return json.loads(text) if text else dict.fromkeys(STATES, number)

    def _mark_done(self, number: int, versions: Mapping[str, int]) -> None:
        self._version(DONE, number).write_text(json.dumps(versions))

    def _complete(self) -> set[int]:
        """The numbers of the complete batches whose states are kept."""
        return {int(uri.rpartition("/")[2]) for uri in self._folder.child(STATE).child(DONE).files()}

    def _last_batch(self) -> int | None:
        """The number of the newest complete batch; None before the first."""
        return max(self._complete(), default=None)

    def _forget(self, number: int) -> None:
        """Delete the states of a batch that no later batch needs."""
        needed = self._versions(number + 1)
        for name, version in self._versions(number).items():
            if needed.get(name) != version:
                self._version(name, version).delete()
        self._version(DONE, number).delete()


@dataclass(frozen=True, slots=True)
class _Lookups:
    """What an update looks up outside the topic that it follows."""

    records: RecordsFrom | None = None
    ends: EndsOf | None = None
    pending: Lookup | None = None
    sizes: Lookup | None = None

    def of_snapshots(self, spark: SparkSession) -> tuple[DataFrame | None, DataFrame | None]:
        """Return the records of open transactions and the sizes of partitions."""
        return self.pending(spark) if self.pending else None, self.sizes(spark) if self.sizes else None


class _StateViews(Views):
    """The current tables, from the state between batches."""

    def __init__(
        self,
        state: tuple[DataFrame, DataFrame, DataFrame],
        records: DataFrame | None,
        as_of_ms: int,
        ends: DataFrame | None,
        rules: Rules,
        pending: DataFrame | None,
        sizes: DataFrame | None,
    ) -> None:
        super().__init__(records, as_of_ms, ends, rules, pending, sizes)
        self._state = state

    @property
    def _offset_commits(self) -> DataFrame:
        return self._state[0]

    @property
    def _last_commits(self) -> DataFrame:
        return self._state[0]

    @property
    def _states(self) -> DataFrame:
        return self._state[1]

    @property
    def _members(self) -> DataFrame:
        return self._state[2]


def _is_recent(as_of_ms: int) -> Column:
    """Whether a late commit may be older than a tombstone."""
    written_ms = sf.coalesce(sf.unix_millis("src_ts"), sf.lit(as_of_ms))
    return written_ms >= as_of_ms - KEPT_TOMBSTONES_MS


def _stored_schema(table: Table) -> str:
    """The columns of a table's files as DDL. A column that older files lack is null."""
    added = f"{AS_OF_DATE} date, {AS_OF_MS} bigint" if table.kind == "snapshot" else f"{BATCH} bigint"
    return f"{table.schema}, {added}"


def _marked(known: DataFrame, new: DataFrame) -> DataFrame:
    return known.withColumn(IS_NEW, sf.lit(False)).unionByName(new.withColumn(IS_NEW, sf.lit(True)))


def _counted(batch: DataFrame) -> tuple[int, int]:
    """The number of records in a batch, and of those on groups: the others are commits or damaged."""
    version = sf.substr(sf.col("key"), sf.lit(1), sf.lit(2))
    of_groups = sf.count_if((sf.length("key") >= 2) & (version > sf.lit(b"\0\1")))
    counted = batch.agg(sf.count("*").alias("records"), of_groups.alias("of_groups")).collect()[0]
    return counted["records"], counted["of_groups"]


def _write(frame: DataFrame, location: str, *by: str) -> None:
    """Write to a partitioned table. Replaces the partitions of the rows."""
    writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*by).parquet(location)
