"""Limits of streaming batches, in records, which Spark 4.2 has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import entry_id
from korvet.spark.source.errors import DataLoss
from korvet.spark.versions import features
from tests.api.batches import batch as record_batch
from tests.spark.direct import Stream
from tests.spark.test_batches import stored
from tests.spark.test_source_range import fill, index
from tests.spark.test_source_stream import BASE, HOUR, MS, offsets

if not features().read_limits:
    pytest.skip("this Spark has no read limits", allow_module_level=True)

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace


@pytest.mark.parametrize("indexed", [True, False])
def test_limits_count_records(keyspace: Keyspace, indexed: bool) -> None:
    keyspace.topic("t", 3)
    full = [BASE + at * HOUR // 7 for at in range(1000)]
    fill(keyspace, "t", 0, full)
    fill(keyspace, "t", 1, full[:100])
    if indexed:
        index(keyspace, "t", 0, dict.fromkeys(full, MS), 64)
    stream = Stream(keyspace, topic="t", maxRecordsPerTrigger="300")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(300)
    batches = []
    while (rows := stream.trigger()) is not None:
        batches.append(rows)
        stream.restart()
    assert [len(rows) for rows in batches] == [300, 300, 300, 200]
    # In proportion to the available records.
    assert len(offsets(batches[0], 1)) == 27
    assert [offset for rows in batches for offset in offsets(rows)] == full
    assert [offset for rows in batches for offset in offsets(rows, 1)] == full[:100]
    again = Stream(keyspace, topic="t", maxRecordsPerTrigger="300")
    assert len(again.trigger(ReadAllAvailable()) or []) == 1100


def test_a_limit_cuts_batches(keyspace: Keyspace) -> None:
    keyspace.topic("t", 1, {"storage.layout": "batch"})
    for at in range(5):
        data = record_batch([(b"k", b"%d" % at)] * 10)
        keyspace.add("t", 0, entry_id(BASE + 100 * at + 9), b"batch", stored(data, BASE + 100 * at))
    stream = Stream(keyspace, topic="t", maxRecordsPerTrigger="7")
    found: list[int] = []
    while (rows := stream.trigger()) is not None:
        assert 0 < len(rows) <= 7
        found += offsets(rows)
    assert found == [BASE + 100 * at + record for at in range(5) for record in range(10)]


def test_a_batch_waits_for_enough_records(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    options = {"minRecordsPerTrigger": "5", "maxTriggerDelay": "1h"}
    fill(keyspace, "t", 0, [BASE])
    stream = Stream(keyspace, topic="t", **options)
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(5)
    assert offsets(stream.trigger()) == [BASE]
    fill(keyspace, "t", 0, [BASE + at for at in range(1, 5)])
    assert stream.trigger() is None
    fill(keyspace, "t", 0, [BASE + 5])
    assert len(stream.trigger() or []) == 5
    fill(keyspace, "t", 0, [BASE + 6])
    assert stream.trigger() is None
    assert len(stream.trigger(ReadAllAvailable()) or []) == 1
    fill(keyspace, "t", 0, [BASE + 7])
    stream.restart(maxTriggerDelay="0ms", maxRecordsPerTrigger="9")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(9)
    assert len(stream.trigger() or []) == 1


def test_available_now_ends(keyspace: Keyspace) -> None:
    keyspace.topic("t", 2)
    keyspace.topic("u")
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    stream = Stream(keyspace, subscribePattern=".", maxRecordsPerTrigger="4")
    stream.reader.prepareForTriggerAvailableNow()
    fill(keyspace, "t", 0, [BASE + 10])
    fill(keyspace, "t", 1, [BASE])
    keyspace.topic("v")
    fill(keyspace, "v", 0, [BASE])
    assert [len(stream.trigger() or []) for _ in range(3)] == [4, 4, 2]
    assert stream.trigger() is None
    stream.restart()
    assert len(stream.drain()) == 3


def test_trimmed_behind_the_reader_is_no_loss(keyspace: Keyspace) -> None:
    """Retention deletes records that were read, and the next record is added much later."""
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    stream = Stream(keyspace, topic="t")
    assert len(stream.drain()) == 10
    keyspace.client.xtrim("korvet:t:0", maxlen=0)
    assert stream.trigger() is None
    fill(keyspace, "t", 0, [BASE + HOUR])
    stream.restart(maxRecordsPerTrigger="3")
    assert offsets(stream.trigger()) == [BASE + HOUR]
    keyspace.client.xtrim("korvet:t:0", maxlen=0)
    fill(keyspace, "t", 0, [BASE + 2 * HOUR + at for at in range(5)])
    assert len(stream.trigger() or []) == 3
    keyspace.client.xtrim("korvet:t:0", minid=entry_id(BASE + 2 * HOUR + 3), approximate=False)
    fill(keyspace, "t", 0, [BASE + 3 * HOUR])
    assert offsets(stream.trigger()) == [BASE + 2 * HOUR + 3, BASE + 2 * HOUR + 4, BASE + 3 * HOUR]


def test_trimmed_before_the_reader_is_loss(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    fill(keyspace, "t", 0, [BASE + at for at in range(10)])
    stream = Stream(keyspace, topic="t", maxRecordsPerTrigger="4")
    assert len(stream.trigger() or []) == 4
    keyspace.client.xdel("korvet:t:0", entry_id(BASE + 5))
    assert offsets(stream.trigger()) == [BASE + 4, BASE + 6, BASE + 7, BASE + 8]
    fill(keyspace, "t", 0, [BASE + at for at in range(10, 20)])
    keyspace.client.xtrim("korvet:t:0", minid=entry_id(BASE + 12), approximate=False)
    with pytest.raises(DataLoss, match=f"t-0 begins at offset {BASE + 12}"):
        stream.trigger()
    stream.restart(failOnDataLoss="false")
    assert offsets(stream.drain()) == [BASE + at for at in range(12, 20)]


def test_how_far_a_stream_could_read(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    stream = Stream(keyspace, topic="t", maxRecordsPerTrigger="1")
    fill(keyspace, "t", 0, [BASE, BASE + 1])
    assert offsets(stream.trigger()) == [BASE]
    assert stream.reader.reportLatestOffset() != stream.at
    assert offsets(stream.trigger()) == [BASE + 1]
    assert stream.reader.reportLatestOffset() == stream.at
