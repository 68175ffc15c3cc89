"""Where stored tables keep their rows: a Delta table for each, in the folder of its name.

Each write is one commit, so readers never see half of one. Histories, sums and snapshots are appended (few
rows of histories change once more), and current tables are overwritten. Only if an earlier attempt may have
written the same rows, the table is asked for them, because Delta then computes the state of its log: a batch
that is there is skipped, and a snapshot replaces the rows of its time. A column that a later release adds is
added to the table with the next rows. Compaction is Delta's own, and changes nothing for its readers.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from korvet.spark.session.delta import check_delta
from korvet.spark.session.jars import DELTA
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.batch_tables import shaped
from korvet.spark.tables.catalog import TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter

    from korvet.spark.session.folders import Folder
    from korvet.spark.tables.catalog import Table

STATE: Final = "_state"
# The file in the folder of the state that names the format.
NOTE: Final = "format"
BATCH: Final = "batch"
SRC_DATE: Final = "src_date"
AS_OF_DATE: Final = "as_of_date"
AS_OF_MS: Final = "as_of_ms"
# The kinds of tables that are partitioned by day.
_DATED: Final = ("history", "snapshot")
_LOG: Final = "_delta_log"
# By default VACUUM lists the folders of a table in 10,000 tasks.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS: Final = "16"


@dataclass(frozen=True, slots=True)
class Store:
    """The rows of all tables of a folder. Rows have the table's columns, and those of `added_columns`.

    Several tables may be written at the same time. attempted: the newest batch of which an earlier update may
    have written rows; -1 for none.
    """

    folder: Folder
    attempted: int = -1
    # Names of tables that exist. To ask takes a query.
    _known: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, folder: Folder) -> Store | None:
        """Return the store of a folder; None if no update has begun it.

        Raises SourceError if its note is damaged, or if it has the Parquet files of an earlier release, and
        JarsMissing if the session lacks Delta.
        """
        state = folder.child(STATE)
        # An update that is killed while it writes the note leaves a hidden file.
        if not any(state.files()):
            return None
        note = state.child(NOTE)
        check_note(note.read_text() if note.exists() else None, folder.location)
        check_delta(folder.spark)
        return cls(folder)

    @classmethod
    def begin(cls, folder: Folder) -> None:
        """Begin a folder unless an update has begun it. Raises as `of` does."""
        if cls.of(folder) is None:
            check_delta(folder.spark)
            folder.child(STATE).child(NOTE).write_text(json.dumps({"form": DELTA}))

    def add(self, table: Table, number: int, frame: DataFrame) -> None:
        """Append a batch's rows of a history or of sums, unless the table has the batch."""
        if not self._has(table, number):
            numbered = shaped(frame, table).withColumn(BATCH, sf.lit(number).cast("bigint"))
            self._save(table, _evolving(numbered.write.mode("append")))

    def revise(self, table: Table, column: str, frame: DataFrame) -> None:
        """Set a column of the rows of a history that were made of the same records as those of `frame`."""
        days = [row[SRC_DATE] for row in frame.select(SRC_DATE).distinct().collect()]
        if not days:
            return
        # The days as literals: only their files are read.
        of_days = " OR ".join(
            f"kept.{SRC_DATE} " + ("IS NULL" if day is None else f"= DATE'{day}'") for day in days
        )
        same = " AND ".join(f"kept.{name} = new.{name}" for name in ("src_partition", "src_offset"))
        self.folder.spark.sql(
            f"MERGE INTO {self._identifier(table)} AS kept USING {{new}} AS new ON {same} AND ({of_days}) "
            f"WHEN MATCHED AND NOT kept.{column} <=> new.{column} "
            f"THEN UPDATE SET {column} = new.{column}",
            new=frame.select("src_partition", "src_offset", column),
        )

    def add_snapshot(self, table: Table, as_of_ms: int, frame: DataFrame, *, again: bool) -> None:
        """Add a snapshot; if the table may have rows of its time (`again`), in their place."""
        columns = {AS_OF_DATE: sf.lit(day_of(as_of_ms)), AS_OF_MS: sf.lit(as_of_ms).cast("bigint")}
        write = frame.withColumns(columns).write
        same = f"{AS_OF_DATE} = DATE'{day_of(as_of_ms)}' AND {AS_OF_MS} = {as_of_ms}"
        writer = write.mode("overwrite").option("replaceWhere", same) if again else write.mode("append")
        self._save(table, _evolving(writer))

    def replace(self, table: Table, number: int | None, frame: DataFrame) -> None:
        """Overwrite a current table by its rows as of a batch, unless it is of this batch already.

        number: None if the rows depend on more than batches, so that the next update replaces them.
        """
        if number is None or not self._has(table, number):
            numbered = frame.withColumn(BATCH, sf.lit(number).cast("bigint"))
            self._save(table, numbered.write.mode("overwrite").option("overwriteSchema", "true"))

    def rows(self, table: Table) -> DataFrame:
        """Return all rows of a table, also those of an incomplete batch; none if it has not been written.

        A column that the table lacks is null.
        """
        spark, empty = self.folder.spark, no_rows(self.folder.spark, table)
        if not self._exists(table):
            return empty
        stored = spark.read.format(DELTA).load(self._location(table))
        there = set(stored.columns)
        return stored.select(
            *(
                sf.col(f"`{each.name}`")
                if each.name in there
                else sf.lit(None).cast(each.dataType).alias(each.name)
                for each in empty.schema
            )
        )

    def days(self, table: Table) -> Collection[date]:
        """Return the days for which a table that is partitioned by day has rows."""
        (column,) = days_of(table)
        days = self.rows(table).select(column).where(f"{column} IS NOT NULL").distinct().collect()
        return [row[column] for row in days]

    def finish(self) -> None:
        """Create the tables that have no rows yet, so that queries of other tools find them."""
        for table in TABLES.values():
            if not self._exists(table):
                self._save(table, no_rows(self.folder.spark, table).write.mode("append"))

    def compact(self, as_of_ms: int) -> int:
        """Merge small files of the days before that of `as_of_ms` by OPTIMIZE.

        Returns the number of days merged in all tables. If there were any, VACUUM deletes the files that were
        replaced more than 7 days ago.
        """
        spark, before = self.folder.spark, day_of(as_of_ms)
        with _few_tasks(spark):
            there = [table for table in TABLES.values() if self._exists(table)]
            days = sum(self._optimize(table, before) for table in there if table.kind in _DATED)
            if days:
                # Once a day, because each call would write these tables again.
                for table in (each for each in there if each.kind == "sums"):
                    self._optimize(table)
                for table in there:
                    spark.sql(f"VACUUM {self._identifier(table)}").collect()
        return days

    def _optimize(self, table: Table, before: date | None = None) -> int:
        """Merge the files of a table's days before a day, or all; return the number of merged partitions."""
        only = "" if before is None else f" WHERE {days_of(table)[0]} < DATE'{before}'"
        (done,) = self.folder.spark.sql(f"OPTIMIZE {self._identifier(table)}{only}").collect()
        return int(done["metrics"]["partitionsOptimized"])

    def _save(self, table: Table, writer: DataFrameWriter) -> None:
        by = () if table.kind == "current" else days_of(table)
        writer.partitionBy(*by).format(DELTA).save(self._location(table))
        self._known.add(table.name)

    def _has(self, table: Table, number: int) -> bool:
        """Whether an earlier update wrote rows of a batch to a table."""
        if number > self.attempted:
            return False
        return not self.rows(table).where(sf.col(BATCH) == number).isEmpty()

    def _exists(self, table: Table) -> bool:
        if table.name not in self._known and self.folder.child(table.name).child(_LOG).exists():
            self._known.add(table.name)
        return table.name in self._known

    def _location(self, table: Table) -> str:
        return self.folder.child(table.name).location

    def _identifier(self, table: Table) -> str:
        location = self.folder.child(table.name).qualified()
        return f"{DELTA}.`{location.replace('`', '``')}`"


