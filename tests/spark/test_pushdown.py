"""Filters that limit what a batch reads, which Spark 4.1 and newer pass to the source."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import pack
from korvet.spark.versions import features
from tests.spark.direct import batch
from tests.spark.test_source_range import APPEND_TIMES, BASE, MS, at, index

if not features().filter_pushdown:
    pytest.skip("this Spark passes no filters to data sources in Python", allow_module_level=True)

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        ([GreaterThanOrEqual(("timestamp",), at(MS + 80))], range(4, 10)),
        ([GreaterThan(("timestamp",), at(MS + 95))], range(8, 10)),
        ([EqualTo(("timestamp",), at(MS + 60))], range(4, 10)),
        ([LessThan(("timestamp",), at(MS + 5))], range(10)),
        ([GreaterThan(("timestamp",), datetime(2000, 1, 1))], range(10)),
        ([In(("offset",), (BASE + 3, BASE + 5))], range(3, 6)),
        ([In(("offset",), (BASE + 3, None))], range(3, 4)),
        ([In(("offset",), (None,))], range(0)),
        ([In(("partition",), (None, 0))], range(10)),
        ([EqualTo(("offset",), BASE + 7), EqualTo(("topic",), "t")], range(7, 8)),
        ([EqualTo(("topic",), "u"), GreaterThan(("timestamp",), at(MS))], range(0)),
    ],
)
def test_filters_limit_what_is_read(keyspace: Keyspace, pushed: list[Filter], expected: range) -> None:
    """Timestamps limit the read only by the index: after that point no record is older."""
    keyspace.topic("t")
    times = [50, 10, 20, 30, 85, 30, 40, 90, 100, 60]
    for number, time_ms in enumerate(times):
        keyspace.record("t", 0, BASE + number, b"v", MS + time_ms)
    index(keyspace, "t", 0, {BASE + number: MS + time_ms for number, time_ms in enumerate(times)}, 2)
    got = batch(keyspace, pushed, topic="t")
    assert [row["offset"] - BASE for row in got] == list(expected)


def test_timestamps_limit_nothing_without_an_index(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.record("t", 0, BASE, b"v", MS + 500)
    keyspace.record("t", 0, BASE + 1024, b"v", MS)
    assert len(batch(keyspace, [GreaterThanOrEqual(("timestamp",), at(MS + 400))], topic="t")) == 2


@pytest.mark.parametrize(
    ("pushed", "expected"),
    [
        (LessThan(("timestamp",), at(MS + 5)), range(10)),
        (LessThan(("timestamp",), at(MS + 5) + timedelta(microseconds=1)), range(12)),
        (LessThanOrEqual(("timestamp",), at(MS + 5)), range(12)),
        (GreaterThan(("timestamp",), at(MS + 5)), range(12, 20)),
        (GreaterThanOrEqual(("timestamp",), at(MS + 5)), range(10, 20)),
        (EqualTo(("timestamp",), at(MS + 5)), range(10, 12)),
        (EqualTo(("timestamp",), at(MS + 5) + timedelta(microseconds=1)), range(0)),
        (LessThan(("timestamp",), datetime(1960, 1, 1, tzinfo=UTC)), range(0)),
        (GreaterThan(("timestamp",), datetime(9999, 1, 1, tzinfo=UTC)), range(0)),
    ],
)
def test_timestamps_that_are_append_times_limit_both_ends(
    keyspace: Keyspace, pushed: Filter, expected: range
) -> None:
    """The timestamp in an entry doesn't count: the topic had create times when the entry was written."""
    keyspace.topic("t", 1, APPEND_TIMES)
    offsets = [pack(MS + number // 2, number % 2) for number in range(20)]
    for offset in offsets:
        keyspace.record("t", 0, offset, b"v", MS - 1000)
    index(keyspace, "t", 0, dict.fromkeys(offsets, MS - 1000), 2)
    got = batch(keyspace, [pushed], topic="t")
    assert [row["offset"] for row in got] == [offsets[number] for number in expected]
    assert [row["timestamp"] for row in got] == [at(row["offset"] >> 10) for row in got]


@pytest.mark.parametrize(
    ("more", "expected_ms"), [({"offset_assignment": "dense"}, MS + 5), ({"storage_layout": "batch"}, 5)]
)
def test_append_times_of_other_topics_are_not_in_their_ids(
    keyspace: Keyspace, more: dict[str, str], expected_ms: int
) -> None:
    """With storage.layout=batch, brokers show the time in the ID only for entries that are no batches."""
    document = {"partitions": 1, "configs": APPEND_TIMES, **more}
    keyspace.client.hset("{korvet}:topics", "t", json.dumps(document))
    keyspace.add("t", 0, "5-1", b"value", b"v", b"ts", str(MS))
    got = batch(keyspace, [LessThan(("timestamp",), at(MS + 6))], topic="t")
    assert [row["timestamp"] for row in got] == [at(expected_ms)]
