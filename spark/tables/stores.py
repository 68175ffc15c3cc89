"""Where stored tables keep their rows: the interface Store, and tables of plain Parquet files.

The first update of a folder fixes its format, in `_state/format`. A folder without that file is Parquet.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Final, Protocol

from pyspark.sql import functions as sf

from korvet.spark.source.errors import SourceError
from korvet.spark.tables.batch_tables import shaped
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.compaction import COMPACTED, Parts

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.session.folders import Folder
    from korvet.spark.tables.catalog import Table

STATE: Final = "_state"
FORMAT: Final = "format"
PARQUET, DELTA = STORE_FORMATS = ("parquet", "delta")
BATCH: Final = "batch"
SRC_DATE: Final = "src_date"
AS_OF_DATE: Final = "as_of_date"
AS_OF_MS: Final = "as_of_ms"
# The kinds of tables that are partitioned by day.
DATED: Final = ("history", "snapshot")


class Store(Protocol):
    """The rows of all tables of a folder. Rows have the table's columns, and those of `added_columns`.

    Several tables may be written at the same time.
    """

    @property
    def keeps_current(self) -> bool:
        """Whether current tables are stored. Otherwise the state between batches has their rows."""

    def add(self, table: Table, number: int, frame: DataFrame) -> None:
        """Add a batch's rows of a history or of sums. A repeated batch counts once."""

    def add_snapshot(self, table: Table, as_of_ms: int, frame: DataFrame) -> None:
        """Add the rows of a snapshot. A repeated snapshot counts once."""

    def replace(self, table: Table, number: int, frame: DataFrame) -> None:
        """Replace the rows of a current table by those as of a batch."""

    def rows(self, table: Table) -> DataFrame:
        """Return all rows of a table, also those of an incomplete batch; none if it has not been written."""

    def days(self, table: Table) -> Collection[date]:
        """Return the days for which a table that is partitioned by day has rows."""

    def finish(self) -> None:
        """Do what is due at the end of an update."""

    def compact(self, as_of_ms: int, last_batch: int | None) -> int:
        """Merge the files of the days before that of `as_of_ms`; return the number of days in all tables.

        last_batch: the newest complete batch.
        """


@dataclass(frozen=True, slots=True)
class StoreFormat:
    """The format of a folder. store_id: distinguishes its writes from those of a folder before it."""

    form: str
    store_id: str

    @classmethod
    def of(cls, folder: Folder) -> StoreFormat | None:
        """Return the format of a folder; None if no update has fixed it."""
        state = folder.child(STATE)
        file = state.child(FORMAT)
        if file.exists():
            return cls.parsed(file.read_text(), file.location)
        # Earlier releases wrote only Parquet.
        return cls(PARQUET, "") if state.exists() else None

    @classmethod
    def parsed(cls, text: str, file: str) -> StoreFormat:
        """Return the format by the content of `_state/format`. Raises SourceError if it is damaged."""
        try:
            found = cls(**json.loads(text))
        except (ValueError, TypeError):
            found = None
        if found is None or found.form not in STORE_FORMATS:
            raise SourceError(f"{file} is damaged: it has no format of stored tables")
        return found

    @classmethod
    def fixed(cls, folder: Folder, form: str | None) -> StoreFormat:
        """Return the format of a folder; a new folder gets `form`, or Parquet.

        Raises ValueError if the folder has another format than `form`.
        """
        found = cls.of(folder)
        if found is None:
            found = cls(form or PARQUET, uuid.uuid4().hex)
            text = json.dumps({"form": found.form, "store_id": found.store_id})
            folder.child(STATE).child(FORMAT).write_text(text)
        if form not in (None, found.form):
            raise ValueError(f"the tables in {folder.location} are {found.form}, not {form}")
        return found


@dataclass(frozen=True, slots=True)
class ParquetStore:
    """A folder of files per table, partitioned by day and by batch or snapshot."""

    folder: Folder

    @property
    def keeps_current(self) -> bool:
        """No: readers would miss files that are replaced."""
        return False

    def add(self, table: Table, number: int, frame: DataFrame) -> None:
        """Write the rows into a folder of the batch, which replaces that of an interrupted attempt."""
        numbered = shaped(frame, table).withColumn(BATCH, sf.lit(number).cast("bigint"))
        self._write(numbered, table, *days_of(table), BATCH)

    def add_snapshot(self, table: Table, as_of_ms: int, frame: DataFrame) -> None:
        """Write the rows into a folder of the snapshot."""
        day = sf.lit(day_of(as_of_ms)).alias(AS_OF_DATE)
        frame = frame.select("*", day, sf.lit(as_of_ms).cast("bigint").alias(AS_OF_MS))
        self._write(frame, table, AS_OF_DATE, AS_OF_MS)

    def replace(self, table: Table, number: int, frame: DataFrame) -> None:
        """Do nothing: the state has these rows."""

    def finish(self) -> None:
        """Do nothing."""

    def rows(self, table: Table) -> DataFrame:
        """Return the rows that count, without files that compaction has replaced."""
        frame, parts = self._files(table), self._parts(table)
        return frame if parts is None else parts.counted(frame)

    def days(self, table: Table) -> Collection[date]:
        """Return the days that have files."""
        parts = self._parts(table)
        return parts.days() if parts else ()

    def compact(self, as_of_ms: int, last_batch: int | None) -> int:
        """Copy each day's rows into one part. No update may run at the same time.

        Files that were replaced are deleted by the next call, so that running queries keep them.
        """
        there = [table for table in TABLES.values() if self.folder.child(table.name).exists()]
        days = sum(self._compact(table, as_of_ms, last_batch) for table in there if table.kind in DATED)
        if days:
            # Once a day, because each call writes these tables again.
            for table in (each for each in there if each.kind == "sums"):
                self._compact(table, as_of_ms, last_batch)
        return days

    def _compact(self, table: Table, as_of_ms: int, last_batch: int | None) -> int:
        parts = self._parts(table)
        if parts is None:
            return 0
        newest = last_batch if parts.part == BATCH else as_of_ms
        return len(parts.compact(self._files(table), day_of(as_of_ms), -1 if newest is None else newest))

    def _files(self, table: Table) -> DataFrame:
        location, schema = self.folder.child(table.name), f"{table.schema}, {added_columns(table)}"
        if not location.exists():
            return no_rows(self.folder.spark, table)
        # A column that older files lack is null.
        return self.folder.spark.read.schema(schema).parquet(location.location)

    def _parts(self, table: Table) -> Parts | None:
        """The parts of a table; None of a current one."""
        if table.kind == "current":
            return None
        markers = self.folder.child(STATE).child(COMPACTED).child(table.name)
        part = AS_OF_MS if table.kind == "snapshot" else BATCH
        return Parts(self.folder.child(table.name), markers, next(iter(days_of(table)), None), part)

    def _write(self, frame: DataFrame, table: Table, *by: str) -> None:
        """Write to a partitioned table. Replaces the partitions of the rows."""
        writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*by).parquet(self.folder.child(table.name).location)


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