def _evolving(writer: DataFrameWriter) -> DataFrameWriter:
    return writer.option("mergeSchema", "true")


@contextmanager
def _few_tasks(spark: SparkSession) -> Iterator[None]:
    """List folders in few tasks."""
    before = str(spark.conf.get(_LISTING))
    spark.conf.set(_LISTING, _LISTING_TASKS)
    try:
        yield
    finally:
        spark.conf.set(_LISTING, before)


def days_of(table: Table) -> tuple[str, ...]:
    """Return the column with the day that partitions a table, if it has one."""
    if table.kind == "snapshot":
        return (AS_OF_DATE,)
    return (SRC_DATE,) if any(column.name == SRC_DATE for column in table.columns) else ()


def no_rows(spark: SparkSession, table: Table) -> DataFrame:
    """Return a stored table without rows."""
    return spark.createDataFrame([], f"{table.schema}, {added_columns(table)}")


def added_columns(table: Table) -> str:
    """Return the columns that stored rows have besides the table's, as DDL."""
    return f"{AS_OF_DATE} date, {AS_OF_MS} bigint" if table.kind == "snapshot" else f"{BATCH} bigint"


def day_of(at_ms: int) -> date:
    """Return the day of a time in ms, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def check_note(note: str | None, location: str) -> None:
    """Check the note of a folder with a state. The oldest releases wrote none.

    Raises SourceError if the note is damaged, or if the tables are files of an earlier release.
    """
    try:
        form = "parquet" if note is None else str(json.loads(note)["form"])
    except (ValueError, TypeError, KeyError) as error:
        raise SourceError(
            f"{location}/{STATE}/{NOTE} is damaged: it has no format of stored tables"
        ) from error
    if form != DELTA:
        raise SourceError(
            f"the tables in {location} are {form} files, which only earlier releases update: begin again in "
            "another folder; an earlier release can export what __consumer_offsets no longer has"
        )
