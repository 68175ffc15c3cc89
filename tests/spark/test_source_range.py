"""Start, end, division and data loss of a batch read: the readers on a real Valkey."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from korvet.offsets.packing import entry_id, pack
from korvet.spark.records.columns import Origin
from korvet.spark.records.entries import addressable
from korvet.spark.source.errors import DataLoss, SourceError
from korvet.spark.source.extents import StreamRange
from korvet.spark.source.planning import records_per_task
from korvet.spark.source.settings import SourceOptions
from tests.api.batches import batch as record_batch
from tests.spark.direct import batch, rows_of, schema_of, source, tasks, values
from tests.spark.forms import FORMS, using
from tests.spark.test_batches import stored

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
BASE = pack(MS, 0)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def fill(keyspace: Keyspace, topic: str, partition: int, offsets: list[int]) -> None:
    pipe = keyspace.client.pipeline(transaction=False)
    for offset in offsets:
        pipe.xadd(f"korvet:{topic}:{partition}", {"value": str(offset)}, id=entry_id(offset))
    pipe.execute()


def index(keyspace: Keyspace, topic: str, partition: int, times: dict[int, int], every: int) -> None:
    """The index in its documented form, with a point every `step` records."""
    largest = span = None
    points = {}
    for before, (offset, time_ms) in enumerate(times.items()):
        if before % every == 0:
            largest = max(filter(None, (largest, span)), default=None)
            shown = ["-" if one is None else str(one) for one in (largest, span)]
            points[f"{offset} {before} {offset >> 10} {shown[0]} {shown[1]} 0"] = offset
            span = None
        span = time_ms if span is None else max(span, time_ms)
    keyspace.client.zadd(f"{{korvet:{topic}:{partition}}}:index", points)


def json_of(**parts: Any) -> str:
    return json.dumps(
        {topic: {str(part): value for part, value in limits.items()} for topic, limits in parts.items()}
    )


@pytest.mark.parametrize("indexed", [True, False])
def test_one_partition_becomes_many_tasks(keyspace: Keyspace, indexed: bool) -> None:
    keyspace.topic("hot")
    # Bursts, with hours without a record between them.
    offsets = [pack(MS + hour * 3_600_000 + at, 0) for hour in range(5) for at in range(800)]
    fill(keyspace, "hot", 0, offsets)
    if indexed:
        index(keyspace, "hot", 0, dict.fromkeys(offsets, MS), 50)
    planned = tasks(keyspace, topic="hot", maxRecordsPerPartition="500")
    assert 7 <= len(planned) <= 12
    reader = source(keyspace, topic="hot").reader(schema_of())
    sizes = [len(rows_of(reader, [task])) for task in planned]
    assert sum(sizes) == 4000
    assert max(sizes) <= 1000
    assert [row["offset"] for row in rows_of(reader, planned)] == offsets
    planned = tasks(keyspace, topic="hot", minPartitions="4")
    assert 4 <= len(planned) <= 6
    # The same for a part of the topic.
    some = {
        "startingOffsets": json_of(hot={0: offsets[1000]}),
        "endingOffsets": json_of(hot={0: offsets[2000]}),
    }
    planned = tasks(keyspace, topic="hot", maxRecordsPerPartition="250", **some)
    assert len(planned) > 2
    assert [row["offset"] for row in rows_of(reader, planned)] == offsets[1000:2000]


@pytest.mark.parametrize(
    ("total", "given", "size"),
    [
        (90_000, {}, 90_000),
        (2_000_000, {}, 100_000),
        (32_000_000, {}, 1_000_000),
        (100_000_000, {}, 1_000_000),
        (2_000_000, {"maxRecordsPerPartition": "50000"}, 50_000),
        (200_000, {"minPartitions": "10"}, 20_000),
    ],
)
def test_a_long_partition_of_a_batch_is_spread(total: int, given: dict[str, str], size: int) -> None:
    options = SourceOptions.parse({"topic": "t", **given})
    ranges = [StreamRange("t:0", Origin("t", 0, 0, 0), 0, total, total)]
    assert records_per_task(options, ranges, spread=True) == size
    if not given:
        # The tasks of a stream's batch stay the same from release to release.
        assert records_per_task(options, ranges, spread=False) == min(total, 1_000_000)


def test_an_index_that_ends_early_divides_the_rest_too(keyspace: Keyspace) -> None:
    keyspace.topic("hot")
    offsets = [BASE + at for at in range(3000)]
    fill(keyspace, "hot", 0, offsets)
    index(keyspace, "hot", 0, dict.fromkeys(offsets[:1000], MS), 100)
    planned = tasks(keyspace, topic="hot", maxRecordsPerPartition="250")
    assert len(planned) >= 10
    reader = source(keyspace, topic="hot").reader(schema_of())
    assert max(len(rows_of(reader, [task])) for task in planned) <= 500
    assert [row["offset"] for row in rows_of(reader, planned)] == offsets


def test_short_partitions_share_a_task(keyspace: Keyspace) -> None:
    keyspace.topic("t", 6)
    for partition in range(6):
        fill(keyspace, "t", partition, [BASE + at for at in range(10)])
    assert len(tasks(keyspace, topic="t")) == 1
    assert len(tasks(keyspace, topic="t", minPartitions="6")) == 6
    assert len(batch(keyspace, topic="t", minPartitions="6")) == 60


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    gaps=st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    size=st.integers(1, 20),
    layout=st.lists(st.integers(1, 5), min_size=1, max_size=20),
)
def test_pieces_hold_each_record_once(
    keyspace: Keyspace, gaps: list[int], size: int, layout: list[int]
) -> None:
    """For every division of a partition, of single records and of batches."""
    keyspace.client.flushall()
    keyspace.topic("t", 2)
    offset, singles, batched = BASE, [], []
    for gap in gaps:
        offset += gap
        singles.append(offset)
    fill(keyspace, "t", 0, singles)
    offset = BASE
    for gap, count in zip(gaps, layout, strict=False):
        offset += gap
        data = record_batch([(b"k", b"v")] * count)
        keyspace.add("t", 1, entry_id(offset + count - 1), b"batch", stored(data, offset))
        batched += [*range(offset, offset + count)]
        offset += count
    got = batch(keyspace, topic="t", maxRecordsPerPartition=str(size))
    assert [row["offset"] for row in got if row["partition"] == 0] == singles
    assert [row["offset"] for row in got if row["partition"] == 1] == batched


def test_topics_by_list_pattern_and_partition(keyspace: Keyspace) -> None:
    for topic in ("orders", "orders.eu", "other", "__consumer_offsets"):
        keyspace.topic(topic, 2)
        for partition in range(2):
            keyspace.add(topic, partition, "5-0", b"value", f"{topic}/{partition}")
    both = [b"orders/0", b"orders/1", b"other/0", b"other/1"]
    assert values(batch(keyspace, subscribe="orders, other")) == both
    assert values(batch(keyspace, topics="orders,other")) == both
    matched = batch(keyspace, subscribePattern="orders.*|.*offsets")
    assert {row["topic"] for row in matched} == {"orders", "orders.eu"}
    assert batch(keyspace, subscribePattern="rders") == []
    assigned = batch(keyspace, assign='{"other": [1], "orders": [0]}')
    assert sorted(values(assigned)) == [b"orders/0", b"other/1"]
    assert len(batch(keyspace, subscribe="__consumer_offsets")) == 2


def test_offsets_by_time_are_exact(keyspace: Keyspace) -> None:
    """The first record with such a timestamp, independent of the times of entries."""
    keyspace.topic("t", 2)
    times = [50, 10, 20, 90, 30, 30, 95, 40, 100, 60]
    found = {}
    for at, time_ms in enumerate(times):
        for partition in range(2):
            keyspace.record("t", partition, BASE + 2048 * at, b"%d" % at, MS + time_ms)
        found[BASE + 2048 * at] = MS + time_ms
    index(keyspace, "t", 1, found, 2)
    for wanted in range(0, 101, 5):
        first = next(at for at, time_ms in enumerate(times) if time_ms >= wanted)
        expected = [b"%d" % at for at in range(first, 10)]
        for option in (
            {"startingTimestamp": str(MS + wanted)},
            {"startingOffsetsByTimestamp": json_of(t={0: MS + wanted, 1: MS + wanted})},
        ):
            assert values(batch(keyspace, topic="t", **option)) == expected * 2
        ended = batch(keyspace, topic="t", endingTimestamp=str(MS + wanted))
        assert values(ended) == [b"%d" % at for at in range(first)] * 2


def test_no_record_that_late(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.record("t", 0, BASE, b"v", MS)
    late = str(MS + 1)
    with pytest.raises(SourceError, match="startingTimestamp: t-0 has no record with timestamp"):
        batch(keyspace, topic="t", startingTimestamp=late)
    some = {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert batch(keyspace, topic="t", **some) == []
    assert len(batch(keyspace, topic="t", endingTimestamp=late)) == 1
    by_part = json_of(t={0: MS})
    assert len(batch(keyspace, topic="t", startingOffsetsByTimestamp=by_part)) == 1


def test_times_within_batches(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    for at in range(3):
        data = record_batch([(b"k", b"%d" % at)] * 4, timestamp_ms=MS + at)
        keyspace.add("t", 0, entry_id(BASE + 4 * at + 3), b"batch", stored(data, BASE + 4 * at))
    assert values(batch(keyspace, topic="t", startingTimestamp=str(MS + 1))) == [b"1"] * 4 + [b"2"] * 4
    assert values(batch(keyspace, topic="t", endingTimestamp=str(MS + 1))) == [b"0"] * 4


def test_a_start_before_the_log_is_loss_and_a_gap_is_none(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + 10 * at for at in range(10)])
    keyspace.client.xdel("korvet:t:0", entry_id(BASE + 50))
    assert len(batch(keyspace, topic="t", startingOffsets=json_of(t={0: BASE + 15}))) == 7
    keyspace.client.xtrim("korvet:t:0", minid=entry_id(BASE + 30), approximate=False)
    assert len(batch(keyspace, topic="t")) == 6
    assert len(batch(keyspace, topic="t", startingOffsets=json_of(t={0: -2}))) == 6
    before = {"startingOffsets": json_of(t={0: BASE + 15})}
    with pytest.raises(DataLoss, match=f"t-0 begins at offset {BASE + 30}.*failOnDataLoss=false"):
        batch(keyspace, topic="t", **before)
    assert len(batch(keyspace, topic="t", failOnDataLoss="false", **before)) == 6
    with pytest.raises(DataLoss, match="t-0 ends at offset"):
        batch(keyspace, topic="t", startingOffsets=json_of(t={0: BASE + 1000}))


@pytest.mark.parametrize("how", ["trim", "delete the stream", "delete one entry"])
def test_what_goes_while_it_is_read(keyspace: Keyspace, how: str) -> None:
    keyspace.topic("t")
    offsets = [BASE + at for at in range(2000)]
    fill(keyspace, "t", 0, offsets)
    for fails in ("true", "false"):
        reader = source(keyspace, topic="t", failOnDataLoss=fails).reader(schema_of("offset"))
        (task,) = reader.partitions()
        found = reader.read(task)
        read = [row["offset"] for row in next(found).to_pylist()]
        # One page has been read and the next one is requested.
        if how == "trim":
            keyspace.client.xtrim("korvet:t:0", minid=entry_id(BASE + 1900), approximate=False)
        elif how == "delete one entry":
            keyspace.client.xdel("korvet:t:0", entry_id(BASE + 63 + 256))
        else:
            keyspace.client.delete("korvet:t:0")
        if fails == "true" and how != "delete one entry":
            with pytest.raises(DataLoss, match="t-0 was trimmed or deleted during the read"):
                list(found)
        else:
            read += [row["offset"] for page in found for row in page.to_pylist()]
            assert set(read) <= set(offsets)
            assert len(read) >= 64 + (1935 if how == "delete one entry" else 0)
        keyspace.client.delete("korvet:t:0")
        fill(keyspace, "t", 0, offsets)


def test_what_goes_before_a_task_starts(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + at for at in range(100)])
    reader = source(keyspace, topic="t").reader(schema_of())
    planned = reader.partitions()
    keyspace.client.xtrim("korvet:t:0", maxlen=10, approximate=False)
    with pytest.raises(DataLoss):
        rows_of(reader, planned)


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


APPEND_TIMES = {"message.timestamp.type": "LogAppendTime"}


def test_times_to_offsets_where_timestamps_are_append_times(keyspace: Keyspace) -> None:
    keyspace.topic("t", 1, APPEND_TIMES)
    for number in range(10):
        keyspace.record("t", 0, pack(MS + number * 10, 0), b"v", MS - 1000)
    got = batch(keyspace, topic="t", startingTimestamp=str(MS + 11), endingTimestamp=str(MS + 50))
    assert [row["timestamp"] for row in got] == [at(MS + 20), at(MS + 30), at(MS + 40)]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    assert batch(keyspace, topic="t", startingTimestamp=str(2**53), **latest) == []


@pytest.mark.parametrize("form", [*FORMS, None])
@pytest.mark.parametrize("layout", ["record", "batch"])
@pytest.mark.parametrize("is_indexed", [True, False])
def test_times_that_spark_does_not_have_are_found(
    keyspace: Keyspace, form: Any, layout: str, is_indexed: bool
) -> None:
    """Producers that write microseconds; times beyond 2^52 and before the year 1. The column has null."""
    keyspace.topic("t", 1, {"storage.layout": layout})
    times = [MS, -(2**62), MS * 1000, MS + 1, 2**53 + 1, 2**63 - 1, MS + 2]
    for number, time_ms in enumerate(times):
        if layout == "record":
            keyspace.record("t", 0, BASE + number, b"v", time_ms)
        else:
            data = record_batch([(b"k", b"v")], timestamp_ms=time_ms)
            keyspace.add("t", 0, entry_id(BASE + number), b"batch", stored(data, BASE + number))
    if is_indexed:
        # Times in the index are doubles.
        index(
            keyspace, "t", 0, {BASE + number: int(float(time_ms)) for number, time_ms in enumerate(times)}, 1
        )

    def read(**options: str) -> list[int]:
        return [row["offset"] - BASE for row in batch(keyspace, topic="t", **options)]

    with using(form):
        got = batch(keyspace, topic="t")
        assert [row["timestamp"] for row in got] == [at(MS), None, None, at(MS + 1), None, None, at(MS + 2)]
        for time_ms, first in [
            (0, 0),
            (MS + 1, 2),
            (MS * 1000 + 1, 4),
            (2**53 + 1, 4),
            (2**53 + 2, 5),
            (2**63 - 1, 5),
        ]:
            assert read(startingTimestamp=str(time_ms)) == list(range(first, len(times)))
            assert read(endingTimestamp=str(time_ms)) == list(range(first))


def test_some_columns(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.record("t", 0, BASE, b"v", MS)
    names = "value", "offset"
    reader = source(keyspace, topic="t").reader(schema_of(*names))
    assert rows_of(reader, reader.partitions()) == [{"value": b"v", "offset": BASE}]
    assert "headers" not in source(keyspace, topic="t", includeHeaders="false").schema()
    foreign = StructType([StructField("colour", StringType())])
    with pytest.raises(SourceError, match="no column colour of type string"):
        source(keyspace, topic="t").reader(foreign)


def test_headers_in_every_form(keyspace: Keyspace) -> None:
    """Headers on all records, on some, repeated, null, not UTF-8."""
    keyspace.topic("t", 3)
    for number in range(3):
        value = b"%d" % number
        same = [b"header.a", value, b"nullheader.b", b"", b"header.a", b"x", b"header.\xff", b""]
        keyspace.add("t", 0, f"5-{number}", b"value", value, b"ts", b"0", *same)
        keyspace.add("t", 1, f"5-{number}", b"value", value, *same[: 2 * number])
        keyspace.add("t", 2, f"5-{number}", b"header.only", value)
    whole = [[("a", b"%d" % n), ("b", None), ("a", b"x"), ("\ufffd", b"")] for n in range(3)]
    got = batch(keyspace, topic="t")
    found = [row["headers"] and [(one["key"], one["value"]) for one in row["headers"]] for row in got]
    assert found[:3] == whole
    assert found[3:6] == [None, whole[1][:1], whole[2][:2]]
    assert found[6:] == [[("only", b"%d" % n)] for n in range(3)]
    assert [row["value"] for row in got[:3]] == [b"0", b"1", b"2"]


def test_what_compaction_took_is_no_loss(keyspace: Keyspace) -> None:
    """Korvet stores the first entry that compaction kept; missing entries after it were trimmed."""
    keyspace.topic("c", 1, {"cleanup.policy": "compact"})
    fill(keyspace, "c", 0, [BASE + at for at in range(10)])
    keyspace.client.xtrim("korvet:c:0", minid=entry_id(BASE + 4), approximate=False)
    some = {"startingOffsets": json_of(c={0: BASE + 2})}
    with pytest.raises(DataLoss):
        batch(keyspace, topic="c", **some)
    keyspace.client.hset("{korvet:c:0}:meta", "gap_end", str(BASE + 4))
    assert len(batch(keyspace, topic="c", **some)) == 6
    keyspace.client.xtrim("korvet:c:0", minid=entry_id(BASE + 6), approximate=False)
    with pytest.raises(DataLoss):
        batch(keyspace, topic="c", **some)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_dense_topic_that_is_created_again_during_the_read(keyspace: Keyspace, policy: str) -> None:
    """Its entries have the IDs of the former ones."""

    def create(topic_id: str) -> None:
        configs = {"offset.assignment": "dense", "cleanup.policy": policy}
        document = {"partitions": 1, "topic_id": topic_id, "configs": configs}
        keyspace.client.hset("{korvet}:topics", "d", json.dumps(document))
        for number in range(1, 4):
            keyspace.add("d", 0, f"0-{number}", b"value", topic_id.encode())

    create("a")
    reader = source(keyspace, topic="d").reader(schema_of())
    planned = reader.partitions()
    assert [row["value"] for row in rows_of(reader, planned)] == [b"a"] * 3
    keyspace.client.delete("korvet:d:0")
    create("b")
    with pytest.raises(DataLoss, match="topic d was deleted, or deleted and created again, during the read"):
        rows_of(reader, planned)
    keyspace.client.hset("{korvet}:topics", "d", "unreadable")
    assert len(rows_of(reader, planned)) == 3
    keyspace.client.hdel("{korvet}:topics", "d")
    with pytest.raises(DataLoss, match="topic d was deleted"):
        rows_of(reader, planned)


def test_an_index_that_somebody_wrote_to(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE, BASE + 1])
    keyspace.client.zadd("{korvet:t:0}:index", {"hello": BASE})
    assert len(batch(keyspace, topic="t")) == 2
    with pytest.raises(SourceError, match="'hello' is not a point of korvet's index"):
        batch(keyspace, topic="t", startingTimestamp="5")


def test_ids_beyond_every_offset_are_left_out() -> None:
    """Both halves of an ID are uint64."""
    largest = 2**64 - 1
    ids = [b"1-1", b"1-%d" % largest, b"%d-1" % (2**53 - 1), b"%d-0" % 2**53, b"%d-%d" % (largest, largest)]
    kept, ms, sequence = addressable([(one, [b"value", b"v"]) for one in ids])
    assert [entry[0] for entry in kept] == [ids[0], ids[2]]
    assert (ms.tolist(), sequence.tolist()) == ([1, 2**53 - 1], [1, 1])
