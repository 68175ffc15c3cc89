"""The streaming readers on a real Valkey, with and without limits: positions, loss, new partitions."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import entry_id, pack
from korvet.spark.source.errors import DataLoss, SourceError
from korvet.spark.source.tasks import Task
from korvet.spark.versions import features, features_of
from tests.api.batches import batch
from tests.spark.direct import Stream, values
from tests.spark.test_batches import stored
from tests.spark.test_source_range import fill, index, json_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

    from tests.spark.direct import Rows
    from tests.spark.keyspace import Keyspace

MS = 1_700_000_000_000
BASE = pack(MS, 0)
HOUR = pack(3_600_000, 0)


@pytest.fixture(params=["limited", "unlimited"], autouse=True)
def reader_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test with the reader of Spark 4.2 and with that of Spark 4.0 and 4.1."""
    if request.param == "unlimited":
        monkeypatch.setattr("korvet.spark.source.source.features", lambda: features_of((4, 1)))
    elif not features().read_limits:
        pytest.skip("this Spark has no read limits")
    return str(request.param)


def offsets(rows: Rows | None, partition: int = 0) -> list[int]:
    return [row["offset"] for row in rows or [] if row["partition"] == partition]


def ranges_of(task: InputPartition) -> list[tuple[int, int, int]]:
    assert isinstance(task, Task)
    return [(part.origin.partition, part.start_offset, part.end_offset) for part in task.ranges]


