"""Layouts in Redis that several parts spell: the functions in Lua write them, and korvet and
korvet.spark read them. Each is written and read by way of a real server.
"""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING

import pytest

from korvet.groups.native import Projected
from korvet.log.transactions import Aborted
from korvet.offsets.packing import entry_id, offset_of
from korvet.offsets.record_batch import MAX_PRODUCER_SEQUENCE
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import OutOfOrderSequence
from korvet.redis.futures import awaited
from korvet.spark.records.batches import batch_records
from korvet.spark.source.address import Address
from korvet.spark.source.connection import SourceConnection
from korvet.spark.source.extents import Extent, extents
from korvet.spark.source.index import Index, Point
from korvet.spark.source.ordinals import ordinals
from korvet.spark.source.topics import load_topics
from tests.storage.batches import produce
from tests.storage.test_compaction import compact
from tests.storage.test_native_groups import Groups
from tests.storage.test_transactions import Producer, aborted_in_redis
from tests.support.logs import append_own

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended
    from tests.storage.conftest import Bench

pytestmark = pytest.mark.each_server

LOG_NUMBERS = struct.Struct(">14d")
# As in the functions in Lua.
SPAN_RECORDS = 256
REMEMBERED_BATCHES = 5
TIME_MS = 1_700_000_000_000


@pytest.fixture
def connection(bench: Bench) -> Iterator[SourceConnection]:
    """How Spark connects."""
    made = SourceConnection(Address(bench.server.url, bench.prefix))
    yield made
    made.close()


@pytest.fixture(params=["clock-record", "dense-record", "clock-batch", "dense-batch"])
def log(bench: Bench, request: pytest.FixtureRequest) -> PartitionLog:
    assignment, layout = request.param.split("-")
    return bench.log(offset_assignment=assignment, storage_layout=layout)


async def append_soon(
    log: PartitionLog, count: int, first_ms: int = TIME_MS, producer: tuple[int, int, int] | None = None
) -> Appended:
    """`count` records, each a ms later than the one before it."""
    records = [(b"k", b"v" * 10, first_ms + number) for number in range(count)]
    return await awaited(partial(produce, log, records, stamp=producer))


def append(bench: Bench, log: PartitionLog, count: int, first_ms: int = TIME_MS) -> Appended:
    return bench.run(append_soon(log, count, first_ms))


def extent(bench: Bench, connection: SourceConnection) -> Extent:
    address = Address(bench.server.url, bench.prefix)
    (found,) = extents(connection, address, [load_topics(connection, address)["t"]])
    return found


def points(log: PartitionLog, connection: SourceConnection) -> list[Point]:
    return list(Index(connection, log.keys[1].decode()).after(0))


def test_the_numbers_of_the_meta_hash(bench: Bench, log: PartitionLog, connection: SourceConnection) -> None:
    appended = [append(bench, log, 300, TIME_MS + 1000 * number) for number in range(3)]
    bounds = bench.run(log.bounds())
    entries = bench.client.xlen(log.stream)
    found = LOG_NUMBERS.unpack(bench.client.hget(log.meta, "log"))
    log_end, appended_ms, log_start, _, records, entries_before, live, live_bytes, largest_bytes, *_ = found
    assert (log_end, log_start) == (bounds.log_end, 0)
    assert appended_ms == appended[-1].append_ms
    assert (records, entries_before, live) == (900, entries, entries)
    sizes = [
        sum(len(name) + len(value) for name, value in fields.items())
        for _, fields in bench.client.xrange(log.stream)
    ]
    assert (live_bytes, largest_bytes) == (sum(sizes), max(sizes))
    seen = extent(bench, connection)
    assert (seen.log_start, seen.log_end, seen.entries) == (0, bounds.log_end, entries)

    assert bench.run(log.trimming.trim(None, 0, 0)) == entries
    seen = extent(bench, connection)
    assert (seen.log_start, seen.log_end, seen.entries) == (bounds.log_end, bounds.log_end, 0)


