"""Stored tables in Delta: each write is one commit, so readers never see half of one.

Histories and sums are appended. The number of the batch is in the commit, so Delta skips a repeated batch.
A snapshot replaces the rows of its time. Current tables are overwritten. A column that a later release adds
is added to the table with the next rows. Compaction is Delta's own, and changes nothing for its readers.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

from korvet.spark.tables.batch_tables import shaped
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.stores import AS_OF_DATE, AS_OF_MS, BATCH, DATED, DELTA, day_of, days_of, no_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import date

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.readwriter import DataFrameWriter

    from korvet.spark.session.folders import Folder
    from korvet.spark.tables.catalog import Table

_LOG: Final = "_delta_log"
# By default VACUUM lists the folders of a table in 10,000 tasks.
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_TASKS: Final = "16"


@dataclass(frozen=True, slots=True)
class DeltaStore:
    """A Delta table for each table, in the folder of its name. store_id: of the folder's StoreFormat."""

    folder: Folder
    store_id: str
    # Names of tables that exist. To ask takes a query.
    _known: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def keeps_current(self) -> bool:
        """Yes: an overwrite is one commit."""
        return True

    def add(self, table: Table, number: int, frame: DataFrame) -> None:
        """Append a batch, unless the table has it."""
        numbered = shaped(frame, table).withColumn(BATCH, sf.lit(number).cast("bigint"))
        self._save(table, self._once(_evolving(numbered.write.mode("append")), number))

    def add_snapshot(self, table: Table, as_of_ms: int, frame: DataFrame) -> None:
        """Add a snapshot, in place of its rows from an earlier attempt."""
        columns = {AS_OF_DATE: sf.lit(day_of(as_of_ms)), AS_OF_MS: sf.lit(as_of_ms).cast("bigint")}
        same = f"{AS_OF_DATE} = DATE'{day_of(as_of_ms)}' AND {AS_OF_MS} = {as_of_ms}"
        writer = frame.withColumns(columns).write.mode("overwrite").option("replaceWhere", same)
        self._save(table, _evolving(writer))

    def replace(self, table: Table, number: int, frame: DataFrame) -> None:
        """Overwrite a current table, unless it is of this batch already."""
        numbered = frame.withColumn(BATCH, sf.lit(number).cast("bigint"))
        writer = numbered.write.mode("overwrite").option("overwriteSchema", "true")
        self._save(table, self._once(writer, number))

    def rows(self, table: Table) -> DataFrame:
        """Return all rows. A column that the table lacks is null."""
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
        """Return the days that have rows."""
        (column,) = days_of(table)
        days = self.rows(table).select(column).where(f"{column} IS NOT NULL").distinct().collect()
        return [row[column] for row in days]

    def finish(self) -> None:
        """Create the tables that have no rows yet, so that views and models of other tools find them."""
        for table in TABLES.values():
            if not self._exists(table):
                self._save(table, no_rows(self.folder.spark, table).write.mode("append"))

    def compact(self, as_of_ms: int, last_batch: int | None) -> int:
        """Merge small files by OPTIMIZE. If there were any, VACUUM deletes what was replaced 7 days ago."""
        spark, before = self.folder.spark, day_of(as_of_ms)
        with _few_tasks(spark):
            there = [table for table in TABLES.values() if self._exists(table)]
            days = sum(self._optimize(table, before) for table in there if table.kind in DATED)
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

    def _once(self, writer: DataFrameWriter, number: int) -> DataFrameWriter:
        """The writer of a commit that Delta skips if the table has one of this number or a later one."""
        return writer.option("txnAppId", f"korvet.{self.store_id}").option("txnVersion", str(number))

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
