"""Compaction of stored tables: the same rows in fewer files, wherever it is interrupted."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest

from korvet.spark.session.folders import Folder
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.compaction import Parts
from korvet.spark.tables.stored_tables import StoredTables
from korvet.spark.tables.stores import ParquetStore

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("few_rows")]

SCHEMA = "value int, src_date date, batch bigint"
FIRST, SECOND, TODAY = date(2023, 11, 14), date(2023, 11, 15), date(2023, 11, 16)


DAY_MS = 86_400_000


class Cut(Exception):
    """The process ends here."""


class Table:
    """A table in a folder, and the rows that it should have."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        where = Folder(spark, str(folder))
        self.parts = Parts(where.child("t"), where.child("_state"), "src_date", "batch")
        self.expected: list[tuple[Any, ...]] = []

    def add(self, batch: int, *days: date) -> None:
        rows = [(batch, day) for day in days]
        self.expected += rows
        frame = self._spark.createDataFrame([(*row, batch) for row in rows], SCHEMA)
        writer = frame.write.mode("append").partitionBy("src_date", "batch")
        writer.parquet(str(self._folder / "t"))

    def frame(self) -> DataFrame:
        return self._spark.read.schema(SCHEMA).parquet(str(self._folder / "t"))

    def compact(self, newest: int) -> list[date | None]:
        return self.parts.compact(self.frame(), TODAY, newest)

    def check(self) -> None:
        rows = self.parts.counted(self.frame()).select("value", "src_date").collect()
        assert sorted(map(tuple, rows)) == sorted(self.expected)

    def days(self) -> dict[str, int]:
        """Returns the number of parts of each day."""
        return {path.name[9:]: len(list(path.iterdir())) for path in (self._folder / "t").glob("src_date=*")}


def test_days_of_many_parts_become_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(spark, tmp_path)
    for batch in range(3):
        table.add(batch, FIRST, TODAY)
    table.add(3, SECOND, TODAY)
    with monkeypatch.context() as patched:

        def cut(*_: object) -> None:
            raise Cut

        patched.setattr(Folder, "write_text", cut)
        with pytest.raises(Cut):
            table.compact(3)
    table.check()
    assert table.compact(3) == [FIRST]
    table.check()
    # Late rows of a day that is merged, and a part that is not complete.
    table.add(4, FIRST)
    table.add(5, FIRST)
    table.check()
    assert table.compact(4) == [FIRST]
    table.check()
    assert table.compact(4) == []
    table.check()
    assert table.days() == {"2023-11-14": 2, "2023-11-15": 1, "2023-11-16": 4}


def test_a_table_without_days(spark: SparkSession, tmp_path: Path) -> None:
    """Sums are merged as a whole, when a day of another table is."""
    store = ParquetStore(Folder(spark, str(tmp_path)))
    sums, history = TABLES["commit_rate"], TABLES["quarantine"]

    def add(batch: int, day: date) -> None:
        minute = spark.sql(f"SELECT 'g' AS `group`, TIMESTAMP '{day} 10:00:00' AS minute, 1L AS commits")
        store.add(sums, batch, minute)
        row = f"(X'00', X'00', 0, {batch}L, TIMESTAMP '{day} 10:00:00', 'damaged', DATE '{day}')"
        store.add(history, batch, spark.sql(f"SELECT * FROM VALUES {row}").toDF(*history_columns))

    def check(folders: set[str], batches: int) -> None:
        assert {path.name for path in (tmp_path / "commit_rate").glob("batch=*")} == folders
        rows = store.rows(sums).select("commits").collect()
        assert [row["commits"] for row in rows] == [1] * batches

    history_columns = [column.name for column in history.columns]
    at_ms = 1_700_000_000_000 + 2 * DAY_MS
    add(0, TODAY)
    add(1, TODAY)
    assert store.compact(at_ms, 1) == 0
    check({"batch=0", "batch=1"}, 2)
    assert store.compact(at_ms + DAY_MS, 1) == 1
    check({"batch=0", "batch=1", "batch=-2"}, 2)
    add(2, TODAY)
    # One that is not complete.
    add(3, SECOND)
    assert store.compact(at_ms + DAY_MS, 2) == 1
    check({"batch=-2", "batch=-3", "batch=2", "batch=3"}, 4)


def test_files_of_earlier_versions_lack_columns(spark: SparkSession, tmp_path: Path) -> None:
    """A column that was added to a table is null in older rows, before and after compaction."""
    folder = Folder(spark, str(tmp_path))
    older = "src_partition int, src_offset bigint, src_date date, batch bigint"
    newer = f"{older}, reason string"
    first = spark.createDataFrame([(0, 1, FIRST, 0)], older)
    second = spark.createDataFrame([(0, 2, FIRST, 1, "damaged")], newer)
    for frame in (first, second):
        frame.write.mode("append").partitionBy("src_date", "batch").parquet(str(tmp_path / "quarantine"))
    folder.child("_state").child("done").child("1").write_text("")
    stored = StoredTables(spark, str(tmp_path))

    def rows() -> list[tuple[Any, ...]]:
        found = stored.read("quarantine").select("src_offset", "reason", "key", "src_date").collect()
        return sorted(map(tuple, found))

    expected = [(1, None, None, FIRST), (2, "damaged", None, FIRST)]
    assert rows() == expected
    # The day itself is left as it is; it is merged the day after.
    midnight_ms = 1_699_920_000_000
    assert stored.compact(midnight_ms) == 0
    assert stored.compact(midnight_ms + DAY_MS) == 1
    assert rows() == expected