def test_the_gap_that_compaction_leaves(
    bench: Bench, log: PartitionLog, connection: SourceConnection
) -> None:
    """It moves no log start; what native clients delete after it does."""
    append(bench, log, 20)
    append(bench, log, 20)
    assert compact(bench, log) > 0
    seen = extent(bench, connection)
    assert int(bench.client.hget(log.meta, "gap_end")) == seen.first_offset + log.bias
    assert (seen.log_start, bench.run(log.bounds()).log_start) == (0, 0)
    last = append(bench, log, 20)
    bench.client.xtrim(log.stream, minid=entry_id(last.base_offset, log.bias), approximate=False)
    assert bench.run(log.bounds()).log_start == last.base_offset
    assert extent(bench, connection).log_start == last.base_offset


def test_points_of_the_index(bench: Bench, log: PartitionLog, connection: SourceConnection) -> None:
    appended = [append(bench, log, SPAN_RECORDS, TIME_MS + 1000 * number) for number in range(4)]
    found = points(log, connection)
    assert [point.offset for point in found] == [each.base_offset for each in appended]
    assert [point.before for point in found] == [SPAN_RECORDS * number for number in range(4)]
    assert [point.append_ms for point in found] == [each.append_ms for each in appended]
    largest = [TIME_MS + 1000 * number + SPAN_RECORDS - 1 for number in range(3)]
    assert [point.largest_before_ms for point in found] == [None, *largest]
    assert [point.largest_in_span_ms for point in found] == [None, *largest]
    for point in found:
        assert bench.run(log.queries.count(0, point.offset)) == point.before


@pytest.mark.parametrize("way", ["script", "one guarded batch", "a group of guarded batches"])
def test_a_span_has_as_many_records_in_every_way(
    bench: Bench, connection: SourceConnection, way: str
) -> None:
    """By script Lua counts them, guarded the kernel or what groups batches does."""
    log = bench.log()
    append(bench, log, SPAN_RECORDS)

    async def more() -> None:
        if way == "script":
            records = [(b"k", b"v", TIME_MS)] * (2 * SPAN_RECORDS)
            await append_own(log, encode_append_records(records))
        elif way == "one guarded batch":
            await append_soon(log, 2 * SPAN_RECORDS)
        else:
            for _ in range(2 * SPAN_RECORDS - 1):
                produce(log, [(b"k", b"v", TIME_MS)], lambda outcome: None, followed=True)
            await append_soon(log, 1)

    bench.run(more())
    append(bench, log, 1)
    assert [point.before for point in points(log, connection)] == [SPAN_RECORDS * n for n in range(4)]


def test_the_state_of_a_producer(bench: Bench, log: PartitionLog) -> None:
    producer = Producer(bench, log, 7, epoch=3)
    producer.sequence = MAX_PRODUCER_SEQUENCE
    producer.append(b"a", transactional=False)
    producer.sequence = 0
    last = producer.append(b"b", b"c", transactional=False)
    (known,) = bench.run(log.queries.producers())
    assert known == (7, 3, 1, last.append_ms, -1, -1)

    begun = producer.append(b"d")
    (known,) = bench.run(log.queries.producers())
    assert (known.last_sequence, known.first_open) == (2, begun.previous_end)
    marked = producer.mark(coordinator=5)
    (known,) = bench.run(log.queries.producers())
    assert known == (7, 3, 2, marked.append_ms, 5, -1)
    # A newer epoch has no batches yet.
    marked = producer.mark(epoch=4, coordinator=6)
    (known,) = bench.run(log.queries.producers())
    assert known == (7, 4, -1, marked.append_ms, 6, -1)


