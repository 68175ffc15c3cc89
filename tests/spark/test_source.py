"""The data source on a real Valkey: layout, ends, native entries, options, entries without an offset."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from korvet.offsets.packing import pack
from korvet.records.native import native_json as broker_json
from korvet.spark.records.fields import native_json
from korvet.spark.versions import features

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = [pytest.mark.spark, pytest.mark.short]

MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.orderBy("topic", "partition", "offset").collect()]


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def test_schema_is_that_of_the_kafka_source(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t")
    frame = keyspace.read(spark, "t")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    assert frame.collect() == []


def test_every_kind_of_own_entry(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    keyspace.add("t", 1, f"{MS}-7", b"key", b"\x00k", b"value", b"\xffv", b"ts", b"-5")
    keyspace.add("t", 1, f"{MS}-8", b"key", b"k", b"ts", b"0")
    keyspace.add("t", 1, f"{MS}-9", b"value", b"")
    keyspace.add("t", 1, f"{MS + 1}-0", b"ts", b"3")
    keyspace.add(
        "t", 1, f"{MS + 1}-1", b"value", b"v", b"header.a", b"1", b"nullheader.a", b"", b"header.", b"\xfe"
    )
    got = rows(keyspace.read(spark, "t"))
    assert [row["offset"] for row in got] == [
        pack(MS, 7),
        pack(MS, 8),
        pack(MS, 9),
        pack(MS + 1, 0),
        pack(MS + 1, 1),
    ]
    assert [(row["key"], row["value"]) for row in got] == [
        (b"\x00k", b"\xffv"),
        (b"k", None),
        (None, b""),
        (None, None),
        (None, b"v"),
    ]
    expected_ms = [MS - 5, MS, MS, MS + 4, MS + 1]
    assert [row["timestamp"] for row in got] == [at(ms) for ms in expected_ms]
    assert {row["topic"] for row in got} == {"t"}
    assert {row["partition"] for row in got} == {1}
    assert {row["timestampType"] for row in got} == {0}
    assert [row["headers"] for row in got[:4]] == [None] * 4
    assert got[4]["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "", "value": b"\xfe"},
    ]


@pytest.mark.parametrize(
    ("fields", "document"),
    [
        ((b"name", b"ada", b"age", b"36"), {"name": "ada", "age": "36"}),
        ((b"raw", b"\xff\x00"), {"raw": {"base64": "/wA="}}),
        ((b"tag", b"x", b"tag", b"y"), {"tag": ["x", "y"]}),
        ((b"key", b"a", b"key", b"b"), {"key": ["a", "b"]}),
        ((b"value", b"v", b"ts", b"soon"), {"value": "v", "ts": "soon"}),
        ((b"value", b"v", b"ts", b"9223372036854775807"), {"value": "v", "ts": "9223372036854775807"}),
        ((b"value", b"v", b"other", b"1"), {"value": "v", "other": "1"}),
    ],
)
def test_native_entry_is_a_json_value(
    spark: SparkSession, keyspace: Keyspace, fields: tuple[bytes, ...], document: dict[str, Any]
) -> None:
    keyspace.topic("t")
    keyspace.add("t", 0, f"{MS}-0", *fields)
    (row,) = rows(keyspace.read(spark, "t"))
    assert json.loads(row["value"]) == document
    assert row["key"] is None
    assert row["headers"] is None
    assert row["timestamp"] == at(MS)


def test_native_entry_by_one_field(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 1, {"native.format": "field:body"})
    keyspace.add("t", 0, f"{MS}-0", b"id", b"7", b"body", b"\xff\x00", b"body", b"second")
    keyspace.add("t", 0, f"{MS}-1", b"id", b"8")
    keyspace.add("t", 0, f"{MS}-2", b"value", b"own")
    got = rows(keyspace.read(spark, "t"))
    assert [row["value"] for row in got] == [b"\xff\x00", b'{"id":"8"}', b"own"]


def test_a_time_that_spark_cannot_hold_is_null(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.add("t", 0, f"{MS}-0", b"value", b"v", b"ts", str(2**62).encode())
    (row,) = rows(keyspace.read(spark, "t"))
    assert (row["value"], row["timestamp"]) == (b"v", None)


def test_dense_topic_counts_from_zero(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("d", 1, {"offset.assignment": "dense", "message.timestamp.type": "LogAppendTime"})
    for entry in ("0-1", "0-1023", "1-0"):
        keyspace.add("d", 0, entry, b"value", b"v", b"ts", str(MS).encode())
    got = rows(keyspace.read(spark, "d"))
    assert [row["offset"] for row in got] == [0, 1022, 1023]
    assert [row["timestamp"] for row in got] == [at(MS), at(MS), at(MS + 1)]
    assert {row["timestampType"] for row in got} == {1}


def test_entries_without_an_offset_are_left_out(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    for sequence in (0, 1023, 1024, 99999):
        keyspace.add("t", 0, f"{MS}-{sequence}", b"value", str(sequence))
    keyspace.add("t", 1, f"{MS}-1", b"value", b"1")
    keyspace.add("t", 1, f"{2**60}-1", b"value", b"2")
    got = rows(keyspace.read(spark, "t"))
    assert [(row["partition"], row["value"]) for row in got] == [(0, b"0"), (0, b"1023"), (1, b"1")]


def test_many_pages_of_both_kinds(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 3)
    expected: dict[int, int] = {}
    pipe = keyspace.client.pipeline(transaction=False)
    for number in range(9_000):
        partition = number % 3
        fields: dict[str, Any] = {"key": b"k", "value": b"%d" % number, "ts": 0}
        if partition == 2 and number % 100 == 2:
            fields = {"n": number}
        pipe.xadd(f"korvet:t:{partition}", fields, id=f"{MS + number // 2}-{number % 1000}")
        expected[partition] = expected.get(partition, 0) + 1
    pipe.execute()
    frame = keyspace.read(spark, "t")
    counts = (
        frame.groupBy("partition")
        .agg(sf.count("*").alias("n"), sf.countDistinct("offset").alias("d"))
        .collect()
    )
    assert {row["partition"]: (row["n"], row["d"]) for row in counts} == {
        p: (n, n) for p, n in expected.items()
    }


def test_large_values_are_read_in_small_pages(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t")
    for number in range(12):
        keyspace.add("t", 0, f"{MS}-{number}", b"value", bytes([number]) * 3_000_000)
    got = keyspace.read(spark, "t").select(
        sf.length("value").alias("n"), sf.hex(sf.substring("value", 1, 1)).alias("b")
    )
    assert [(row["n"], row["b"]) for row in got.collect()] == [(3_000_000, f"{n:02X}") for n in range(12)]


def test_several_topics_and_offset_limits(spark: SparkSession, keyspace: Keyspace) -> None:
    for topic in ("a", "b"):
        keyspace.topic(topic)
        for sequence in range(5):
            keyspace.add(topic, 0, f"{MS}-{sequence}", b"value", b"v")
    starting = json.dumps({"a": {"0": pack(MS, 3)}, "b": {"0": -2}})
    ending = json.dumps({"b": {"0": pack(MS, 2)}})
    got = rows(keyspace.read(spark, ["a", "b"], startingOffsets=starting, endingOffsets=ending))
    assert [(row["topic"], row["offset"] - pack(MS, 0)) for row in got] == [
        ("a", 3),
        ("a", 4),
        ("b", 0),
        ("b", 1),
    ]
    assert keyspace.read(spark, "a", startingOffsets='{"a": {"0": -1}}').count() == 0


def test_another_keyspace(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.client.hset("{other}:topics", "t", json.dumps({"partitions": 1}))
    keyspace.client.xadd("other:t:0", {"value": "v"}, id="5-0")
    assert [row["offset"] for row in rows(keyspace.read(spark, "t", keyspace="other"))] == [5 << 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": "nowhere"}, "no topic nowhere in keyspace 'korvet'.*topics there: t"),
        ({}, "give the option topic"),
        ({"topics": "t", "colour": "red"}, "unknown option colour"),
        ({"topics": "t", "redis": "redis://:hush@127.0.0.1:1"}, "must not contain a password"),
        ({"topics": "t", "redis": "redis://127.0.0.1:1"}, "no usable Redis at redis://127.0.0.1:1"),
    ],
)
def test_clear_errors(spark: SparkSession, keyspace: Keyspace, options: dict[str, str], message: str) -> None:
    keyspace.topic("t")
    reader = spark.read.format("korvet").options(**{"redis": keyspace.url, **options})
    with pytest.raises(PySparkException, match=message) as raised:
        reader.load().collect()
    assert "hush" not in str(raised.value)


def test_wrong_type_of_key(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.client.set("korvet:t:0", "no stream")
    with pytest.raises(PySparkException, match="WRONGTYPE"):
        keyspace.read(spark, "t").collect()


def test_password_is_in_no_plan(
    spark: SparkSession, keyspace: Keyspace, capsys: pytest.CaptureFixture[str]
) -> None:
    keyspace.topic("t")
    keyspace.client.execute_command("ACL", "SETUSER", "reader", "on", ">pa55w0rd", "~*", "+@all")
    url = keyspace.url.replace("unix://", "unix://reader@")
    keyspace.add("t", 0, f"{MS}-0", b"value", b"v")
    frame = keyspace.read(spark, "t", redis=url, **{"redis.password": "pa55w0rd"})
    assert frame.count() == 1
    frame.explain(mode="extended")
    assert "pa55w0rd" not in capsys.readouterr().out


@pytest.mark.skipif(not features().filter_pushdown, reason="this Spark passes no filters to Python")
def test_pushdown_reads_only_what_is_asked(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    for partition in range(2):
        for sequence in range(10):
            value = b"%d" % sequence
            keyspace.add("t", partition, f"{MS}-{sequence}", b"value", value, b"ts", value)
    keyspace.client.zadd("{korvet:t:0}:index", {f"{pack(MS, 5)} 5 {MS} {MS + 4} {MS + 4} 0": pack(MS, 5)})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = keyspace.read(spark, "t", pushdown="true")
        base = pack(MS, 0)
        wanted = frame.where(
            (sf.col("partition") == 1)
            & (sf.col("offset") > base + 2)
            & (sf.col("offset") <= base + 7)
            & (sf.col("value") != sf.lit(b"5"))
        )
        assert [row["value"] for row in rows(wanted)] == [b"3", b"4", b"6", b"7"]
        assert frame.where(sf.col("offset").isin(base, base + 1)).count() == 4
        assert frame.where(sf.col("partition").isin(0, 5)).count() == 10
        recent = sf.col("timestamp") >= sf.lit(at(MS + 5))
        assert [row["value"] for row in rows(frame.where(recent & (sf.col("partition") == 0)))] == [
            b"%d" % number for number in range(5, 10)
        ]
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_stream_gives_every_record_once(spark: SparkSession, keyspace: Keyspace, tmp_path: Any) -> None:
    keyspace.topic("t", 2)
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    keyspace.client.execute_command("ACL", "SETUSER", "streamer", "on", ">pa55w0rd", "~*", "+@all")
    login = {"redis.user": "streamer", "redis.password": "pa55w0rd"}

    def run() -> None:
        source = spark.readStream.format("korvet").option("redis", keyspace.url).option("topic", "t")
        limit = {"maxRecordsPerTrigger": "30"} if features().read_limits else {}
        stream = source.options(**limit, **login).load()
        writer = (
            stream.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        read = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        assert read == ([30, 20] if limit else [50])
        assert "pa55w0rd" not in "".join(progress.json for progress in query.recentProgress)

    for batch in range(2):
        for sequence in range(50):
            keyspace.add("t", sequence % 2, f"{MS + batch}-{sequence}", b"value", b"%d" % sequence)
        run()
    got = spark.read.parquet(out)
    assert got.count() == 100
    assert got.select("partition", "offset").distinct().count() == 100


@given(
    st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8) | st.text(max_size=8).map(str.encode)))
)
@example([(b"base64:x", b"v"), (b"\xff", b'\x00\x1f\x7f"\\/'), (b"a", b"1"), (b"a", b"\xfe")])
def test_native_json_is_the_brokers(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = [part for pair in pairs for part in pair]
    assert native_json(fields) == broker_json(fields)
