"""Exports into one table at the same time: each row is there once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog import load_catalog

from korvet.spark.export.checkpoint import Identity
from korvet.spark.export.export import export_batch
from korvet.spark.export.iceberg import IcebergSink
from korvet.spark.export.jdbc import JdbcSink, _Database
from korvet.spark.export.target import ExportError
from korvet.spark.session.driver_calls import DriverError
from korvet.spark.versions import arrow_schema
from tests.spark.test_export import Place, Topic, table_target

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

# A run whose checkpoint is on no local disk may overlap with the one that takes over.
RUN = Identity("e" * 32, is_locked=False)


class Killed(Exception):
    """The run ends here."""


@pytest.fixture
def topic(spark: SparkSession, tmp_path: Path) -> Topic:
    found = Topic(spark, tmp_path / "topic")
    found.add(0, 4)
    return found


def test_exports_into_one_table_at_the_same_time(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a table of its own for its rows; so has a table whose name is quoted."""
    place = Place(spark, replace(table_target("jdbc", tmp_path), table='"My Records"'), tmp_path)
    frame = topic.batch()
    export_batch(frame.where("partition = 0"), place.target)
    make = _Database.make

    def overtaken(database: _Database, table: str, rows: DataFrame) -> None:
        monkeypatch.setattr(_Database, "make", make)
        export_batch(frame.where("partition = 0"), replace(place.target, mode="append"))
        make(database, table, rows)

    monkeypatch.setattr(_Database, "make", overtaken)
    export_batch(frame.where("partition = 1"), replace(place.target, mode="append"))
    assert place.offsets() == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("version", ["1", "2"])
def test_an_iceberg_export_that_is_overtaken(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """It leaves the files of the other one alone. PyIceberg before 0.12 refuses to commit beside another."""
    place = Place(spark, replace(table_target("iceberg", tmp_path), mode="append"), tmp_path)
    frame = topic.batch()
    catalog = load_catalog(place.target.location, **place.target.options)
    catalog.create_namespace("shop")
    properties = {"format-version": version}
    catalog.create_table("shop.records", arrow_schema(frame.schema), properties=properties)
    export_batch(frame.where("partition = 0"), place.target)
    files = IcebergSink._files

    def overtaken(*arguments: Any) -> list[str]:
        monkeypatch.setattr(IcebergSink, "_files", files)
        export_batch(frame.where("partition = 0"), place.target)
        return files(*arguments)

    monkeypatch.setattr(IcebergSink, "_files", overtaken)
    expected = [0, 0, 2, 2]
    with suppress(ExportError):
        export_batch(frame.where("partition = 1"), place.target)
        expected = [0, 0, 1, 2, 2, 3]
    assert place.offsets() == expected


def test_an_iceberg_batch_that_another_run_has_written(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While this run writes its files. Beside the export of somebody else, PyIceberg repeats the commit."""
    place = Place(spark, table_target("iceberg", tmp_path), tmp_path)
    sink, frame, files = IcebergSink(place.target), topic.batch(), IcebergSink._files

    def overtaken(*arguments: Any) -> list[str]:
        monkeypatch.setattr(IcebergSink, "_files", files)
        sink.append(frame, RUN, 0)
        return files(*arguments)

    monkeypatch.setattr(IcebergSink, "_files", overtaken)
    with pytest.raises(ExportError, match=r"another run of the export has written batch 0|has changed"):
        sink.append(frame, RUN, 0)
    assert place.offsets() == [0, 1, 2, 3]


def test_a_batch_that_another_run_has_written(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(spark, table_target("jdbc", tmp_path), tmp_path)
    sink, frame = JdbcSink(place.target), place.target.as_held(topic.batch())
    sink.append(frame, RUN, 0)
    monkeypatch.setattr(_Database, "progress", lambda database, export_id: -1)
    with pytest.raises(DriverError, match="another run of the export has written batch 0"):
        sink.append(frame, RUN, 0)
    assert place.offsets() == [0, 1, 2, 3]


def test_a_batch_that_another_run_is_about_to_write(
    spark: SparkSession, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows so far are not those of this run."""
    place = Place(spark, table_target("jdbc", tmp_path), tmp_path)
    sink, frame, fill = JdbcSink(place.target), place.target.as_held(topic.batch()), _Database.fill

    def killed(database: _Database, table: str, rows: DataFrame) -> None:
        fill(database, table, rows.limit(1))
        raise Killed

    def overtaken(database: _Database, table: str, rows: DataFrame) -> None:
        fill(database, table, rows)
        with monkeypatch.context() as other:
            other.setattr(_Database, "fill", killed)
            other.setattr(_Database, "drop", lambda *_: None)
            with pytest.raises(Killed):
                sink.append(frame, RUN, 0)

    monkeypatch.setattr(_Database, "fill", overtaken)
    sink.append(frame, RUN, 0)
    assert place.offsets() == [0, 1, 2, 3]