def test_the_newest_batches_of_a_producer(bench: Bench, log: PartitionLog) -> None:
    """Those of a group, too."""
    sent = REMEMBERED_BATCHES + 3

    async def group() -> list[Appended]:
        await append_soon(log, 1)
        first = [asyncio.ensure_future(append_soon(log, 2, producer=(7, 0, 2 * n))) for n in range(sent)]
        return await asyncio.gather(*first)

    appended = bench.run(group())
    for n in range(sent):
        again = append_soon(log, 2, producer=(7, 0, 2 * n))
        if n < sent - REMEMBERED_BATCHES:
            with pytest.raises(OutOfOrderSequence):
                bench.run(again)
        else:
            assert bench.run(again).base_offset == appended[n].base_offset


def test_aborted_transactions(bench: Bench, log: PartitionLog) -> None:
    producer = Producer(bench, log, 7)
    begun = producer.append(b"a", b"b")
    marked = producer.mark(committed=False)
    assert aborted_in_redis(bench, log) == [
        Aborted(marked.offset, begun.previous_end, 7, marked.last_stable_offset)
    ]
    assert marked.last_stable_offset == marked.offset + 1


def test_the_offsets_of_a_record_batch(bench: Bench, log: PartitionLog, connection: SourceConnection) -> None:
    """Lua writes the base offset into a batch, and counts its records by what the header says."""
    first, second = append(bench, log, 20), append(bench, log, 30)
    whole = log.topic.storage_layout == "batch"
    found = [batch_records(pairs, offset) for offset, pairs in entries_of(bench, log)]
    assert found == ([20, 30] if whole else [None] * 50)
    assert bench.run(log.queries.count(0, second.base_offset)) == 20
    assert bench.run(log.queries.count(first.base_offset + 5, second.base_offset + 30)) == 45
    assert bench.run(log.queries.offset_for_timestamp(TIME_MS + 25)) == (
        second.base_offset + 25,
        TIME_MS + 25,
    )
    assert extent(bench, connection).batch == (30 if whole else 1)


def test_records_before_offsets(bench: Bench, log: PartitionLog, connection: SourceConnection) -> None:
    """As a reader counts them that can't correct the index: without entries after it, or not at all."""
    base = [append(bench, log, 30).base_offset for _ in range(20)]
    end = base[-1] + 30
    offsets = [base[0], base[0] + 7, base[8], base[15] + 29, end]
    compact(bench, log)

    def counted() -> tuple[int, list[int]] | None:
        found = ordinals(connection, extent(bench, connection), offsets)
        if found is None:
            return None
        left = [found.before[end] - found.before[offset] for offset in offsets]
        return found.end, left

    expected = [bench.run(log.queries.count(offset, end)) for offset in offsets]
    assert counted() == (end, expected)
    for _ in range(3):
        bench.client.xadd(log.stream, {"field": "value"})
    assert counted() == (end, expected)
    bench.client.xdel(log.stream, *bench.client.xrevrange(log.stream, count=1)[0][:1])
    assert counted() == (end, expected)
    for _ in range(2000):
        bench.client.xadd(log.stream, {"field": "value"})
    assert counted() is None
    bench.run(log.queries.count(0, 1))
    assert counted() == (extent(bench, connection).log_end, expected)
    # From within the log. A broker corrects the index when it counts.
    bench.client.xdel(log.stream, bench.client.xrange(log.stream, count=1)[0][0])
    assert counted() is None


MARKER = ("ctl", "commit", "pid", "1", "epoch", "0")


@pytest.mark.parametrize("by_function", [False, True])
@pytest.mark.parametrize("fields", [MARKER, ("batch", "value"), ("field", "ctl", "ctl", "1", "a", "b")])
def test_native_entries_that_may_be_no_records(
    bench: Bench, log: PartitionLog, connection: SourceConnection, fields: tuple[str, ...], by_function: bool
) -> None:
    before = append(bench, log, 20)
    if by_function:
        bench.client.fcall("korvet_xadd", 3, *log.keys[:3], *fields)
    else:
        bench.client.execute_command("XADD", log.stream, "*", *fields)
    check_mixed(bench, log, connection, before)