def test_each_record_once_and_no_batch_without_one(keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    stream = Stream(keyspace, topic="t")
    assert stream.trigger() is None
    fill(keyspace, "t", 0, [BASE, BASE + 5])
    assert offsets(stream.trigger()) == [BASE, BASE + 5]
    assert stream.trigger() is None
    # A long idle time, then one record: its offset is billions higher.
    fill(keyspace, "t", 0, [BASE + 500 * HOUR])
    stream.restart()
    assert offsets(stream.trigger()) == [BASE + 500 * HOUR]
    assert stream.trigger() is None


@pytest.mark.parametrize("start", ["earliest", "latest", "json", "time"])
def test_where_a_stream_begins(keyspace: Keyspace, start: str) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    given, first = {
        "earliest": ({}, 0),
        "latest": ({"startingOffsets": "latest"}, 10),
        "json": ({"startingOffsets": json_of(t={0: BASE + 4})}, 4),
        "time": ({"startingTimestamp": str(MS + 1), "startingOffsetsByTimestampStrategy": "latest"}, 10),
    }[start]
    stream = Stream(keyspace, topic="t", **given)
    fill(keyspace, "t", 0, [BASE + at for at in range(10, 12)])
    assert offsets(stream.trigger()) == [BASE + at for at in range(first, 12)]


def test_a_batch_that_is_planned_again_has_the_same_tasks(keyspace: Keyspace) -> None:
    """A sink that notes what it has of each task relies on that, after records were added, too."""
    keyspace.topic("t", 100)
    for partition in range(100):
        fill(keyspace, "t", partition, [BASE + at for at in range(1 + partition % 7)])
    starts = json_of(t=dict.fromkeys(range(100), BASE + 1))
    stream = Stream(keyspace, topic="t", minPartitions="4", startingOffsets=starts)
    begin, end = stream.at, stream.latest()

    def planned() -> list[list[tuple[int, int, int]]]:
        stream.restart()
        return list(map(ranges_of, stream.reader.partitions(begin, end)))

    before = planned()
    for partition in range(0, 100, 3):
        fill(keyspace, "t", partition, [BASE + 1000 + at for at in range(partition * 3)])
    assert planned() == before
    assert 4 <= len(before) <= 32
    read = [one for task in before for one in task]
    assert read == sorted(set(read))


def test_batches_do_not_decide_on_tasks(keyspace: Keyspace) -> None:
    """The last entry of a partition may be one record now, and many when the batch is planned again."""

    def add(partition: int, first: int, records: int) -> None:
        data = stored(batch([(b"k", b"v")] * records, timestamp_ms=MS), BASE + first)
        keyspace.add("t", partition, entry_id(BASE + first + records - 1), b"batch", data)

    document = {"partitions": 40, "storage_layout": "batch"}
    keyspace.client.hset("{korvet}:topics", "t", json.dumps(document))
    for partition in range(40):
        add(partition, 0, 1)
    stream = Stream(keyspace, topic="t")
    begin, end = stream.at, stream.latest()
    before = stream.reader.partitions(begin, end)
    for partition in range(40):
        add(partition, 10, 5)
    stream.restart()
    assert [ranges_of(task) for task in stream.reader.partitions(begin, end)] == list(map(ranges_of, before))


def test_a_partition_of_batches_is_divided_alike(keyspace: Keyspace) -> None:
    document = {"partitions": 1, "storage_layout": "batch"}
    keyspace.client.hset("{korvet}:topics", "t", json.dumps(document))

    def add(first: int, records: int) -> None:
        data = stored(batch([(b"k", b"v")] * records, timestamp_ms=MS), BASE + first)
        keyspace.add("t", 0, entry_id(BASE + first + records - 1), b"batch", data)
        times.update((BASE + first + at, MS) for at in range(records))
        index(keyspace, "t", 0, times, 10)

    times: dict[int, int] = {}
    for number in range(10):
        add(10 * number, 10)
    stream = Stream(keyspace, topic="t", minPartitions="4")
    begin, end = stream.at, stream.latest()
    before = list(map(ranges_of, stream.reader.partitions(begin, end)))
    assert len(before) >= 4
    for number in range(10, 50):
        add(10 * number, 1 + number % 3)
        stream.restart()
        assert list(map(ranges_of, stream.reader.partitions(begin, end))) == before


def test_a_limited_batch_of_batches_counts_no_entries(keyspace: Keyspace, reader_kind: str) -> None:
    """A position in a checkpoint has the number of entries before it, not that of records."""
    if reader_kind == "unlimited":
        return
    document = {"partitions": 1, "storage_layout": "batch"}
    keyspace.client.hset("{korvet}:topics", "t", json.dumps(document))
    stream = Stream(keyspace, topic="t", maxRecordsPerTrigger="3")
    for number in range(5):
        records = 5 if number < 4 else 1
        last = BASE + 10 * number + records - 1
        data = stored(batch([(b"k", b"v")] * records, timestamp_ms=MS), BASE + 10 * number)
        keyspace.add("t", 0, entry_id(last), b"batch", data)
    assert len(stream.trigger() or []) == 3
    # The first batch is gone, and with it two records that were not read.
    keyspace.client.xtrim("korvet:t:0", maxlen=4, approximate=False)
    with pytest.raises(DataLoss):
        stream.trigger()


def test_new_partitions_and_topics(keyspace: Keyspace) -> None:
    keyspace.topic("orders")
    stream = Stream(keyspace, subscribePattern="orders.*", startingOffsets="latest")
    keyspace.topic("orders", 3)
    keyspace.topic("orders.eu")
    fill(keyspace, "orders", 2, [BASE, BASE + 1])
    keyspace.add("orders.eu", 0, "7-0", b"value", b"eu")
    rows = stream.trigger() or []
    assert offsets(rows, 2) == [BASE, BASE + 1]
    assert b"eu" in values(rows)
    assert stream.trigger() is None


def test_a_topic_that_is_gone_or_another(keyspace: Keyspace) -> None:
    def create(topic_id: uuid.UUID) -> None:
        document = {"partitions": 1, "topic_id": str(topic_id)}
        keyspace.client.hset("{korvet}:topics", "t", json.dumps(document))

    create(uuid.UUID(int=1))
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    stream = Stream(keyspace, topic="t")
    assert len(stream.drain()) == 10
    keyspace.client.delete("korvet:t:0", "{korvet}:topics")
    with pytest.raises(DataLoss, match="topic t is gone"):
        stream.trigger()
    create(uuid.UUID(int=2))
    fill(keyspace, "t", 0, [BASE + 3 + at for at in range(20)])
    with pytest.raises(DataLoss, match="topic t was deleted and created again"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert offsets(stream.drain()) == [BASE + 3 + at for at in range(20)]
    assert stream.trigger() is None


def test_a_stream_that_is_shorter_than_it_was(keyspace: Keyspace) -> None:
    """A failover that lost the newest records, or a DEL: later records are read from the start."""
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    stream = Stream(keyspace, topic="t")
    assert len(stream.drain()) == 10
    keyspace.client.delete("korvet:t:0")
    fill(keyspace, "t", 0, [BASE, BASE + 1])
    with pytest.raises(DataLoss, match=f"t-0 ends at offset {BASE + 2}, before {BASE + 10}"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert offsets(stream.trigger()) == [BASE, BASE + 1]
    assert stream.trigger() is None


def test_a_deleted_tail_is_no_loss(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE, BASE + 1, BASE + 2])
    stream = Stream(keyspace, topic="t")
    assert len(stream.drain()) == 3
    keyspace.client.xdel("korvet:t:0", entry_id(BASE + 1), entry_id(BASE + 2))
    assert stream.trigger() is None
    fill(keyspace, "t", 0, [BASE + 3])
    assert offsets(stream.trigger()) == [BASE + 3]


def test_an_empty_dense_topic_with_a_group(keyspace: Keyspace) -> None:
    keyspace.topic("d", 1, {"offset.assignment": "dense"})
    keyspace.client.xgroup_create("korvet:d:0", "g", mkstream=True)
    stream = Stream(keyspace, topic="d", startingOffsets="latest")
    keyspace.add("d", 0, "0-1", b"value", b"first")
    assert values(stream.trigger()) == [b"first"]


def test_what_has_no_meaning_in_a_stream(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    with pytest.raises(SourceError, match="endingOffsets: not an option of a stream"):
        Stream(keyspace, topic="t", endingOffsets="latest")
    with pytest.raises(SourceError, match="no topic nowhere"):
        Stream(keyspace, topic="nowhere")


@pytest.mark.parametrize("option", ["maxRecordsPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay"])
def test_a_limit_needs_a_reader_with_limits(keyspace: Keyspace, option: str, reader_kind: str) -> None:
    keyspace.topic("t")
    if reader_kind == "limited":
        Stream(keyspace, topic="t", **{option: "5"})
        return
    with pytest.raises(SourceError, match=rf"{option} needs Spark 4\.2 or newer; this is Spark 4\."):
        Stream(keyspace, topic="t", **{option: "5"})


def test_loss_while_a_stream_was_stopped(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    stream = Stream(keyspace, topic="t")
    assert len(stream.trigger() or []) == 10
    fill(keyspace, "t", 0, [BASE + at for at in range(10, 20)])
    keyspace.client.xtrim("korvet:t:0", minid=entry_id(BASE + 12), approximate=False)
    stream.restart()
    with pytest.raises(DataLoss, match=f"t-0 begins at offset {BASE + 12}"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert offsets(stream.trigger()) == [BASE + at for at in range(12, 20)]
