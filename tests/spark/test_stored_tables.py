"""Stored tables that are updated step by step, also after an interruption, equal those of the whole topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.readers import ENDS
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.test_week import DAY, MONDAY, NOW, after, moment, the_week, topic_ends, topic_records

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS = "topic string, partition int, offset bigint, timestamp timestamp"
THURSDAY = MONDAY + 3 * DAY + DAY // 2


class Cut(Exception):
    """The process ends here."""


def test_nothing_stored_yet(spark: SparkSession, tmp_path: Path) -> None:
    stored = StoredTables(spark, str(tmp_path / "none"))
    assert stored.read("offset_commits").count() == 0
    with pytest.raises(KeyError):
        stored.read("no-such-table")


def week_in_steps(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[StoredTables, Tables]:
    """The week in two steps. The first one is interrupted and runs again."""
    rows = the_week().rows()
    records = spark.createDataFrame(topic_records(), RECORDS).cache()
    asked: list[Any] = []

    def records_from(_: SparkSession, starts: Any) -> DataFrame:
        asked.append(starts)
        return records

    places = spark.createDataFrame(topic_ends(), ENDS)

    def ends_of(_: SparkSession, topics: Collection[str]) -> DataFrame:
        return places.where(places["topic"].isin(list(topics)))

    source = str(folder / "source")
    stored = StoredTables(spark, str(folder / "tables"))

    def update(as_of_ms: int) -> None:
        stream = spark.readStream.schema(SCHEMA).parquet(source)
        stored.update(stream, as_of_ms, records=records_from, ends=ends_of)

    def cut(*_: object) -> None:
        raise Cut

    early = [row for row in rows if row[5] < moment(THURSDAY)]
    spark.createDataFrame(early, SCHEMA).coalesce(1).write.parquet(source)
    with monkeypatch.context() as patched:
        patched.setattr(StoredTables, "_mark_done", cut)
        with pytest.raises(StreamingQueryException, match="Cut"):
            update(THURSDAY)
    assert stored.read("offset_commits").count() == 0
    late = [row for row in rows if row[5] >= moment(THURSDAY)]
    spark.createDataFrame(late, SCHEMA).coalesce(1).write.mode("append").parquet(source)
    update(NOW)
    # From the smallest of the last commits on, the rewound one.
    assert asked[0]["orders"] == {0: after(50), 1: 0}
    assert asked[0]["no-such-topic"] == {3: 5}
    whole = spark.createDataFrame(rows, SCHEMA).cache()
    return stored, Tables(whole, records, NOW, ends=places)


def comparable(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.long
@pytest.mark.usefixtures("own_driver")
@pytest.mark.timeout(1800)
def test_steps_come_to_the_same_as_the_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, whole = week_in_steps(spark, tmp_path, monkeypatch)
    for name in TABLES:
        assert comparable(stored.read(name)) == comparable(whole.view(name)), name
    days = {path.name for path in (tmp_path / "tables" / "offset_commits").iterdir() if path.is_dir()}
    assert len(days) == 7
    assert all(name.startswith("src_date=2023-11-") for name in days)
