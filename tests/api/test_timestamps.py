"""Timestamps in every layout: append times as Produce names them, and create times far from today."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.record import MemoryRecords

from tests.api.batches import batch, gzipped, now_ms
from tests.api.test_fetch import fetch, list_offsets
from tests.api.test_produce import INVALID_TIMESTAMP, pipelined, put
from tests.api.test_transactions import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.asking import Client

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
ROWS = [(b"k", b"1"), (b"k", b"2")]
NO_LIMIT = {"message.timestamp.after.max.ms": str(2**63 - 1)}
NO_TIMESTAMP, LARGEST = -1, -3

pytestmark = pytest.mark.parametrize(
    "configs",
    [
        {"offset.assignment": assignment, "storage.layout": layout}
        for assignment in ("clock", "dense")
        for layout in ("record", "batch")
    ],
    ids=lambda configs: "-".join(configs.values()),
)


def stamps(ask: Client, name: str) -> dict[int, int]:
    """The timestamps of all records, by offset."""
    (part,) = fetch(ask, 11, (name, 0, 0))
    found: dict[int, int] = {}
    batches = MemoryRecords(part.records)
    while batches.has_next():
        found |= {each.offset: each.timestamp for each in batches.next_batch()}
    return found


def answered_ms(result: Any) -> int:
    assert result.error_code == 0
    return round(result.log_append_time.timestamp() * 1000)


def check(ask: Client, name: str, results: list[Any], records: int) -> None:
    """All records fit into a millisecond's offsets."""
    found = stamps(ask, name)
    for result in results:
        written_ms = answered_ms(result)
        read = [found[result.base_offset + index] for index in range(records)]
        assert read == [written_ms] * records
        (part,) = list_offsets(ask, 7, (name, 0, written_ms))
        # What was written before may have the same time.
        assert (part.error_code, part.timestamp) == (0, written_ms)
        assert part.offset <= result.base_offset


def test_the_time_is_the_records(ask: Client, new_topic: Callable[..., str], configs: dict[str, str]) -> None:
    name = new_topic(1, configs | APPEND_TIME)
    check(ask, name, [put(ask, name, batch(ROWS, timestamp_ms=5)) for _ in range(60)], len(ROWS))


def test_many_batches_in_a_millisecond(
    ask: Client, new_topic: Callable[..., str], configs: dict[str, str]
) -> None:
    name = new_topic(1, configs | APPEND_TIME)
    check(ask, name, pipelined(ask, name, [batch(ROWS, timestamp_ms=5)] * 100), len(ROWS))


def test_a_compressed_batch(ask: Client, new_topic: Callable[..., str], configs: dict[str, str]) -> None:
    name = new_topic(1, configs | APPEND_TIME)
    check(ask, name, [put(ask, name, gzipped(ROWS, timestamp_ms=5)) for _ in range(3)], len(ROWS))


def test_transactions(ask: Client, new_topic: Callable[..., str], configs: dict[str, str]) -> None:
    name = new_topic(1, configs | APPEND_TIME)
    producer = Producer(ask, name)
    assert not producer.init().error_code
    results = []
    for _ in range(3):
        results.append(producer.write(b"1", b"2"))
        assert not producer.end()
    check(ask, name, results, len(ROWS))


def test_a_batch_beyond_the_offsets_of_a_millisecond(
    ask: Client, new_topic: Callable[..., str], configs: dict[str, str]
) -> None:
    """With clock offsets the entry IDs are the times, so its last records are from the next ms."""
    name = new_topic(1, configs | APPEND_TIME)
    result = put(ask, name, batch([(b"k", b"v")] * 1500))
    found = stamps(ask, name)
    assert found[result.base_offset] == answered_ms(result)
    (part,) = list_offsets(ask, 7, (name, 0, answered_ms(result)))
    assert (part.offset, part.timestamp) == (result.base_offset, answered_ms(result))


def test_create_times_far_from_today(
    ask: Client, new_topic: Callable[..., str], configs: dict[str, str]
) -> None:
    name = new_topic(1, configs | NO_LIMIT)
    now = now_ms()
    # Microseconds and nanoseconds instead of ms; more digits than a double has.
    written = [now * 1000, now * 10**6 + 1, 2**63 - 2, 2**63 - 1, 2**53 + 1, -2, -(2**53) - 1, -(2**62) - 1]
    results = [put(ask, name, batch(ROWS, timestamp_ms=each)) for each in (*written, NO_TIMESTAMP, 0)]
    assert [result.error_code for result in results] == [0] * len(results)
    found = stamps(ask, name)
    assert list(found.values()) == [each for stamp in (*written, NO_TIMESTAMP, 0) for each in (stamp, stamp)]

    by_time = {stamp: results[index].base_offset for index, stamp in enumerate(written)}
    for wanted, expected in [
        (now * 1000, now * 1000),
        (now * 1000 + 1, now * 10**6 + 1),
        (now * 10**6 + 1, now * 10**6 + 1),
        (now * 10**6 + 2, 2**63 - 2),
        (2**63 - 1, 2**63 - 1),
        (LARGEST, 2**63 - 1),
    ]:
        (part,) = list_offsets(ask, 7, (name, 0, wanted))
        assert (part.error_code, part.timestamp, part.offset) == (0, expected, by_time[expected]), wanted


def test_create_times_that_no_entry_can_hold(
    ask: Client, new_topic: Callable[..., str], configs: dict[str, str]
) -> None:
    """The time relative to an entry ID has to be an int64; Kafka has a similar limit."""
    name = new_topic(1, configs | NO_LIMIT)
    for stamp_ms, error in [(-(2**63), INVALID_TIMESTAMP), (-(2**63) + 2**53, 0)]:
        assert put(ask, name, batch(timestamp_ms=stamp_ms)).error_code == error, stamp_ms
    assert list(stamps(ask, name).values()) == [-(2**63) + 2**53]
