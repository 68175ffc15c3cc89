"""The sink in a Spark session, on a real korvet: readers of Kafka's protocol, XRANGE and the source agree."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException

from korvet.offsets.packing import offset_of
from korvet.spark.source.sink.kafka_client import KafkaTopics
from korvet.spark.source.sink.kafka_cluster import KafkaCluster
from korvet.spark.source.sink.progress import job_group
from korvet.spark.versions import running
from tests.support.admin import create_topic
from tests.support.confluent import Read, producer, read_all, send
from tests.support.records import NOW_MS, Record, RecordMaker
from tests.support.servers import KAFKA_VARIABLE, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

PARTITIONS = 3
BOOTSTRAP = "kafka.bootstrap.servers"
# Whether Spark fills the columns that an INSERT omits.
FILLS_COLUMNS = running() >= (4, 1)
COLUMNS = (
    "key binary, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key string, value binary>>"
)


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: looks into Redis")
    server = KorvetServer()
    try:
        server.start()
        for name, configs in {
            "rows": {},
            "copy": {},
            "dense": {"offset.assignment": "dense"},
            "batches": {"storage.layout": "batch"},
            "sql": {},
            "some": {},
            "kafka": {},
            "streamed": {},
            "again": {},
        }.items():
            create_topic(server.bootstrap, name, PARTITIONS, configs)
        yield server
    finally:
        server.discard()


def url(server: KorvetServer) -> str:
    return f"unix://{server.socket_path()}"


def save(frame: DataFrame, server: KorvetServer, mode: str = "append", **options: str) -> None:
    given = {BOOTSTRAP: server.bootstrap, **options}
    frame.write.format("korvet").mode(mode).options(**given).save()


def read(spark: SparkSession, server: KorvetServer, topic: str) -> list[Any]:
    frame = spark.read.format("korvet").options(redis=url(server), topic=topic).load()
    return frame.orderBy("partition", "offset").collect()


def as_read(rows: list[Any], partition: int) -> list[Read]:
    """Return the rows of a partition as a Kafka client reads them."""
    return [
        Read(
            row["offset"],
            Record(
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                round(row["timestamp"].timestamp() * 1000),
            ),
        )
        for row in rows
        if row["partition"] == partition
    ]


@pytest.mark.parametrize("topic", ["rows", "dense", "batches"])
@pytest.mark.short
def test_all_readers_agree(spark: SparkSession, server: KorvetServer, topic: str) -> None:
    """Random records from Spark, between records of a Kafka producer."""
    maker = RecordMaker(20261125)
    records = [maker.record(NOW_MS) for _ in range(60)]
    rows = [
        (
            record.key,
            record.value,
            topic,
            number % PARTITIONS,
            datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
            list(record.headers),
        )
        for number, record in enumerate(records)
    ]
    client = producer(server.bootstrap)
    mark = Record(b"k", b"mark", (), NOW_MS)
    for partition in range(PARTITIONS):
        send(client, topic, partition, [mark])
    save(spark.createDataFrame(rows, COLUMNS).coalesce(1), server)
    for partition in range(PARTITIONS):
        send(client, topic, partition, [mark])
    found = read(spark, server, topic)
    for partition in range(PARTITIONS):
        kafka = read_all(server.bootstrap, topic, partition)
        assert kafka == as_read(found, partition)
        assert [one.record for one in kafka] == [mark, *records[partition::PARTITIONS], mark]
        entries = server.redis.xrange(f"korvet:{topic}:{partition}")
        offsets = [
            offset_of(entry, int(topic == "dense")) for entry, fields in entries if b"ctl" not in fields
        ]
        if topic == "batches":
            # An entry is a batch, or a batch with a marker, and has the offset of its last record.
            assert {kafka[0].offset, kafka[-1].offset} <= set(offsets)
        else:
            assert offsets == [one.offset for one in kafka]


def test_keys_and_no_keys(spark: SparkSession, server: KorvetServer) -> None:
    """Keys as librdkafka's producers distribute them with murmur2; strings; the time of the append."""
    frame = spark.range(300).selectExpr("cast(id % 20 as string) key", "cast(id as string) value")
    before_ms = int(server.redis.time()[0]) * 1000
    save(frame, server, topic="copy")
    client = producer(server.bootstrap, partitioner="murmur2_random")
    for number in range(20):
        client.produce("copy", b"kafka", b"%d" % number)
    client.flush(20)
    rows = read(spark, server, "copy")
    homes: dict[bytes, set[int]] = {}
    for row in rows:
        homes.setdefault(bytes(row["key"]), set()).add(row["partition"])
        assert row["timestamp"].timestamp() * 1000 >= before_ms
    assert len(rows) == 320
    assert all(len(partitions) == 1 for partitions in homes.values())
    assert len(set().union(*homes.values())) == PARTITIONS


