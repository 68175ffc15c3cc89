"""Exports in every format: each row is written once, completely, and no other files are changed."""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from korvet.spark import cli
from korvet.spark.cli import export_command
from korvet.spark.export.export import export_batch, export_stream
from korvet.spark.export.tables import batch_table, stream_table
from korvet.spark.export.target import FORMATS, ExportError, Target
from korvet.spark.export.topics import read_topics, stream_topics
from korvet.spark.session.failures import NEEDS_JAR
from korvet.spark.source.address import Address
from korvet.spark.source.errors import SourceError
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.readers import RedisReader
from korvet.spark.versions import features
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

MS = 1_700_000_000_000
QUERY_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Place:
    """A target that doesn't exist yet, and a way to read it."""

    spark: SparkSession
    target: Target
    folder: Path

    def read(self) -> DataFrame:
        target = self.target
        if target.form == "iceberg":
            from pyiceberg.catalog import load_catalog  # noqa: PLC0415 (an extra)

            table = load_catalog(target.location, **target.options).load_table(target.table or "")
            return self.spark.createDataFrame(table.scan().to_arrow())
        reader = self.spark.read.format(target.form).options(header="true", escape='"')
        if target.form == "jdbc":
            return reader.options(url=target.location, dbtable=target.table).load()
        return reader.load(target.location)

    def offsets(self) -> list[int]:
        """The offsets of all rows, as small numbers."""
        return sorted(int(row["offset"]) - (MS << 10) for row in self.read().select("offset").collect())

    @property
    def checkpoint(self) -> str | None:
        return str(self.folder / "checkpoint") if self.target.table else None


LONG = {"once": {"csv", "delta", "iceberg", "json"}, "continuous": {"csv", "json"}}


