"""Transactions in a partition's log: open ones, markers, the last stable offset, aborted ones."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.log.committed import Committed, cached_committed, read_committed
from korvet.log.transactions import Aborted, parse_aborted
from korvet.log.values import Appended, Marked, ProducerSequence
from korvet.offsets.packing import entry_id, offset_of
from korvet.records.control import ControlMarker
from korvet.records.kernel import encode_append_records, parse_batch
from korvet.redis.errors import (
    FencedCoordinator,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    StorageError,
)
from tests.support.logs import admit, append_own, read_log
from tests.support.received import ReceivedBatch
from tests.support.redis_server import calls_of
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog
    from tests.storage.conftest import Bench

LAYOUTS = pytest.mark.parametrize("layout", ["record", "batch"])
ASSIGNMENTS = pytest.mark.parametrize("assignment", ["clock", "dense"])


def received(values: tuple[bytes, ...], stamp: ProducerSequence) -> ReceivedBatch:
    records = [forms.Record(None, value, forms.BASE_MS) for value in values]
    data = forms.whole_batch(
        records,
        attributes=16 if stamp.transactional else 0,
        producer=(stamp.producer_id, stamp.producer_epoch, stamp.base_sequence),
    )
    return ReceivedBatch(data, parse_batch(data, 0), None)


async def outcome_of(begin: Callable[[Callable[[Any], None]], None]) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    begin(future.set_result)
    outcome = await asyncio.wait_for(future, 30)
    if isinstance(outcome, StorageError):
        raise outcome
    return outcome


def append_to(
    log: PartitionLog, batch: ReceivedBatch, stamp: ProducerSequence, done: Callable[[Any], None]
) -> None:
    log.append(batch, stamp, admit, done)


class Producer:
    """A producer of one log, with or without transactions."""

    def __init__(self, bench: Bench, log: PartitionLog, producer_id: int, epoch: int = 0) -> None:
        self.bench = bench
        self.log = log
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = 0

    async def append_wait(self, *values: bytes, transactional: bool = True) -> Appended:
        stamp = ProducerSequence(self.producer_id, self.epoch, self.sequence, transactional)

        appended: Appended = await outcome_of(partial(append_to, self.log, received(values, stamp), stamp))
        self.sequence += len(values)
        return appended

    def append(self, *values: bytes, transactional: bool = True) -> Appended:
        return self.bench.run(self.append_wait(*values, transactional=transactional))

    def mark(
        self,
        committed: bool = True,
        *,
        epoch: int | None = None,
        coordinator: int = 1,
        decided_ms: int = -1,
    ) -> Marked:
        epoch = self.epoch if epoch is None else epoch
        marker = ControlMarker(self.producer_id, epoch, committed, coordinator, decided_ms)
        marked: Marked = self.bench.run(outcome_of(partial(self.log.mark, marker)))
        return marked


def last_stable_offsets(bench: Bench, log: PartitionLog) -> tuple[int, int]:
    """The last stable offset as the leader knows it, and as Redis has it."""
    return log.ends.last_stable_offset, bench.run(log.bounds()).last_stable_offset


def aborted_in_redis(bench: Bench, log: PartitionLog) -> list[Aborted]:
    key = bench.store.commands.keyspace.aborted(log.topic.name, log.partition)
    found = bench.client.zrange(key, 0, -1, withscores=True)
    return parse_aborted([part for member, score in found for part in (member, b"%d" % score)])


@LAYOUTS
@ASSIGNMENTS
def test_a_log_is_stable_up_to_its_oldest_open_transaction(
    bench: Bench, layout: str, assignment: str
) -> None:
    log = bench.log(storage_layout=layout, offset_assignment=assignment)
    one, two = Producer(bench, log, 1), Producer(bench, log, 2)
    bench.run(log.bounds())
    plain = Producer(bench, log, 3).append(b"plain", transactional=False)
    assert last_stable_offsets(bench, log) == (plain.base_offset + 1,) * 2
    first = one.append(b"a", b"b")
    second = two.append(b"c")
    one.append(b"d")
    assert last_stable_offsets(bench, log) == (first.previous_end,) * 2
    marked = one.mark(committed=False)
    assert (marked.first_offset, marked.last_stable_offset) == (first.previous_end, second.previous_end)
    assert last_stable_offsets(bench, log) == (second.previous_end,) * 2
    done = two.mark()
    assert last_stable_offsets(bench, log) == (done.offset + 1, log.ends.log_end)
    if assignment == "dense":
        assert (marked.offset, done.offset) == (5, 6)
    wanted = [Aborted(marked.offset, first.previous_end, 1, second.previous_end)]
    assert aborted_in_redis(bench, log) == wanted
    assert log.state.transactions.aborted_from(first.base_offset) == wanted


@LAYOUTS
@ASSIGNMENTS
def test_readers_get_markers_as_control_batches(bench: Bench, layout: str, assignment: str) -> None:
    log = bench.log(storage_layout=layout, offset_assignment=assignment)
    producer = Producer(bench, log, 7, epoch=3)
    begin = producer.append(b"a", b"b").base_offset
    marks = [producer.mark(), (producer.append(b"c"), producer.mark(committed=False))[1]]
    cached = b"".join(log.cached(begin, 1 << 20, None, zstd=True) or [])
    read = bench.run(read_log(log, begin, 1 << 20)).data
    for data in (cached, read):
        batches = [header for header, _ in forms.split(data)]
        shown = [(header.attributes, header.producer_id, header.producer_epoch) for header in batches]
        assert shown == [(16, 7, 3), (48, 7, 3)] * 2
        assert [batches[place].base_offset for place in (1, 3)] == [each.offset for each in marks]
        controls = [record for _, record in forms.read_back(data) if record.key]
        assert [record.key for record in controls] == [struct.pack(">hh", 0, kind) for kind in (1, 0)]


@LAYOUTS
def test_retention_keeps_what_is_open(bench: Bench, layout: str) -> None:
    log = bench.log(storage_layout=layout, offset_assignment="dense")
    gone, left = Producer(bench, log, 1), Producer(bench, log, 2)
    for _ in range(2):
        gone.append(b"a" * 600_000, b"a" * 600_000)
        gone.mark(committed=False)
    first = left.append(b"b" * 600_000, b"b" * 600_000).base_offset
    gone.append(b"a" * 600_000, b"a" * 600_000)
    gone.mark(committed=False)
    assert len(aborted_in_redis(bench, log)) == 3
    bench.run(log.trimming.trim(0, None, 2**53))
    assert log.ends.log_start <= first
    assert last_stable_offsets(bench, log) == (first, first)
    assert len(aborted_in_redis(bench, log)) < 3
    assert bench.run(log.trimming.delete_before(first + 1)) >= first
    left.mark()
    bench.run(log.trimming.trim(0, None, 2**53))
    assert log.ends.log_start == log.ends.log_end
    assert (last_stable_offsets(bench, log), aborted_in_redis(bench, log)) == ((log.ends.log_end,) * 2, [])


def committed_of(
    bench: Bench, log: PartitionLog, offset: int, max_bytes: int = 1 << 20, *, from_cache: bool = False
) -> Committed:
    if from_cache:
        cached = cached_committed(log, offset, max_bytes, None, zstd=True)
        assert cached is not None
        return cached
    read: Committed = bench.run(outcome_of(partial(read_committed, log, offset, max_bytes)))
    return read


def values_of(committed: Committed) -> list[bytes | None]:
    """The values that a consumer of these batches delivers."""
    shown = []
    aborted = sorted(committed.aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    for header, data in forms.split(b"".join(committed.batches)):
        while aborted and aborted[0].first_offset <= header.base_offset + header.last_offset_delta:
            dropped.add(aborted.pop(0).producer_id)
        if header.control:
            dropped.discard(header.producer_id)
        elif header.producer_id not in dropped:
            shown += [record.value for _, record in forms.read_back(data)]
    return shown


@LAYOUTS
@ASSIGNMENTS
def test_committed_records_and_no_others(bench: Bench, layout: str, assignment: str) -> None:
    log = bench.log(storage_layout=layout, offset_assignment=assignment)
    bench.run(log.bounds())
    one, two, plain = (Producer(bench, log, number) for number in (1, 2, 3))
    begin = one.append(b"1").base_offset
    two.append(b"no")
    plain.append(b"2", transactional=False)
    one.append(b"3")
    two.mark(committed=False)
    one.mark()
    two.append(b"4")
    two.mark()
    one.append(b"no")
    one.mark(committed=False)
    middle = plain.append(b"5", transactional=False).base_offset
    held = one.append(b"open").previous_end
    plain.append(b"behind", transactional=False)
    for from_cache in (True, False):
        for offset, wanted in ((begin, [b"1", b"2", b"3", b"4", b"5"]), (middle, [b"5"]), (held, [])):
            committed = committed_of(bench, log, offset, from_cache=from_cache)
            assert values_of(committed) == wanted
            assert committed.last_stable_offset == held
    log.state.tail.clear()
    log.state.transactions.forget()
    assert values_of(committed_of(bench, log, begin)) == [b"1", b"2", b"3", b"4", b"5"]
    assert log.state.transactions.abort_markers_from == begin
    assert len(committed_of(bench, log, begin).aborted) == 2
    one.mark()
    assert values_of(committed_of(bench, log, held)) == [b"open", b"behind"]
    assert committed_of(bench, log, log.ends.log_end).batches == []


@LAYOUTS
def test_redis_is_asked_once_what_was_aborted(bench: Bench, layout: str) -> None:
    log = bench.log(storage_layout=layout)
    producer, plain = Producer(bench, log, 1), Producer(bench, log, 2)
    offsets = []
    for number in range(4):
        offsets.append(plain.append(b"%d" % number, transactional=False).base_offset)
        producer.append(b"no")
        producer.mark(committed=False)
    log.state.tail.clear()
    log.state.transactions.forget()
    bench.run(log.bounds())
    before = calls_of(bench.client, "zrangebyscore")
    for number in (2, 3, 2):
        read = committed_of(bench, log, offsets[number])
        assert values_of(read) == [b"%d" % shown for shown in range(number, 4)]
        assert len(read.aborted) == 4 - number
    assert calls_of(bench.client, "zrangebyscore") == before + 1
    # The earlier transactions are unknown yet; the later ones are noted with their markers.
    offsets.append(plain.append(b"4", transactional=False).base_offset)
    producer.append(b"no")
    producer.mark(committed=False)
    for number in (0, 1, 4):
        log.state.tail.clear()
        read = committed_of(bench, log, offsets[number])
        assert values_of(read) == [b"%d" % shown for shown in range(number, 5)]
        assert len(read.aborted) == 5 - number
    assert calls_of(bench.client, "zrangebyscore") == before + 2


def test_a_native_entry_during_a_read_takes_no_aborted_transaction_from_it(bench: Bench) -> None:
    log = bench.log()
    producer = Producer(bench, log, 1)
    begin = producer.append(b"no").base_offset
    producer.mark(committed=False)
    log.state.tail.clear()

    async def read() -> Committed:
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        read_committed(log, begin, 1 << 20, outcome.set_result)
        # The effect of a reply to an append after a native entry, which arrives before the reply to the read.
        log.state.transactions.appended(log.ends.log_end + 5, log.ends.log_end + 6)
        found: Committed = await outcome
        return found

    assert values_of(bench.run(read())) == []


def test_nothing_lies_between_what_is_decided_and_an_open_transaction(bench: Bench) -> None:
    log = bench.log()
    producer = Producer(bench, log, 1)
    end = producer.append(b"a", transactional=False).base_offset + 1
    bench.run(asyncio.sleep(0.003))  # offsets go by the clock
    held = producer.append(b"open").base_offset
    assert held > end
    # Readers get no empty batch for this gap: librdkafka takes an empty batch for one that is too large.
    for from_cache in (True, False):
        committed = committed_of(bench, log, end, from_cache=from_cache)
        assert (committed.batches, committed.last_stable_offset) == ([], end)
    assert bench.run(log.bounds()).last_stable_offset == end
    producer.mark()
    assert values_of(committed_of(bench, log, end)) == [b"open"]


def test_records_appended_during_a_read_are_before_its_last_stable_offset(bench: Bench) -> None:
    """They are in one batch with the records before them. Consumers derive their lag from that offset."""
    log = bench.log()
    producer = Producer(bench, log, 1)
    first = producer.append(b"a", transactional=False).base_offset
    log.state.tail.clear()
    bench.client.xadd(log.stream, {"key": "k", "value": "b"})
    committed = committed_of(bench, log, first)
    assert values_of(committed) == [b"a", b"b"]
    assert committed.last_stable_offset == committed.ends.high_watermark


def test_a_reader_gets_past_deleted_records_to_an_open_transaction(bench: Bench) -> None:
    log = bench.log()
    producer = Producer(bench, log, 1)
    producer.append(b"a", transactional=False)
    gone = producer.append(b"gone", transactional=False).base_offset
    held = producer.append(b"open").base_offset
    bench.client.xdel(log.stream, entry_id(gone, log.bias))
    log.state.tail.clear()
    committed = committed_of(bench, log, gone)
    ((header, _),) = forms.split(b"".join(committed.batches))
    assert (header.control, header.base_offset) == (True, gone)
    assert committed.last_stable_offset == gone + 1 <= held


def test_a_marker_that_is_repeated_leaves_no_trace(bench: Bench) -> None:
    log = bench.log()
    producer = Producer(bench, log, 1)
    producer.append(b"a")
    producer.mark()
    length = bench.client.xlen(log.stream)
    again = producer.mark()
    assert (again.offset, again.first_offset, again.last_stable_offset) == (-1, -1, log.ends.log_end)
    assert bench.client.xlen(log.stream) == length
    producer.append(b"b")  # the sequence continues, as the epoch does
    assert Producer(bench, log, 99).mark(committed=False).offset == -1


def test_a_delayed_marker_does_not_end_the_next_transaction(bench: Bench) -> None:
    """Its connection was given up, and it was repeated on another one."""
    log = bench.log()
    producer = Producer(bench, log, 1)
    producer.append(b"a")
    assert producer.mark(decided_ms=100).offset >= 0
    began = producer.append(b"b").previous_end
    assert producer.mark(committed=False, decided_ms=100).offset == -1
    assert producer.mark(committed=False, decided_ms=99).last_stable_offset == began
    assert last_stable_offsets(bench, log) == (began, began)
    assert producer.mark(decided_ms=101).offset >= 0
    producer.append(b"c")
    # A coordinator whose clock is behind ends it, and so does an administrator.
    assert producer.mark(coordinator=2, decided_ms=90).offset >= 0
    producer.append(b"d")
    assert producer.mark(coordinator=2).offset >= 0
    assert aborted_in_redis(bench, log) == []


def test_markers_and_producers_that_come_too_late(bench: Bench) -> None:
    log = bench.log()
    producer = Producer(bench, log, 1)
    producer.append(b"a")
    producer.mark(committed=False, epoch=1, coordinator=5)
    with pytest.raises(InvalidProducerEpoch):
        producer.append(b"b")
    with pytest.raises(InvalidProducerEpoch):
        producer.mark(epoch=0, coordinator=5)
    with pytest.raises(FencedCoordinator):
        producer.mark(epoch=1, coordinator=4)
    late = Producer(bench, log, 1, epoch=1)
    late.sequence = 4
    with pytest.raises(OutOfOrderSequence):
        late.append(b"c")
    late.sequence = 0
    late.append(b"c")
    with pytest.raises(InvalidTransactionState):
        late.append(b"d", transactional=False)
    assert bench.client.xlen(log.stream) == 3


def test_markers_keep_their_place_among_appends(bench: Bench) -> None:
    log = bench.log()

    async def all_at_once() -> list[Any]:
        calls = []
        for number in range(12):
            stamp = ProducerSequence(1, 0, number, True)
            batch = received((b"%d" % number,), stamp)
            calls.append(outcome_of(partial(append_to, log, batch, stamp)))
            if number % 3 == 2:
                marker = ControlMarker(1, 0, number % 2 == 0, 1)
                calls.append(outcome_of(partial(log.mark, marker)))
        return await asyncio.gather(*calls)

    outcomes = bench.run(all_at_once())
    offsets = [each.offset if isinstance(each, Marked) else each.base_offset for each in outcomes]
    assert offsets == sorted(offsets)
    assert len(aborted_in_redis(bench, log)) == 2


def test_records_of_coordinators_count_when_they_are_committed(bench: Bench) -> None:
    topic = bench.run(
        bench.store.catalogue.create(
            "__state", 1, {"cleanup.policy": "compact"}, internal=True, offset_assignment="dense"
        )
    )
    assert topic.keeps_latest
    log = bench.store.logs.get(topic, 0)

    def write(key: bytes, producer_id: int | None = None) -> int:
        producer = None if producer_id is None else (producer_id, 0)
        stamp = None if producer is None else ProducerSequence(*producer, -1, True)
        arguments = encode_append_records([(key, b"v", forms.BASE_MS)], producer)
        return bench.run(append_own(log, arguments, stamp)).base_offset

    def mark(producer_id: int, *, committed: bool) -> None:
        marker = ControlMarker(producer_id, 0, committed, 1)
        bench.run(outcome_of(partial(log.mark, marker)))

    def latest() -> dict[bytes, int]:
        found = bench.client.hgetall(log.keys[3])
        return {key: offset_of(name, log.bias) for key, name in found.items()}

    first = write(b"a")
    one, two = write(b"a", 1), write(b"b", 1)
    write(b"a", 2)
    assert latest() == {b"a": first}
    assert list(bench.run(log.queries.open_producers())) == [1, 2]
    again = write(b"b")
    mark(2, committed=False)
    assert latest() == {b"a": first, b"b": again}
    mark(1, committed=True)
    assert two < again
    assert latest() == {b"a": one, b"b": again}
    assert bench.run(log.queries.open_producers()) == {}
    assert not bench.client.exists(
        *(bench.store.commands.keyspace.pending("__state", 0, each) for each in (1, 2))
    )
    records = bench.client.xrange(log.stream)
    assert [fields.get(b"pid") for _, fields in records] == [None, b"1", b"1", b"2", None, b"2", b"1"]
    bench.run(outcome_of(partial(log.mark, ControlMarker(1, 2, True, 1))))
    with pytest.raises(InvalidProducerEpoch):
        write(b"late", 1)