def both(server: KorvetServer) -> str:
    """The options of SQL to read and to write."""
    return f"redis '{url(server)}', kafka.bootstrap.servers '{server.bootstrap}'"


@contextmanager
def view(spark: SparkSession, server: KorvetServer, topic: str, columns: str = "") -> Iterator[str]:
    """A view of a topic, with all columns or those given, until the end of the block. Returns its name."""
    name, options = f"{topic}_{len(columns)}", f"{both(server)}, topic '{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW {name} {columns} USING korvet OPTIONS ({options})")
    try:
        yield name
    finally:
        spark.catalog.dropTempView(name)


def test_sql(spark: SparkSession, server: KorvetServer) -> None:
    with (
        view(spark, server, "sql", "(key BINARY, value BINARY)") as narrow,
        view(spark, server, "sql", "(topic STRING, value BINARY)") as named,
        view(spark, server, "sql") as wide,
    ):
        spark.sql(f"INSERT INTO {narrow} VALUES (X'31', X'32'), (NULL, X'33')")
        spark.sql(f"INSERT INTO {narrow} (value, key) SELECT X'32', X'31'")
        spark.sql(f"INSERT INTO {wide} SELECT * FROM {wide}")
        # The option topic comes before the column.
        spark.sql(f"INSERT INTO {named} VALUES ('nowhere', X'34')")
        with pytest.raises(AnalysisException, match="a topic can't be overwritten"):
            spark.sql(f"INSERT OVERWRITE {narrow} VALUES (X'35', X'35')")
    rows = [(row["key"], row["value"]) for row in read(spark, server, "sql")]
    assert sorted(rows, key=str) == [*[(None, b"3")] * 2, (None, b"4"), *[(b"1", b"2")] * 4]


def test_sql_with_the_columns_of_sparks_kafka_sink(spark: SparkSession, server: KorvetServer) -> None:
    """A view without a topic can only be written."""
    columns = COLUMNS.replace(", timestamp timestamp", "")
    spark.sql(f"CREATE TEMPORARY VIEW anywhere ({columns}) USING korvet OPTIONS ({both(server)})")
    try:
        spark.sql(
            "INSERT INTO anywhere SELECT cast('sql' AS binary), X'31', 'copy', 2, "
            "array(named_struct('key', 'h', 'value', X'32'), named_struct('key', 'h', 'value', NULL))"
        )
        with pytest.raises(AnalysisException, match="give the option topic"):
            spark.sql("SELECT * FROM anywhere").collect()
    finally:
        spark.catalog.dropTempView("anywhere")
    (found,) = (row for row in read(spark, server, "copy") if row["key"] == b"sql")
    assert (found["partition"], found["value"]) == (2, b"1")
    assert [tuple(header) for header in found["headers"]] == [("h", b"2"), ("h", None)]


def test_a_write_that_is_repeated(spark: SparkSession, server: KorvetServer) -> None:
    """Readers agree after a write, and after its repetition."""
    frame = spark.range(600).selectExpr("cast(id as string) value", "cast(id % 3 as int) partition")
    options = {BOOTSTRAP: server.bootstrap, "topic": "kafka", "jobId": "nightly"}
    for _ in range(2):
        frame.coalesce(2).write.format("korvet").mode("append").options(**options).save()
    found = read(spark, server, "kafka")
    for partition in range(PARTITIONS):
        kafka = read_all(server.bootstrap, "kafka", partition)
        assert kafka == as_read(found, partition)
        assert sorted(int(one.record.value or b"") for one in kafka) == list(range(partition, 600, 3))
        entries = server.redis.xrange(f"korvet:kafka:{partition}")
        values = [fields[b"value"] for _, fields in entries if b"value" in fields]
        assert values == [one.record.value for one in kafka]
    with pytest.raises(AnalysisException, match="no topic nowhere in Kafka at 127"):
        frame.write.format("korvet").mode("append").options(**{**options, "topic": "nowhere"}).save()


@pytest.mark.skipif(not FILLS_COLUMNS, reason="this Spark wants all columns of a view")
def test_sql_with_some_columns(spark: SparkSession, server: KorvetServer) -> None:
    with view(spark, server, "some") as wide:
        spark.sql(f"INSERT INTO {wide} (key, value) VALUES (X'31', X'32')")
    assert [(row["key"], row["value"]) for row in read(spark, server, "some")] == [(b"1", b"2")]