def test_entries_without_an_offset(bench: Bench, log: PartitionLog, connection: SourceConnection) -> None:
    before = append(bench, log, 20)
    last_ms = int(bench.client.xrevrange(log.stream, count=1)[0][0].split(b"-")[0])
    bench.client.execute_command("XADD", log.stream, f"{last_ms + 1}-1024", "field", "value")
    check_mixed(bench, log, connection, before)


@pytest.mark.parametrize("committed", [True, False])
def test_transactions_make_records_and_others(
    bench: Bench, log: PartitionLog, connection: SourceConnection, committed: bool
) -> None:
    producer = Producer(bench, log, 7)
    before = append(bench, log, 20)
    producer.append(b"a", b"b")
    seen = extent(bench, connection)
    found = ordinals(connection, seen, [before.base_offset, min(seen.opened().values())])
    assert found is not None
    assert list(found.before.values()) == [0, 20]
    producer.mark(committed=committed)
    check_mixed(bench, log, connection, before)


def test_a_log_that_the_last_release_began(
    bench: Bench, log: PartitionLog, connection: SourceConnection
) -> None:
    """It noted no markers, so which entries are records is unknown up to the first note."""
    producer = Producer(bench, log, 7)
    before = append(bench, log, 20)
    producer.append(b"a", b"b")
    producer.mark(committed=False)
    bench.client.hdel(log.meta, "mixed")
    append(bench, log, SPAN_RECORDS + 1)
    seen = extent(bench, connection)
    for offset in (before.base_offset, seen.log_end - 1):
        assert ordinals(connection, seen, [offset, seen.log_end]) is None
    producer.append(b"c")
    producer.mark()
    check_mixed(bench, log, connection, before)


def test_a_damaged_log_is_not_counted(bench: Bench, log: PartitionLog, connection: SourceConnection) -> None:
    """The script fails, and the records can still be read."""
    append(bench, log, 20)
    whole = extent(bench, connection)
    bench.client.hset(log.meta, "log", "short")
    assert ordinals(connection, whole, [whole.first_offset, whole.log_end]) is None


def check_mixed(bench: Bench, log: PartitionLog, connection: SourceConnection, before: Appended) -> None:
    """Only the records after the entries in between can be counted by the index."""
    bench.run(log.queries.count(0, 1))
    after = append(bench, log, 20)
    seen = extent(bench, connection)
    for offset in (before.base_offset, before.base_offset + 20):
        assert ordinals(connection, seen, [offset, seen.log_end]) is None
    found = ordinals(connection, seen, [after.base_offset, seen.log_end])
    assert found is not None
    assert found.before[seen.log_end] - found.before[after.base_offset] == 20


def entries_of(bench: Bench, log: PartitionLog) -> list[tuple[int, list[bytes]]]:
    """The entries as Spark reads them, each with its offset."""
    found = bench.client.execute_command("XRANGE", log.stream, "-", "+")
    return [
        (offset_of(entry, log.bias), [part for pair in fields.items() for part in pair])
        for entry, fields in found
    ]


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_the_projection_of_a_group(bench: Bench, assignment: str) -> None:
    """What korvet_project writes is what korvet_moved compares and the coordinator gets."""
    log = bench.log(offset_assignment=assignment)
    groups = Groups(bench, log)
    base = append(bench, log, 10).base_offset
    groups.project(base + 4, 17)
    assert bench.client.hget(log.meta, "commit:g") == b"17 %d" % (base + 4)
    assert groups.moved() == []
    groups.read(2)
    groups.client.xack(log.stream, "g", *(entry_id(base + at + log.bias) for at in (4, 5)))
    (moved,) = groups.moved()
    assert (moved.at, moved.projected) == (base + 6, Projected(17, base + 4))
    groups.project(base + 6, 18, native=base + 6)
    assert bench.client.hget(log.meta, "commit:g") == b"18 %d %d n" % (base + 6, base + 6)
    assert groups.moved() == []
    groups.client.xack(log.stream, "g", *groups.read(1))
    (moved,) = groups.moved()
    assert (moved.at, moved.projected) == (base + 7, Projected(18, base + 6, read_off=True))
