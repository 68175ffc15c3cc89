"""Updates of stored tables that end between any two writes: the next ones lose no row, and add none twice."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.batch_tables import Tables, shaped
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.readers import ENDS, SIZES
from korvet.spark.tables.states import States
from korvet.spark.tables.store import Store
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.test_random_updates import NOW, SEED, History, topic_records
from tests.spark.test_stored_tables import RECORDS, Cut, comparable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(3000),
    pytest.mark.usefixtures("delta", "few_rows", "own_driver"),
]

RECORDS_EACH = 20


class Updates:
    """Tables in a folder, with updates that can be cut."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.tables = folder / "tables"
        self.stored = StoredTables(spark, str(self.tables))
        self._source = str(folder / "source")
        self._history, self._rows = History(SEED), []
        self._records = spark.createDataFrame(topic_records(), RECORDS).cache()
        places = [(t, p, 100 - p, 20 * p, 0) for t in ("orders", "ledger") for p in (0, 1)]
        self._ends = spark.createDataFrame(places, ENDS).cache()
        self._sizes = spark.createDataFrame([("orders", 0, 20, 100, 80, 100, 1 << 20)], SIZES)

    def more(self) -> None:
        """Records for the next update."""
        new = self._history.rows(RECORDS_EACH)
        self._rows += new
        self.spark.createDataFrame(new, SCHEMA).coalesce(1).write.mode("append").parquet(self._source)

    def run(self, as_of_ms: int) -> None:
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(self._source)
        self.stored.update(
            stream,
            as_of_ms,
            logs=lambda *_: self._records,
            ends=lambda *_: self._ends,
            sizes=lambda _: self._sizes,
        )

    def is_cut(self, as_of_ms: int) -> bool:
        """Run an update. Returns whether it was cut."""
        try:
            self.run(as_of_ms)
        except Cut:
            return True
        except StreamingQueryException as error:
            if Cut.__name__ not in str(error):
                raise
            return True
        return False

    def check(self, as_of_ms: int) -> None:
        """Every record counts once, in what StoredTables reads and in what other engines read."""
        everything = self.spark.createDataFrame(self._rows, SCHEMA).cache()
        whole = Tables(everything, self._records, as_of_ms, ends=self._ends, sizes=self._sizes)
        for name, table in TABLES.items():
            raw = self.spark.read.format("delta").load(str(self.tables / name))
            newest = as_of_ms if table.kind == "snapshot" else None
            kept, expected = comparable(self.stored.read(name, newest)), comparable(whole.view(name))
            if name == "anomalies":
                # The whole topic doesn't show a partition whose commit was removed later.
                assert set(expected) <= set(kept)
            else:
                assert (name, kept) == (name, expected)
            rows = comparable(raw)
            assert (name, len(rows)) == (name, len(set(rows)))
            if table.kind in ("history", "current") and name != "anomalies":
                assert (name, comparable(shaped(raw, table))) == (name, expected)
        everything.unpersist()


@pytest.fixture
def updates(spark: SparkSession, tmp_path: Path) -> Updates:
    return Updates(spark, tmp_path)


def raising_after(inner: Callable[..., Any]) -> Callable[..., Any]:
    """The call, after which the process ends."""

    def call(*arguments: Any, **named: Any) -> None:
        inner(*arguments, **named)
        raise Cut

    return call


def raising(*_: object, **__: object) -> None:
    raise Cut


def saves(count: int) -> Callable[..., None]:
    """`Store._save` that ends the process instead of the write after `count` others."""
    left, inner = count, Store._save

    def save(*arguments: Any) -> None:
        nonlocal left
        if left == 0:
            raise Cut
        left -= 1
        inner(*arguments)

    return save


# Calls in which the process ends.
SOME: list[tuple[type, str, Any]] = [
    # After some tables of a batch; after all of them and their note, before Spark's commit of the batch.
    (Store, "_save", partial(saves, 2)),
    # Before the owners of earlier epochs.
    (Store, "revise", lambda: raising),
    (StoredTables, "_take", partial(raising_after, StoredTables._take)),
    # After one table of a snapshot, or one current table.
    (Store, "add_snapshot", partial(raising_after, Store.add_snapshot)),
    (Store, "replace", partial(raising_after, Store.replace)),
]
OTHERS: list[tuple[type, str, Any]] = [
    # A batch that was planned only; without its note; before old states are deleted.
    (StoredTables, "_take", lambda: raising),
    (States, "finish", lambda: raising),
    (States, "forget", lambda: raising),
    # Before and after the note of a snapshot; before the current tables; before the tables without rows.
    (States, "begin_snapshot", lambda: raising),
    (States, "begin_snapshot", partial(raising_after, States.begin_snapshot)),
    (Store, "replace", lambda: raising),
    (Store, "finish", lambda: raising),
]


@pytest.mark.parametrize("calls", [SOME, OTHERS], ids=["some", "others"])
def test_no_row_is_lost_or_there_twice(
    updates: Updates, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[type, str, Any]]
) -> None:
    for number, (owner, name, replacement) in enumerate(calls):
        updates.more()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, replacement())
            assert updates.is_cut(NOW + number), name
        # The next update adds the same snapshot, or a later one.
        if number % 2:
            updates.run(NOW + number)
    updates.run(NOW + len(calls))
    updates.check(NOW + len(calls))


def test_every_place_between_two_writes(updates: Updates, monkeypatch: pytest.MonkeyPatch) -> None:
    chance, writes, is_cut = random.Random(SEED), 0, True
    while is_cut:
        updates.more()
        with monkeypatch.context() as patched:
            patched.setattr(Store, "_save", saves(writes))
            is_cut = updates.is_cut(NOW + writes)
        if chance.random() < 0.5:
            updates.run(NOW + writes)
        writes += 1
    updates.run(NOW + writes)
    updates.check(NOW + writes)