def every_format(what: str) -> Any:
    """All formats. Slow ones, and those similar to another, run only with `--all`."""
    marks = {form: [pytest.mark.long] if form in LONG[what] else [] for form in FORMATS}
    forms = [pytest.param(form, marks=marks[form]) for form in FORMATS]
    return pytest.mark.parametrize("place", forms, indirect=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Place:
    form = request.param
    if form == "delta":
        request.getfixturevalue("delta")
    if form in {"iceberg", "jdbc"}:
        return Place(spark, table_target(form, tmp_path), tmp_path)
    return Place(spark, Target(str(tmp_path / "a folder" / "out"), form), tmp_path)


def table_target(form: str, folder: Path) -> Target:
    if form == "jdbc":
        return Target(f"jdbc:derby:{folder}/db;create=true", form, table="records")
    options = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    return Target("test", form, table="shop.records", options=options)


class Topic:
    """A growing topic without Redis, so that a frame needs no worker process."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        folder.mkdir()

    def add(self, first: int, last: int) -> None:
        """Add records with these numbers as offsets, in two partitions."""
        rows = [
            {
                "key": base64.b64encode(b"k\xff").decode(),
                "value": base64.b64encode(b"%d" % number).decode(),
                "topic": "t",
                "partition": number % 2,
                "offset": (MS << 10) + number,
                "timestamp": f"2023-11-14T22:13:20.{number:03}Z",
                "timestampType": 0,
                "headers": [{"key": "h", "value": "AQ=="}, {"key": "n", "value": None}],
            }
            for number in range(first, last)
        ]
        written = self._folder / f".{first}"
        written.write_text("\n".join(map(json.dumps, rows)))
        written.rename(self._folder / f"{first:04}.json")

    def batch(self) -> DataFrame:
        return self._spark.read.schema(SCHEMA).json(str(self._folder))

    def stream(self) -> DataFrame:
        return self._spark.readStream.schema(SCHEMA).json(str(self._folder))


@pytest.fixture
def topic(spark: SparkSession, tmp_path: Path) -> Topic:
    return Topic(spark, tmp_path / "topic")


def run(place: Place, topic: Topic, **changes: Any) -> None:
    """Export the new records, until all are written."""
    target = replace(place.target, **changes)
    with export_stream(topic.stream(), target, "t", checkpoint=place.checkpoint) as query:
        assert query.awaitTermination(QUERY_TIMEOUT_S)


def visible(folder: str) -> list[str]:
    """The files that a reader without Spark finds, including those in partition folders."""
    found = []
    for path, names, files in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(("_", "."))]
        found += [os.path.join(path, name) for name in files if not name.startswith(("_", "."))]
    return found


@every_format("once")
@pytest.mark.short
def test_once_in_every_mode(topic: Topic, place: Place) -> None:
    topic.add(0, 4)
    frame = topic.batch()
    export_batch(frame, place.target)
    rows = place.read().orderBy("offset").collect()
    assert [int(row["offset"]) - (MS << 10) for row in rows] == [0, 1, 2, 3]
    bytes_held = place.target.form not in {"csv", "json"}
    key = b"k\xff" if bytes_held else base64.b64encode(b"k\xff").decode()
    assert [row["key"] for row in rows] == [key] * 4
    headers = rows[0]["headers"]
    if isinstance(headers, str):
        assert json.loads(headers) == [{"key": "h", "value": "AQ=="}, {"key": "n"}]
    else:
        assert [header["key"] for header in headers] == ["h", "n"]
        assert headers[1]["value"] is None
    with pytest.raises(ExportError, match="exists; use --mode append or --mode overwrite"):
        export_batch(frame, place.target)
    export_batch(frame, replace(place.target, mode="append"))
    assert place.offsets() == [0, 0, 1, 1, 2, 2, 3, 3]
    failing = frame.withColumn("partition", sf.expr("if(offset % 4 = 3, raise_error('torn'), partition)"))
    with pytest.raises((PySparkException, Py4JJavaError), match="torn"):
        export_batch(failing, replace(place.target, mode="overwrite"))
    assert place.offsets() == [0, 0, 1, 1, 2, 2, 3, 3]
    export_batch(frame, replace(place.target, mode="overwrite"))
    assert place.offsets() == [0, 1, 2, 3]


@every_format("continuous")
def test_continuous_is_exactly_once(topic: Topic, place: Place) -> None:
    """Also if the sink has a batch that the checkpoint doesn't have."""
    topic.add(0, 3)
    run(place, topic)
    topic.add(3, 6)
    run(place, topic)
    assert place.offsets() == list(range(6))
    commits = sorted((checkpoint_of(place) / "commits").glob("[0-9]*"))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink()
    topic.add(6, 8)
    run(place, topic)
    assert place.offsets() == list(range(8))
    # Another checkpoint has no record of the existing rows.
    moved = checkpoint_of(place).rename(place.folder / "moved")
    with pytest.raises(ExportError, match=r"exists|another checkpoint"):
        run(place, topic)
    moved.rename(checkpoint_of(place))
    assert place.offsets() == list(range(8))


def checkpoint_of(place: Place) -> Path:
    return place.folder / ("checkpoint" if place.checkpoint else "a folder/out/_checkpoint")


@pytest.fixture
def parquet(spark: SparkSession, topic: Topic, tmp_path: Path) -> Place:
    topic.add(0, 4)
    return Place(spark, Target(str(tmp_path / "out")), tmp_path)


def test_files_of_others_are_left_alone(topic: Topic, parquet: Place) -> None:
    (parquet.folder / "out").mkdir()
    precious = parquet.folder / "out" / "part-of-mine.txt"
    precious.write_text("mine")
    for checkpoint in (None, str(parquet.folder / "elsewhere")):
        for _ in range(2):
            with (
                pytest.raises(ExportError, match="exists"),
                export_stream(topic.stream(), parquet.target, "t", checkpoint=checkpoint),
            ):
                pass
    assert [path.name for path in (parquet.folder / "out").iterdir()] == [precious.name]
    assert not (parquet.folder / "elsewhere").exists()


@pytest.mark.usefixtures("own_driver")
def test_what_a_killed_run_left_is_removed(topic: Topic, parquet: Place) -> None:
    run(parquet, topic)
    out = parquet.folder / "out"
    finished = next(out.glob("part-*.parquet"))
    shutil.copy(finished, out / "part-00000-torn-c000.snappy.parquet")
    run(parquet, topic)
    assert parquet.offsets() == [0, 1, 2, 3]
    assert ds.dataset(visible(str(out))).to_table().num_rows == 4
    with (
        pytest.raises(ExportError, match=r"is of another export \(t to .*, not u to "),
        export_stream(topic.stream(), parquet.target, "u"),
    ):
        pass
    with pytest.raises(ExportError, match="only adds rows"):
        run(parquet, topic, mode="overwrite")
    # The sink's log is gone: continuing would leave a gap.
    shutil.rmtree(out / "_spark_metadata")
    with pytest.raises(ExportError, match="is not the target of the checkpoint"):
        run(parquet, topic)
    assert ds.dataset(visible(str(out))).to_table().num_rows == 4


@pytest.mark.usefixtures("own_driver")
def test_one_export_at_a_time(topic: Topic, parquet: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.spark.export.checkpoint.LOCK_WAIT_S", 0.3)
    with (
        export_stream(topic.stream(), parquet.target, "t", trigger={"processingTime": "1 second"}),
        pytest.raises(ExportError, match="another export is running from the checkpoint"),
    ):
        run(parquet, topic)
    run(parquet, topic)
    with pytest.raises(ExportError, match="is of a continuous export"):
        export_batch(topic.batch(), replace(parquet.target, mode="append"))
    assert parquet.offsets() == [0, 1, 2, 3]


def test_a_failed_export_leaves_nothing(topic: Topic, parquet: Place) -> None:
    failing = topic.batch().withColumn("key", sf.raise_error(sf.lit("torn")).cast("binary"))
    before = sorted(parquet.folder.iterdir())
    with pytest.raises(PySparkException, match="torn"):
        export_batch(failing, parquet.target)
    assert sorted(parquet.folder.iterdir()) == before
    export_batch(topic.batch(), parquet.target)
    assert (parquet.folder / "out" / "_SUCCESS").exists()
    with pytest.raises(PySparkException, match="torn"):
        export_batch(failing, replace(parquet.target, mode="append"))
    assert not (parquet.folder / "out" / "_SUCCESS").exists()


def test_partitions_and_options(spark: SparkSession, topic: Topic, parquet: Place) -> None:
    frame = topic.batch().withColumn("day", sf.to_date("timestamp"))
    target = replace(parquet.target, partition_by=("day", "partition"), options={"compression": "gzip"})
    export_batch(frame, target)
    names = visible(target.location)
    assert all("/day=2023-11-14/partition=" in name and name.endswith(".gz.parquet") for name in names)
    assert parquet.offsets() == [0, 1, 2, 3]
    with pytest.raises(ExportError, match="no column colour to partition by; columns are key, value"):
        export_batch(frame, replace(target, partition_by=("colour",)))
    iceberg = table_target("iceberg", parquet.folder)
    iceberg = replace(iceberg, partition_by=("day", "partition"), mode="append")
    export_batch(frame, iceberg)
    export_batch(frame, iceberg)
    place = Place(spark, iceberg, parquet.folder)
    assert place.offsets() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert {row["partition"] for row in place.read().collect()} == {0, 1}


@pytest.mark.parametrize(
    ("bytes_as", "key", "value"),
    [("hex", "6BFF", "30"), ("text", "k\ufffd", "0"), ("base64", "a/8=", "MA==")],
)
def test_bytes_as_text(
    spark: SparkSession, topic: Topic, parquet: Place, bytes_as: str, key: str, value: str
) -> None:
    target = replace(parquet.target, form="csv", bytes_as=bytes_as)
    bare = {"key": sf.lit(None).cast("binary"), "value": sf.lit(b""), "headers": sf.lit(None)}
    columns = {name: sf.when(sf.expr("offset % 4 = 3"), bare[name]).otherwise(sf.col(name)) for name in bare}
    export_batch(topic.batch().withColumns(columns), target)
    rows = Place(spark, target, parquet.folder).read().orderBy("offset").collect()
    assert (rows[0]["key"], rows[0]["value"]) == (key, value)
    assert json.loads(rows[0]["headers"])[0]["key"] == "h"
    # Quotes distinguish an empty value from null.
    (last,) = [
        line
        for name in visible(target.location)
        for line in Path(name).read_text().splitlines()
        if line.startswith(",")
    ]
    assert last.startswith(',"",t,1,')


def test_csv_is_read_by_others(spark: SparkSession, tmp_path: Path) -> None:
    texts = [
        'a"b',
        "a\\b",
        "\\",
        '\\"',
        "  x \t",
        "x\ny",
        "x\r\ny",
        "a,b",
        "#x",
        '"',
        "",
        None,
        "\u00e9\u2028",
    ]
    kind = "number int, text string, headers array<struct<key:string,value:binary>>"
    rows = [(number, text, [(text, b"\xff")]) for number, text in enumerate(texts)]
    export_batch(spark.createDataFrame(rows, kind).coalesce(1), Target(str(tmp_path / "out"), "csv"))
    (file,) = (tmp_path / "out").glob("*.csv")
    with file.open(newline="", encoding="utf-8") as lines:
        names, *found = csv.reader(lines)
    assert names == ["number", "text", "headers"]
    assert [text for _, text, _ in found] == [text or "" for text in texts]
    assert [json.loads(headers) for *_, headers in found] == [
        [{"key": text, "value": "/w=="}] if text is not None else [{"value": "/w=="}] for text in texts
    ]
    schema = kind.replace("array<struct<key:string,value:binary>>", "string")
    reader = spark.read.schema(schema).options(header="true", escape='"', multiLine="true")
    # Spark's reader doesn't distinguish an empty text from null.
    assert [row["text"] for row in reader.csv(str(file)).collect()] == [text or None for text in texts]


def test_targets_that_cannot_be(topic: Topic, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"form": "xml"}, "the format must be one of parquet"),
        ({"mode": "upsert"}, "the mode must be one of error"),
        ({"bytes_as": "octal"}, "encoding of bytes"),
        ({"form": "jdbc"}, "needs the name of a table"),
        ({"form": "jdbc", "table": "t"}, "is not the URL of a database"),
        ({"form": "iceberg", "table": "t"}, "t is not a table of a catalog: use NAMESPACE.TABLE"),
        ({"form": "jdbc", "table": "t", "partition_by": ("a",)}, "a database partitions its tables itself"),
    ]
    for wrong, message in cases:
        with pytest.raises(ExportError, match=message):
            Target(str(tmp_path), **wrong)
    topic.add(0, 1)
    unknown = Target("jdbc:nowhere:x", "jdbc", table="t")
    with pytest.raises(ExportError, match=r"no JDBC driver for jdbc:nowhere: add its jar by --jar"):
        export_batch(topic.batch(), unknown)
    with pytest.raises(ExportError, match=r"no connection to jdbc:derby: .*not found"):
        export_batch(topic.batch(), Target(f"jdbc:derby:{tmp_path}/none", "jdbc", table="t"))
    secret = Target(f"jdbc:derby:{tmp_path}/none;user=ada;password=hush", "jdbc", table="t")
    with pytest.raises(ExportError, match="no connection to jdbc:derby") as caught:
        export_batch(topic.batch(), secret)
    assert "hush" not in str(caught.value)
    with pytest.raises(ExportError, match="Iceberg catalog nowhere"):
        export_batch(topic.batch(), Target("nowhere", "iceberg", table="a.b"))
    lost = replace(table_target("iceberg", tmp_path), options={"type": "sql", "uri": "sqlite:////none/x.db"})
    with pytest.raises(ExportError, match=r"Iceberg catalog test: .*unable to open database file"):
        export_batch(topic.batch(), lost)
    away = replace(lost, options={"type": "rest", "uri": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(ExportError, match=r"Iceberg catalog test: .*Connection refused"):
        export_batch(topic.batch(), away)
    with (
        pytest.raises(ExportError, match="needs a folder for its checkpoint"),
        export_stream(topic.stream(), unknown, "t"),
    ):
        pass


def test_topics_of_a_keyspace(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t", 2)
    address = Address(keyspace.url)
    target = Target(str(tmp_path / "out"))
    for number in range(4):
        keyspace.add("t", number % 2, f"{MS}-{number}", b"key", b"k", b"value", b"v")
    with export_stream(stream_topics(spark, address, ["t"]), target, "t") as query:
        assert query.awaitTermination(QUERY_TIMEOUT_S)
    assert Place(spark, target, tmp_path).offsets() == [0, 1, 2, 3]
    past = json.dumps({"t": {"0": (MS << 10) + 1}})
    assert read_topics(spark, address, ["t"], {"startingOffsets": past}).count() == 3
    with pytest.raises(SourceError, match="no topic nowhere"):
        read_topics(spark, address, ["t", "nowhere"])


@pytest.mark.short
def test_tables(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    keyspace.topic("t")
    keyspace.offsets_topic()
    for number in range(4):
        keyspace.add("t", 0, f"{MS}-{number}", b"value", b"v")
    keyspace.commit("g", "t", 0, (MS << 10) + 1, at_ms=MS + 5)
    address = Address(keyspace.url)
    target = Target(str(tmp_path / "lag"), "csv")
    export_batch(batch_table(spark, RedisReader(address), "time_lag", MS + 1000), target)
    (row,) = Place(spark, target, tmp_path).read().collect()
    assert (row["group"], row["lag_ms"]) == ("g", "1000")
    commits = Target(str(tmp_path / "commits"), partition_by=("src_date",))
    keyspace.commit("g", "t", 0, (MS << 10) + 2, at_ms=MS + 6)
    with export_stream(stream_table(spark, address, "offset_commits"), commits, "c") as query:
        assert query.awaitTermination(QUERY_TIMEOUT_S)
    found = Place(spark, commits, tmp_path).read().select("group", "committed_offset", "src_offset")
    assert [row["src_offset"] for row in found.orderBy("src_offset").collect()] == [0, 1]
    with pytest.raises(ExportError, match="rows of members change"):
        stream_table(spark, address, "members")
    records = stream_table(spark, address, "group_records")
    assert records.columns == [column.name for column in TABLES["group_records"].columns]


def test_what_spark_refuses_is_said_in_one_line(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyspace.topic("t")
    keyspace.topic("lost")
    keyspace.add("t", 0, f"{MS}-0", b"value", b"v")
    monkeypatch.setattr(export_command, "spark_session", lambda *_, **__: nullcontext(spark))
    database = f"jdbc:derby:{tmp_path}/db;create=true"
    jdbc = ["--format", "jdbc", "--into", "t", "--mode", "append", "--to", database]
    follow = ["--available-now", "--checkpoint", f"{tmp_path}/checkpoint"]
    names = ["--source-option", "failOnDataLoss=true", "--available-now", "--to", f"{tmp_path}/lost"]

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(cli.export, [*arguments, "--redis", keyspace.url])
        assert result.exit_code == (0 if "Error" not in result.output else 1), result.exception
        return result.output.rpartition("Error: ")[2].strip()

    out = ["--to", f"{tmp_path}/out"]
    assert said("t", *out, "--option", "compression=none-such").startswith("[CODEC_NOT_AVAILABLE")
    assert said("t", "--to", "foo://bar/x") == 'No FileSystem for scheme "foo"'
    assert said("t", "--to", "s3a://bar/x").endswith(NEEDS_JAR)
    refusal = "DATA_SOURCE_PUSHDOWN_DISABLED" if features().filter_pushdown else "pushdown needs Spark 4.1"
    assert refusal in said("t", *out, "--source-option", "pushdown=true")
    said("t", *jdbc)
    keyspace.offsets_topic()
    keyspace.commit("g", "t", 0, 1, at_ms=MS)
    wrong = said("--table", "offset_commits", *jdbc)
    assert wrong == "'group' is not a column in table or VTI 'APP.T'."
    assert said("--table", "offset_commits", *jdbc, *follow).endswith(wrong)
    reader = spark.read.format("jdbc").options(url=database, query="SELECT TABLENAME FROM SYS.SYSTABLES")
    tables = {row[0] for row in reader.load().collect()}
    assert {name for name in tables if "KORVET" in name} == {"KORVET_EXPORTS"}
    keyspace.add("lost", 0, f"{MS}-0", b"value", b"v")
    said("lost", *names)
    keyspace.client.hset("{korvet}:topics", "lost", '{"partitions": 1, "topic_id": "another"}')
    assert said("lost", *names).startswith(
        "topic lost was deleted and created again since the query last read it."
    )
