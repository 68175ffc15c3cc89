"""Stored tables in Delta: each batch once, columns that are added, readers during a change, compaction."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as sf

from korvet.spark.session.folders import Folder
from korvet.spark.source.errors import SourceError
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.states import States
from korvet.spark.tables.store import STATE, Store
from korvet.spark.tables.stored_tables import StoredTables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.tables.catalog import Table

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("delta", "few_rows")]

DAY_MS = 86_400_000
FIRST_MS = 1_700_006_400_000  # 2023-11-15T00:00:00Z
HISTORY, SNAPSHOT, CURRENT = TABLES["rebalances"], TABLES["stale_groups"], TABLES["topic_consumers"]


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Folder:
    return Folder(spark, str(tmp_path / "a folder"))


@pytest.fixture
def store(folder: Folder) -> Store:
    Store.begin(folder)
    return Store(folder)


def frame(spark: SparkSession, table: Table, *rows: dict[str, Any]) -> DataFrame:
    """Rows of a table. Columns that they leave out are null."""
    names = [column.name for column in table.columns]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], table.schema)


def rebalance(group: str, at_ms: int) -> dict[str, Any]:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return {"group": group, "src_ts": at, "src_date": at.date()}


def column(found: DataFrame, name: str) -> list[Any]:
    return sorted(row[name] for row in found.collect())


def test_each_batch_once(spark: SparkSession, store: Store) -> None:
    store.add(HISTORY, 0, frame(spark, HISTORY, rebalance("a", FIRST_MS)))
    # An update after one that was killed in batch 1.
    later = Store(store.folder, attempted=1)
    for batch, group in ((0, "a"), (1, "b"), (1, "b"), (0, "late"), (2, "c")):
        later.add(HISTORY, batch, frame(spark, HISTORY, rebalance(group, FIRST_MS)))
    rows = store.rows(HISTORY).select("group", "batch").collect()
    assert sorted(map(tuple, rows)) == [("a", 0), ("b", 1), ("c", 2)]
    # The same number in a folder that was begun again is another batch.
    again = Store(store.folder)
    again.add(HISTORY, 0, frame(spark, HISTORY, rebalance("d", FIRST_MS)))
    assert column(store.rows(HISTORY), "group") == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("new_york")
def test_snapshots_and_current_rows(spark: SparkSession, store: Store) -> None:
    def snapshot(at_ms: int, *groups: str) -> None:
        as_of = {"as_of_ts": datetime.fromtimestamp(at_ms / 1000, UTC)}
        rows = [{"group": group, **as_of} for group in groups]
        again = States(store.folder.child(STATE)).begin_snapshot(at_ms, "[]")
        store.add_snapshot(SNAPSHOT, at_ms, frame(spark, SNAPSHOT, *rows), again=again)

    snapshot(FIRST_MS, "a", "b")
    snapshot(FIRST_MS + 1, "c")
    # An interrupted update is repeated.
    snapshot(FIRST_MS + 1, "c", "d")
    rows = store.rows(SNAPSHOT).select("group", sf.col("as_of_ms") - FIRST_MS).collect()
    assert sorted(map(tuple, rows)) == [("a", 0), ("b", 0), ("c", 1), ("d", 1)]

    assert store.rows(CURRENT).count() == 0
    store.replace(CURRENT, 3, frame(spark, CURRENT, {"topic": "t", "group": "a"}))
    later = Store(store.folder, attempted=4)
    later.replace(CURRENT, 3, frame(spark, CURRENT))
    later.replace(CURRENT, 4, frame(spark, CURRENT, {"topic": "t", "group": "b"}))
    assert column(store.rows(CURRENT), "group") == ["b"]
    # Queries that have begun still find the former rows.
    location = store.folder.child(CURRENT.name).location
    former = spark.read.format("delta").option("versionAsOf", 0).load(location)
    assert column(former, "group") == ["a"]


def test_columns_that_a_release_adds(spark: SparkSession, store: Store) -> None:
    older = frame(spark, HISTORY, rebalance("a", FIRST_MS)).drop("kind", "protocol")
    location = store.folder.child(HISTORY.name).location
    older.withColumn("batch", sf.lit(0).cast("bigint")).write.partitionBy("src_date").format("delta").save(
        location
    )
    (row,) = store.rows(HISTORY).collect()
    assert (row["group"], row["kind"], row["protocol"]) == ("a", None, None)
    new = {**rebalance("b", FIRST_MS), "kind": "formed"}
    store.add(HISTORY, 1, frame(spark, HISTORY, new))
    # Also for other readers of the table.
    rows = spark.read.format("delta").load(location).select("group", "kind").collect()
    assert sorted(map(tuple, rows)) == [("a", None), ("b", "formed")]


@pytest.mark.long
def test_compaction_merges_the_files_of_earlier_days(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    def files(day: str) -> set[str]:
        read = spark.read.format("delta").load(store.folder.child(HISTORY.name).location)
        names = read.where(f"src_date = '{day}'").select(sf.col("_metadata.file_name").alias("file"))
        return set(column(names.distinct(), "file"))

    for batch in range(2):
        rows = [rebalance(f"{batch}", FIRST_MS), rebalance(f"{batch}", FIRST_MS + DAY_MS)]
        store.add(HISTORY, batch, frame(spark, HISTORY, *rows))
    written = files("2023-11-15")
    assert len(written) == 2
    assert store.compact(FIRST_MS + DAY_MS) == 1
    assert (len(files("2023-11-15")), len(files("2023-11-16"))) == (1, 2)
    assert column(store.rows(HISTORY), "group") == ["0", "0", "1", "1"]
    # Readers that have begun keep the files for 7 days.
    day = tmp_path / "a folder" / HISTORY.name / "src_date=2023-11-15"
    assert written <= {path.name for path in day.iterdir()}
    assert store.compact(FIRST_MS + DAY_MS) == 0


def test_a_folder_is_begun_once(folder: Folder) -> None:
    assert Store.of(folder) is None
    for _ in range(2):
        Store.begin(folder)
        assert Store.of(folder) == Store(folder)


def test_only_a_snapshot_after_all_others_is_new(folder: Folder) -> None:
    states = States(folder.child(STATE))
    # Earlier releases noted none.
    may_be_there = [states.begin_snapshot(at_ms, "") for at_ms in (5, 5, 7, 7, 6, 8)]
    assert may_be_there == [True, True, False, True, True, False]
    # An update that was killed before it deleted the note of the snapshot before.
    folder.child(STATE).child("snapshot").child("7").write_text("")
    assert [states.begin_snapshot(at_ms, "") for at_ms in (7, 8, 9, 7)] == [True, True, False, True]


def test_an_update_that_was_killed_before_its_note(folder: Folder) -> None:
    folder.child("_state").child("format").scratch().write_text("{")
    assert Store.of(folder) is None
    Store.begin(folder)
    assert Store.of(folder) == Store(folder)


@pytest.mark.parametrize("note", [None, '{"form": "parquet", "store_id": "a"}'])
def test_parquet_folders_of_earlier_releases_are_refused(folder: Folder, note: str | None) -> None:
    state = folder.child("_state")
    state.child("done").child("0").write_text("")
    if note is not None:
        state.child("format").write_text(note)
    with pytest.raises(SourceError, match=r"a folder are parquet files.* begin again in another folder"):
        StoredTables(folder.spark, folder.location).read("offset_commits")


@pytest.mark.parametrize("note", ["", "[]", '{"store_id": "a"}'])
def test_a_damaged_note_of_a_folder_is_named(folder: Folder, note: str) -> None:
    folder.child("_state").child("format").write_text(note)
    with pytest.raises(SourceError, match="a folder/_state/format is damaged"):
        Store.begin(folder)
