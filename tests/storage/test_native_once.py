"""korvet_xadd_once: appends of native writers that are made once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from korvet.records.kernel import encode_append_records
from tests.support.logs import append_own, read_log

if TYPE_CHECKING:
    from tests.storage.conftest import Bench

HOUR_MS = 3_600_000


def call(
    bench: Bench, expected: str, new: str, *records: bytes, count: int | None = None, more: str = ""
) -> Any:
    """Append records with these values, and with the timestamp 5."""
    keys = bench.store.commands.keyspace.partition_keys("t", 0)[:3]
    arguments: list[bytes] = []
    for value in records:
        arguments += [b"4", b"4", b"value", value, b"ts", b"5"]
    fixed = ("task", expected, new, "", more, len(records) if count is None else count, HOUR_MS)
    return bench.client.fcall(
        "korvet_xadd_once", 4, *keys, f"{{{keys[0].decode()}}}:written:j", *fixed, *arguments
    )


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_brokers_and_writers_share_a_log(bench: Bench, assignment: str) -> None:
    log = bench.log(offset_assignment=assignment)

    def append(value: bytes) -> int:
        batch = encode_append_records([(None, value, 5)])
        return bench.run(append_own(log, batch)).base_offset

    first = append(b"a")
    noted, base = call(bench, "", "one", b"b", b"c")
    assert (noted, base > first) == (b"one", True)
    # Repeated, or from another state: nothing happens.
    assert call(bench, "", "one", b"b", b"c") == [b"one"]
    assert call(bench, "x", "two", b"d") == [b"one"]
    last = append(b"e")
    assert last > base + 1
    assert bench.run(log.queries.count(0, last + 1)) == 4
    assert call(bench, "one", "two", b"f")[0] == b"two"
    assert append(b"g") > last + 1
    fields = [fields for _, fields in bench.client.xrange(log.state.stream)]
    assert [one[b"value"] for one in fields] == [b"a", b"b", b"c", b"e", b"f", b"g"]
    assert bench.run(read_log(log, first, 10_000)).record_count == 6


def test_malformed_calls_write_nothing(bench: Bench) -> None:
    log = bench.log()
    for arguments, count in [((), 0), ((b"a",), 2), ((b"a", b"b"), 1)]:
        with pytest.raises(redis.ResponseError, match="malformed arguments"):
            call(bench, "", "one", *arguments, count=count)
    bench.run(append_own(log, encode_append_records([(None, b"a", 5)])))
    bench.client.hset(bench.store.commands.keyspace.meta("t", 0), "topic", "an-id")
    with pytest.raises(redis.ResponseError, match="TOPICCHANGED the topic has the ID an-id"):
        call(bench, "", "one", b"b", more="another-id")
    assert bench.client.xlen(bench.store.commands.keyspace.stream("t", 0)) == 1