@pytest.mark.skipif(FILLS_COLUMNS, reason="this Spark fills the columns that an INSERT omits")
def test_some_columns_are_refused(
    spark: SparkSession, server: KorvetServer, record_property: Callable[[str, object], None]
) -> None:
    with (
        view(spark, server, "some") as wide,
        pytest.raises(AnalysisException, match="Cannot find data for the output column") as caught,
    ):
        spark.sql(f"INSERT INTO {wide} (key, value) VALUES (X'31', X'32')")
    record_property("refused", str(caught.value).splitlines()[0])


def test_a_batch_that_is_replayed(spark: SparkSession, server: KorvetServer, tmp_path: Path) -> None:
    """A driver is killed after the batch was written and before Spark noted it: the next one repeats it."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    spark.range(100).selectExpr("cast(id as string) value").coalesce(2).write.text(str(source))

    def run() -> None:
        rows = spark.readStream.schema("value string").text(str(source))
        stream = rows.writeStream.format("korvet").options(
            **{BOOTSTRAP: server.bootstrap, "topic": "streamed"}
        )
        query = stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    for noted in (checkpoint / "commits").glob("*0*"):
        noted.unlink()
    run()
    rows = read(spark, server, "streamed")
    assert sorted(int(row["value"]) for row in rows) == list(range(100))
    run()
    assert len(read(spark, server, "streamed")) == 100


def test_a_job_id_makes_a_job_repeatable(spark: SparkSession, server: KorvetServer) -> None:
    before = len(read(spark, server, "copy"))
    frame = spark.range(50).selectExpr("cast(id as string) value").coalesce(1)
    for _ in range(2):
        save(frame, server, topic="copy", jobId="nightly-7")
    assert len(read(spark, server, "copy")) == before + 50


def test_a_frame_in_other_partitions(spark: SparkSession, server: KorvetServer) -> None:
    frame = spark.range(0, 40, 1, 4).selectExpr("cast(id as string) value")
    save(frame, server, topic="again", jobId="again")
    more = spark.range(0, 40, 1, 8).selectExpr("cast(id as string) value")
    for others in (frame.coalesce(2), more):
        with pytest.raises(PythonException, match=r"as many (tasks|partitions) as before"):
            save(others, server, topic="again", jobId="again")
    save(frame, server, topic="again", jobId="again")
    rows = read(spark, server, "again")
    assert sorted(int(row["value"]) for row in rows) == list(range(40))
    # Also of a job that failed, the number of tasks is known.
    with pytest.raises(PythonException, match="has no partition 9"):
        save(frame.selectExpr("value", "9 partition"), server, topic="again", jobId="failing")
    with closing(KafkaTopics(KafkaCluster(server.bootstrap), job_group("failing"), 20)) as topics:
        assert topics.noted("korvet-sink-progress") == "4"


def test_refusals(spark: SparkSession, server: KorvetServer) -> None:
    frame = spark.range(1).selectExpr("cast(id as string) value", "'nowhere' topic")
    for options, message in [
        ({"topic": "rows", "jobid": "a b"}, "jobId must be 1 to 100 letters"),
        ({"topic": "nowhere"}, "no topic nowhere in Kafka at 127"),
        ({"colour": "red"}, "unknown option colour; the korvet sink has topic, jobId"),
        ({"kafka.acks": "all"}, "kafka.acks: the sink sets this property itself"),
        (
            {"minReplicas": "1"},
            "the korvet sink has no option minReplicas; use the topic's config min",
        ),
    ]:
        with pytest.raises(AnalysisException, match=message):
            save(frame, server, **options)
    for columns, message in [
        (["topic"], "the korvet sink needs a column value; the frame has topic"),
        (["value", "1 colour"], "can't write a column colour of type int; it has key binary or string"),
        (["1L value"], "can't write a column value of type bigint"),
        (["value"], "give the option topic, or a column topic"),
    ]:
        with pytest.raises(AnalysisException, match=message):
            save(frame.selectExpr(*columns), server)
    with pytest.raises(AnalysisException, match="a topic can't be overwritten: use mode append"):
        save(frame, server, "overwrite", topic="rows")
    with pytest.raises(
        PythonException, match=r"(?s)row 1 of task \d of job .*no topic nowhere.*written no records"
    ):
        save(frame, server)
