"""LogAppendTime: a response names the timestamp that readers find, and a search for it finds the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.record import MemoryRecords

from tests.api.batches import batch, gzipped
from tests.api.test_fetch import fetch, list_offsets
from tests.api.test_produce import pipelined, put
from tests.api.test_transactions import Producer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.api.asking import Client

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
ROWS = [(b"k", b"1"), (b"k", b"2")]

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
