"""Calls of korvet_append: groups of batches, each whole or not at all, regardless of other writers."""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis

from korvet.log.values import Appended
from korvet.offsets.packing import entry_id, pack
from korvet.records.batch import BatchError
from korvet.records.kernel import encode_append_records, parse_batch
from korvet.redis.calls import ask
from korvet.redis.errors import (
    FencedEpoch,
    InvalidProducerEpoch,
    LinkLost,
    OutOfMemory,
    OutOfOrderSequence,
    StorageError,
    TopicGone,
    WrongType,
)
from korvet.redis.functions import library_source, named
from tests.storage.batches import decode, produce
from tests.storage.conftest import Bench
from tests.storage.proxy import proxied_store, until
from tests.support.logs import admit, read_log
from tests.support.module import require_module
from tests.support.ports import free_port
from tests.support.received import ReceivedBatch
from tests.support.redis_server import Server, calls_of
from tests.support.stores import open_store
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.log.partition_log import PartitionLog

Outcome = Appended | StorageError

LARGE = b"large" * 10_000
# Three records or fewer go as XADDs, four by the server module if there is one.
BATCHES = pytest.mark.parametrize(
    "values",
    [(b"v",), (b"v", b"w", b"x"), (b"v", b"w", b"x", b"y"), (LARGE,)],
    ids=["one", "three", "four", "large"],
)


def records(*values: bytes) -> list[tuple[bytes | None, bytes | None, int]]:
    return [(b"key", value, 5) for value in values]


async def produced(
    log: PartitionLog, *values: bytes, stamp: tuple[int, int, int] | None = None, epoch: int | None = None
) -> Appended:
    """Append one batch."""
    return (await all_produced(log, [values], [stamp], epoch))[0]


async def all_produced(
    log: PartitionLog,
    batches: list[tuple[bytes, ...]],
    stamps: list[tuple[int, int, int] | None] | None = None,
    epoch: int | None = None,
    *,
    followed: bool = False,
) -> list[Appended]:
    """Append all batches at once; raises the first error."""
    outcomes = await all_outcomes(log, batches, stamps, epoch, followed=followed)
    for outcome in outcomes:
        if isinstance(outcome, StorageError):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Appended)]


async def all_outcomes(
    log: PartitionLog,
    batches: list[tuple[bytes, ...]],
    stamps: list[tuple[int, int, int] | None] | None = None,
    epoch: int | None = None,
    *,
    followed: bool = False,
) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    for number, batch in enumerate(batches):
        stamp = stamps[number] if stamps else None
        done = partial(outcomes.__setitem__, number)
        produce(log, records(*batch), done, stamp, epoch, followed=followed)
    await until(lambda: len(outcomes) == len(batches))
    return [outcomes[number] for number in range(len(batches))]


def values_of(client: Any, stream: bytes) -> list[bytes]:
    return [fields[b"value"] for _, fields in client.xrange(stream) if b"value" in fields]


def calls(client: Any) -> int:
    """The number of calls that asked for appends so far. Each of them asks for the time once."""
    return calls_of(client, "time")


def begin_session(bench: Bench, log: PartitionLog) -> None:
    """Another appender begins a session."""
    bench.client.fcall(named("korvet_begin"), 3, *log.keys[:3], log.bias, "", 0)


@pytest.fixture
def log(bench: Bench) -> PartitionLog:
    """A log with one record."""
    made = bench.log()
    bench.run(produced(made, b"first"))
    return made


def test_batches_that_arrive_meanwhile_go_together(bench: Bench, log: PartitionLog) -> None:
    before = calls(bench.client)
    batches = [(b"%d" % number, b"+", b"-") for number in range(50)]
    found = bench.run(all_produced(log, batches))
    # Two calls at once, one for what arrived while Redis executed them, and one for what exceeds a group.
    assert calls(bench.client) == before + 3
    assert [one.previous_end for one in found[2:]] == [one.base_offset + 3 for one in found[1:-1]]
    assert values_of(bench.client, log.stream) == [b"first", *(value for batch in batches for value in batch)]
    ids = [one for one, _ in bench.client.xrange(log.stream)][1:]
    assert ids == [
        entry_id(appended.base_offset + number).encode() for appended in found for number in range(3)
    ]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 151


def test_what_a_pipelining_producer_sends_in_one_turn_goes_together(bench: Bench, log: PartitionLog) -> None:
    before = calls(bench.client)
    batches = [(b"%d" % number, b"x") for number in range(5)]
    bench.run(all_produced(log, batches, followed=True))
    assert calls(bench.client) == before + 1
    assert values_of(bench.client, log.stream) == [b"first", *(value for batch in batches for value in batch)]


def test_a_batch_that_nothing_follows_is_sent_in_its_turn(bench: Bench, log: PartitionLog) -> None:
    """A producer that announces more batches and sends none still gets its answer."""
    bench.run(all_produced(log, [(b"a", b"x")], followed=True))
    assert values_of(bench.client, log.stream) == [b"first", b"a", b"x"]


def test_what_waits_for_the_turns_end_is_refused_when_the_log_closes(bench: Bench, log: PartitionLog) -> None:
    outcomes: list[Outcome] = []

    async def work() -> None:
        produce(log, records(b"a", b"x"), outcomes.append, followed=True)
        log.close(TopicGone("t is gone"))
        await until(lambda: len(outcomes) == 1)

    bench.run(work())
    assert isinstance(outcomes[0], TopicGone)
    assert values_of(bench.client, log.stream) == [b"first"]


def test_a_batch_that_has_to_wait_is_checked_like_any_other(bench: Bench, log: PartitionLog) -> None:
    """Later its error would have no caller, and its append no outcome."""
    outcomes: list[Outcome] = []
    data = forms.whole_batch([forms.Record(b"", b"", forms.BASE_MS, ((b"h", b"v"),) * 2000)])
    wide = ReceivedBatch(data, parse_batch(data, 0), None)

    async def work() -> None:
        produce(log, records(b"a", b"x"), outcomes.append)
        log.append_own(encode_append_records([(None, b"own", 5)]), None, outcomes.append)
        with pytest.raises(BatchError, match="2000 headers"):
            log.append(wide, None, admit, outcomes.append)
        produce(log, records(b"b"), outcomes.append)
        await until(lambda: len(outcomes) == 3)

    bench.run(work())
    assert all(isinstance(outcome, Appended) for outcome in outcomes)
    assert values_of(bench.client, log.stream) == [b"first", b"a", b"x", b"own", b"b"]


def test_a_group_is_bounded(bench: Bench, log: PartitionLog) -> None:
    """A full group is sent even if others are in flight, so that no group keeps Redis busy for long."""
    before = calls(bench.client)
    bench.run(all_produced(log, [(b"v" * 50_000, b"x")] * 13))
    assert calls(bench.client) == before + 1 + 4
    assert bench.client.xlen(log.stream) == 1 + 26


async def test_what_comes_while_two_groups_are_on_their_way_waits(server: Server, prefix: str) -> None:
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        before = calls(server.client)
        proxy.hold_replies()
        outcomes: list[Outcome] = []
        for number in range(10):
            produce(log, records(b"%d" % number, b"x"), outcomes.append)
            await asyncio.sleep(0)
        await until(lambda: server.client.xlen(log.stream) == 1 + 4)
        proxy.release()
        await until(lambda: len(outcomes) == 10)
        assert calls(server.client) == before + 3
        values = [value for value in values_of(server.client, log.stream) if value != b"x"]
        assert values == [b"first", *(b"%d" % number for number in range(10))]


def test_large_records_after_the_stream_was_deleted(bench: Bench, log: PartitionLog) -> None:
    bench.client.delete(log.stream)
    bench.run(produced(log, LARGE))
    assert values_of(bench.client, log.stream) == [LARGE]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 1


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_each_call_stores_the_same(bench: Bench, assignment: str, kind: str) -> None:
    rows = [
        forms.Record(b"k", b"v", 5),
        forms.Record(None, None, 1_800_000_000_000),
        forms.Record(b"", b"", -1, ((b"h", b"x"), (b"", None), (b"h", b"y"))),
    ]
    data = forms.batch_bytes(forms.records_bytes(rows, base_ms=0), len(rows), base_ms=0)
    sent = ReceivedBatch(data, parse_batch(data, 0), None)
    log = bench.log(offset_assignment=assignment, configs={"message.timestamp.type": kind})

    async def append() -> Appended:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.append(sent, None, admit, done.set_result)
        return await done

    first, second = bench.run(append()), bench.run(append())
    if assignment == "dense":
        assert (first.base_offset, second.base_offset) == (0, 3)
    entries = [fields for _, fields in bench.client.xrange(log.stream)]
    assert [sorted(fields) for fields in entries[:3]] == [sorted(fields) for fields in entries[3:]]
    found = decode(bench.run(read_log(log, first.base_offset, 1 << 20)).data)
    assert [row[2:] for row in found[:3]] == [row[2:] for row in found[3:]]
    if kind == "CreateTime":
        assert [row.timestamp_ms for row in found] == [5, 1_800_000_000_000, -1] * 2


def test_a_foreign_entry_in_the_way_refuses_all_that_is_in_flight(bench: Bench, log: PartitionLog) -> None:
    future = pack(int(time.time() * 1000) + 500, 0)
    bench.client.execute_command("XADD", log.stream, entry_id(future), "native", "1")
    batches = [(b"%d" % number, b"x") for number in range(20)]
    found = bench.run(all_produced(log, batches))
    assert all(appended.base_offset > future for appended in found)
    assert values_of(bench.client, log.stream) == [b"first", *(value for batch in batches for value in batch)]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 42


def test_a_foreign_entry_before_the_batch_is_told_not_refused(bench: Bench, log: PartitionLog) -> None:
    ours = log.ends.log_end
    native = pack(int(ours >> 10), (ours & 1023) + 1)
    bench.client.execute_command("XADD", log.stream, entry_id(native), "native", "1")
    before = calls(bench.client)
    # In the millisecond of the first record the native entry would have a conflicting ID.
    bench.run(until(lambda: log.links.clock.now_ms() > ours >> 10))
    appended = bench.run(produced(log, b"a", b"b"))
    assert calls(bench.client) == before + 1
    assert appended.previous_end == native + 1
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 4


def test_a_busy_native_writer_does_not_starve_producers(bench: Bench, log: PartitionLog) -> None:
    stop = threading.Event()
    added = 0

    def write() -> None:
        nonlocal added
        client = redis.Redis(unix_socket_path=str(bench.server.socket))
        while not stop.is_set():
            client.execute_command("XADD", log.stream, "*", "native", added)
            added += 1
        client.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for round_number in range(30):
            batches = [(b"%d-%d" % (round_number, number), b"x") for number in range(10)]
            bench.run(all_produced(log, batches))
    finally:
        stop.set()
        writer.join()
    found = [value for value in values_of(bench.client, log.stream) if value not in {b"x", b"first"}]
    assert found == [b"%d-%d" % (one, two) for one in range(30) for two in range(10)]
    assert bench.client.xlen(log.stream) == 601 + added
    assert bench.run(log.queries.count(0, bench.run(log.bounds()).log_end)) == 601 + added


def test_a_lost_library_half_writes_and_reorders_nothing(bench: Bench, log: PartitionLog) -> None:
    async def load() -> list[bytes]:
        sent: list[bytes] = []
        outcomes: list[Outcome] = []
        for number in range(300):
            batch = (LARGE + b"%d" % number,) if number % 12 == 7 else (b"%d" % number, b"-%d" % number)
            produce(log, records(*batch), outcomes.append)
            sent += batch
            if number % 60 == 30:
                bench.store.commands.links(log.stream).server.write.call("FUNCTION", "FLUSH")
                bench.store.commands.links(log.stream).server.write.call("SCRIPT", "FLUSH")
            if number % 20 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(outcomes) == 300)
        assert all(isinstance(outcome, Appended) for outcome in outcomes)
        return sent

    sent = bench.run(load())
    assert values_of(bench.client, log.stream) == [b"first", *sent]


@BATCHES
@pytest.mark.parametrize("answer", ["'odd'", "1", "{ 1, 2, 3 }", "{ 1, 2, 3, 4, 5, 'six', 7 }"])
def test_functions_that_answer_something_else(
    bench: Bench, log: PartitionLog, answer: str, values: tuple[bytes, ...]
) -> None:
    """Replies as of another library: every append ends, and with an error."""
    source = library_source()
    stranger = f"redis.register_function('korvet_append' .. RELEASE, function() return {answer} end)"
    source, found = re.subn(r"redis\.register_function\('korvet_append' [^()]*\)", stranger, source)
    assert found == 1
    bench.client.function_load(source, replace=True)
    try:
        outcomes = bench.run(all_outcomes(log, [values] * 3))
        assert all(isinstance(outcome, LinkLost) for outcome in outcomes)
    finally:
        bench.client.function_load(library_source(), replace=True)
    assert bench.run(produced(log, b"second")).base_offset > 0
    assert values_of(bench.client, log.stream) == [b"first", b"second"]


@BATCHES
@pytest.mark.parametrize("deleted", [False, True])
def test_a_last_id_that_was_set_ahead(
    bench: Bench, log: PartitionLog, values: tuple[bytes, ...], *, deleted: bool
) -> None:
    """XSETID or a deleted entry moved the last ID on: neither changes the entries or their number."""
    ahead = pack(int(time.time() * 1000) + 200, 7)
    if deleted:
        bench.client.execute_command("XADD", log.stream, entry_id(ahead), "native", "1")
        bench.client.xdel(log.stream, entry_id(ahead))
    else:
        bench.client.execute_command("XSETID", log.stream, entry_id(ahead))
    batches = [[b"%d-%b" % (number, value) for value in values] for number in range(20)]
    appended = [
        bench.run(produced(log, *batch, stamp=(7, 0, number * len(values))))
        for number, batch in enumerate(batches)
    ]
    assert appended[0].base_offset > ahead
    assert not any(one.duplicate for one in appended)
    assert values_of(bench.client, log.stream) == [b"first", *itertools.chain(*batches)]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 1 + 20 * len(values)


def test_a_last_id_that_was_set_among_those_of_a_batch(bench: Bench) -> None:
    """The stream would accept only the later records of the batch: none is added."""
    log = bench.log(offset_assignment="dense")
    bench.run(produced(log, b"first", stamp=(7, 0, 0)))
    bench.client.execute_command("XSETID", log.stream, entry_id(3))
    second = bench.run(produced(log, b"a", b"b", b"c", b"d", stamp=(7, 0, 1)))
    third = bench.run(produced(log, b"e", stamp=(7, 0, 5)))
    assert not second.duplicate
    assert third.base_offset == second.base_offset + 4
    assert values_of(bench.client, log.stream) == [b"first", b"a", b"b", b"c", b"d", b"e"]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 6


def test_a_stream_deleted_in_between_begins_anew(bench: Bench, log: PartitionLog) -> None:
    async def load() -> list[Outcome]:
        outcomes: list[Outcome] = []
        for number in range(60):
            produce(log, records(b"%d" % number, b"x"), outcomes.append)
            if number == 30:
                # The group gathered so far is sent.
                await asyncio.sleep(0)
                bench.store.commands.links(log.stream).server.write.call("DEL", log.stream)
        await until(lambda: len(outcomes) == 60)
        return outcomes

    outcomes = bench.run(load())
    assert all(isinstance(outcome, Appended) for outcome in outcomes)
    left = [value for value in values_of(bench.client, log.stream) if value != b"x"]
    assert left == [b"%d" % number for number in range(31, 60)]
    bounds = bench.run(log.bounds())
    assert bounds.entries == 58
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 58


def test_deleted_meta_begins_anew(bench: Bench, log: PartitionLog) -> None:
    bench.client.delete(log.meta)
    bench.run(all_produced(log, [(b"a", b"b"), (b"c",)]))
    assert values_of(bench.client, log.stream) == [b"first", b"a", b"b", b"c"]
    assert bench.run(log.queries.count(0, log.ends.log_end)) == 4


@pytest.mark.parametrize("place", [0, 1, 2])
@BATCHES
def test_a_key_of_another_type_refuses_the_batch_whole(
    bench: Bench, log: PartitionLog, place: int, values: tuple[bytes, ...]
) -> None:
    key = log.keys[place]
    bench.client.delete(key)
    bench.client.set(key, "mine")
    before = bench.client.xlen(log.stream) if place else 0
    outcomes: list[Outcome] = []

    async def refused() -> None:
        # One record that needs no new point of the index is appended without it.
        while not (outcomes and isinstance(outcomes[-1], WrongType)):
            outcomes.extend(await all_outcomes(log, [values]))

    bench.run(asyncio.wait_for(refused(), 10))
    assert len(outcomes) == 1 or (place == 1 and len(values) == 1)
    assert bench.client.get(key) == b"mine"
    assert (bench.client.xlen(log.stream) if place else 0) == before + len(outcomes) - 1


def test_the_state_of_a_producer(bench: Bench, log: PartitionLog, caplog: pytest.LogCaptureFixture) -> None:
    """KIP-98: order, duplicates of the last five batches, gaps, epochs."""
    stamps: list[tuple[int, int, int] | None] = [(7, 0, 2 * number) for number in range(7)]
    found = bench.run(all_produced(log, [(b"%d" % number, b"x") for number in range(7)], stamps))
    for number in range(2, 7):
        again = bench.run(produced(log, b"%d" % number, b"x", stamp=(7, 0, 2 * number)))
        assert again.duplicate
        assert again.base_offset == found[number].base_offset
        bench.run(produced(log, b"other"))
    with pytest.raises(OutOfOrderSequence):
        bench.run(produced(log, b"gap", stamp=(7, 0, 20)))
    bench.run(produced(log, b"x", b"y", stamp=(7, 1, 0)))
    with pytest.raises(InvalidProducerEpoch):
        bench.run(produced(log, b"old", stamp=(7, 0, 14)))
    assert bench.client.xlen(log.stream) == 1 + 14 + 5 + 2
    assert not caplog.messages


def test_producers_of_one_group(bench: Bench, log: PartitionLog) -> None:
    """The state of each producer is kept, also if several batches of the group are its own."""
    stamps = [None, (1, 0, 0), None, (2, 4, 0), (1, 0, 2), (1, 0, 4), (3, 0, 9)]
    batches = [(b"%d" % number, b"x") for number in range(len(stamps))]
    before = calls(bench.client)
    found = bench.run(all_produced(log, batches, stamps))
    # A batch after the first one of a new producer waits for its answer.
    assert calls(bench.client) == before + 3
    for batch, stamp, original in zip(batches, stamps, found, strict=True):
        if stamp is not None:
            again = bench.run(produced(log, *batch, stamp=stamp))
            assert again.duplicate
            assert again.base_offset == original.base_offset
    with pytest.raises(OutOfOrderSequence):
        bench.run(produced(log, b"gap", stamp=(1, 0, 7)))
    bench.run(produced(log, b"next", stamp=(1, 0, 6)))
    assert bench.client.xlen(log.stream) == 1 + 14 + 1


@pytest.mark.parametrize("first", [0, 2**31 - 4])
@pytest.mark.parametrize("sizes", [(1, 1), (3, 1, 2), (1, 2, 3, 4, 5), (2, 1, 4, 1, 1, 3, 2, 1)])
def test_a_group_leaves_what_its_batches_would_one_by_one(
    bench: Bench, first: int, sizes: tuple[int, ...]
) -> None:
    """Also if the sequence wraps from the largest number to 0 (KIP-98)."""
    batches = [tuple(b"%d-%d" % (number, place) for place in range(n)) for number, n in enumerate(sizes)]
    starts = itertools.accumulate(sizes, initial=first)
    stamps = [(7, 0, start % 2**31) for start, _ in zip(starts, sizes, strict=False)]
    states, indexes = [], []
    for together in (False, True):
        log = bench.log(f"t-{together}", offset_assignment="dense")
        bench.run(produced(log, b"first", stamp=(8, 0, 0)))
        before = calls(bench.client)
        if together:
            bench.run(all_produced(log, batches, [*stamps], followed=True))
            # Batches after the first one of a new producer wait for its answer.
            assert calls(bench.client) == before + 2
        else:
            for batch, stamp in zip(batches, stamps, strict=True):
                bench.run(produced(log, *batch, stamp=stamp))
        assert bench.run(log.queries.count(0, log.ends.log_end)) == 1 + sum(sizes)
        # Epoch, time, and for each batch the first sequence, the last sequence and the offset.
        numbers = [number for (number,) in struct.iter_unpack(">d", bench.client.hget(log.meta, "p:7"))]
        states.append((numbers[0], numbers[2:]))
        # The number of entries, their bytes, and the size of the largest one.
        counts = struct.unpack(">14d", bench.client.hget(log.meta, "log"))
        indexes.append(counts[4:9])
    assert len(states[0][1]) == 3 * min(len(sizes), 5)
    assert states[0] == states[1]
    assert indexes[0] == indexes[1]


def test_a_group_with_a_duplicate_and_a_gap(bench: Bench, log: PartitionLog) -> None:
    """Each batch gets the same answer as alone."""
    original = bench.run(produced(log, b"a", b"b", stamp=(1, 0, 0)))
    bench.run(produced(log, b"c"))
    outcomes = bench.run(
        all_outcomes(
            log,
            [(b"d",), (b"e",), (b"a", b"b"), (b"f",), (b"gap",), (b"g", b"h")],
            [None, None, (1, 0, 0), (1, 0, 2), (1, 0, 7), (1, 0, 3)],
        )
    )
    duplicate, gap = outcomes[2], outcomes[4]
    assert isinstance(duplicate, Appended)
    assert duplicate.duplicate
    assert duplicate.base_offset == original.base_offset
    assert isinstance(gap, OutOfOrderSequence)
    assert all(isinstance(outcomes[place], Appended) for place in (0, 1, 3, 5))
    assert values_of(bench.client, log.stream) == [
        *(b"first", b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"),
    ]


def test_a_refused_batch_does_not_let_its_followers_overtake(bench: Bench, log: PartitionLog) -> None:
    """One producer leaves a gap; the batches in flight after it end as without pipelining."""
    bench.run(produced(log, b"a", stamp=(1, 0, 0)))
    bench.run(produced(log, b"b"))
    outcomes = bench.run(
        all_outcomes(
            log,
            [(b"gap",), (b"other", b"x"), (b"c",), (b"c", b"d"), (b"e",)],
            [(1, 0, 5), None, (1, 0, 1), (1, 0, 1), (2, 0, 0)],
        )
    )
    assert isinstance(outcomes[0], OutOfOrderSequence)
    assert isinstance(outcomes[1], Appended)
    assert isinstance(outcomes[2], Appended)
    assert isinstance(outcomes[3], OutOfOrderSequence)
    assert isinstance(outcomes[4], Appended)
    assert values_of(bench.client, log.stream) == [b"first", b"a", b"b", b"other", b"x", b"c", b"e"]


@BATCHES
def test_an_older_epoch_is_fenced(bench: Bench, log: PartitionLog, values: tuple[bytes, ...]) -> None:
    epoch = bench.run(log.acquire_epoch())
    bench.run(produced(log, *values, epoch=epoch))
    bench.run(log.acquire_epoch())
    before = bench.client.xlen(log.stream)
    with pytest.raises(FencedEpoch):
        bench.run(produced(log, *values, epoch=epoch))
    assert bench.client.xlen(log.stream) == before


def test_records_of_the_broker_keep_their_place(bench: Bench, log: PartitionLog) -> None:
    async def load() -> None:
        outcomes: list[Outcome] = []
        for number in range(120):
            if number % 7 == 3:
                own = encode_append_records(records(b"%d" % number))
                log.append_own(own, None, outcomes.append)
            else:
                produce(log, records(b"%d" % number), outcomes.append)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(outcomes) == 120)
        assert all(isinstance(outcome, Appended) for outcome in outcomes)

    bench.run(load())
    assert values_of(bench.client, log.stream) == [b"first", *(b"%d" % number for number in range(120))]


def test_a_first_record_with_thousands_of_headers(bench: Bench, log: PartitionLog) -> None:
    headers = tuple((b"h", b"%d" % number) for number in range(1900))
    rows = [forms.Record(b"k", b"v", 5, headers), forms.Record(b"k", b"w", 5)]
    data = forms.whole_batch(rows)
    before = calls(bench.client)

    async def append() -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.append(ReceivedBatch(data, parse_batch(data, 0), None), None, admit, done.set_result)
        return await done

    appended = bench.run(append())
    assert calls(bench.client) == before + 1
    read = forms.read_back(bench.run(read_log(log, appended.base_offset, 1 << 20)).data)
    assert [row for _, row in read] == rows


def test_out_of_memory_refuses_the_batch_whole(new_server: Callable[..., Server]) -> None:
    bench = Bench(new_server(), "oom")
    log = bench.log()
    bench.run(produced(log, b"first"))
    used = bench.client.info("memory")["used_memory"]
    bench.client.config_set("maxmemory", used + 200_000)
    written = 1
    full = False
    while not full:
        for outcome in bench.run(all_outcomes(log, [tuple([b"x" * 1000] * 20)] * 5)):
            if isinstance(outcome, StorageError):
                assert isinstance(outcome, OutOfMemory)
                full = True
            else:
                written += 20
    assert bench.client.xlen(log.stream) == written
    bench.client.config_set("maxmemory", 0)
    bench.run(all_produced(log, [(b"a", b"b"), (b"c", b"d")]))
    assert bench.client.xlen(log.stream) == written + 4
    assert bench.run(log.queries.count(0, log.ends.log_end)) == written + 4
    bench.close()


async def test_a_lost_reply_is_asked_for(server: Server, prefix: str) -> None:
    """Batches without an idempotent producer, whose replies are cut off after Redis executed them."""
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        proxy.hold_replies()
        batches = [(b"%d" % number, b"x", b"y")[: 1 + number % 3] for number in range(10)]
        batches.insert(0, (LARGE,))
        waiting = asyncio.ensure_future(all_produced(log, batches))
        total = 1 + sum(map(len, batches))
        await until(lambda: server.client.xlen(log.stream) == total)
        await proxy.cut()
        found = await waiting
        ids = dict(server.client.xrange(log.stream))
        assert len(ids) == total
        for batch, appended in zip(batches, found, strict=True):
            assert ids[entry_id(appended.base_offset).encode()][b"value"] == batch[0]
        await all_produced(log, [(b"a", b"b"), (b"c", b"d")])
        assert server.client.xlen(log.stream) == total + 4


async def test_what_redis_never_got_is_sent_again(server: Server, prefix: str) -> None:
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        proxy.hold_requests()
        batches = [(LARGE,), *((b"%d" % number, b"x")[: 1 + number % 2] for number in range(10))]
        waiting = asyncio.ensure_future(all_produced(log, batches))
        await until(lambda: proxy.held_bytes > 0)
        await proxy.cut()
        await waiting
        sent = [value for batch in batches for value in batch]
        assert values_of(server.client, log.stream) == [b"first", *sent]


def test_another_session_refuses_what_is_on_its_way(bench: Bench, log: PartitionLog) -> None:
    """The appender begins one of its own, and sends all again in order."""
    for number in range(5):
        begin_session(bench, log)
        batches = [(b"%d-%d" % (number, place), b"x") for place in range(20)]
        found = bench.run(all_produced(log, batches))
        assert [one.base_offset for one in found] == sorted(one.base_offset for one in found)
    sent = [b"%d-%d" % (number, place) for number in range(5) for place in range(20)]
    assert [value for value in values_of(bench.client, log.stream) if value != b"x"] == [b"first", *sent]


def test_two_appenders_take_turns(server: Server, prefix: str) -> None:
    """Without epochs nobody fences them. Neither loses or repeats a batch."""
    one, other = Bench(server, prefix), Bench(server, prefix)
    one.topic("t")
    other.run(other.store.catalogue.load())
    logs = [bench.store.logs.get(bench.store.catalogue.topics["t"], 0) for bench in (one, other)]
    for number in range(10):
        for bench, log in zip((one, other), logs, strict=True):
            bench.run(all_produced(log, [(b"%d" % number, b"x"), (b"y",)]))
    assert values_of(server.client, logs[0].stream) == [
        value for number in range(10) for value in (b"%d" % number, b"x", b"y") * 2
    ]
    for bench in (one, other):
        bench.close()


async def test_a_late_call_of_a_broken_connection_is_refused(server: Server, prefix: str) -> None:
    """It is still in a buffer when the batch is sent again."""
    async with proxied_store(server.socket, prefix) as (_, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        sent: list[Any] = []
        send = log.links.write_functions.send

        def lose(payload: Any, on_reply: Any) -> None:
            sent.append(payload)
            asyncio.get_running_loop().call_soon(on_reply, LinkLost("the test"))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(log.links.write_functions), "send", lambda self, *call: lose(*call))
            waiting = asyncio.ensure_future(all_produced(log, [(b"a", b"b")]))
            await until(lambda: bool(sent))
        await waiting
        late = ask(send, sent[0])
        with pytest.raises(StorageError, match="SESSION"):
            await late
        assert values_of(server.client, log.stream) == [b"first", b"a", b"b"]


async def test_without_redis_the_outcome_is_unknown_in_the_end(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.log.appender.LONGEST_ABSENCE_S", 0.2)
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        proxy.hold_requests()
        waiting = asyncio.ensure_future(all_outcomes(log, [(LARGE,), (b"a", b"b"), (b"c",)]))
        await until(lambda: proxy.held_bytes > 0)
        proxy.refusing = True
        await proxy.cut()
        assert all(isinstance(outcome, LinkLost) for outcome in await waiting)
        proxy.refusing = False
        await store.commands.links(log.stream).server.write.wait_connected(10_000)
        await produced(log, b"later", b"x")
        assert values_of(server.client, log.stream) == [b"first", b"later", b"x"]


async def test_a_log_that_is_closed_while_outcomes_are_unknown_answers_all(
    server: Server, prefix: str
) -> None:
    """Also the appends of which nothing was sent."""
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        proxy.hold_requests()
        waiting = asyncio.ensure_future(all_outcomes(log, [(LARGE,), (b"a", b"b"), (b"c",)]))
        await until(lambda: proxy.held_bytes > 0)
        proxy.refusing = True
        await proxy.cut()
        later = asyncio.ensure_future(all_outcomes(log, [(b"d",)]))
        await asyncio.sleep(0)
        log.close(FencedEpoch("another broker leads it"))
        assert all(isinstance(outcome, LinkLost) for outcome in await asyncio.wait_for(waiting, 10))
        (unsent,) = await asyncio.wait_for(later, 10)
        assert isinstance(unsent, FencedEpoch)


def test_a_deleted_topic_refuses_what_waits(bench: Bench, log: PartitionLog) -> None:
    async def work() -> list[Outcome]:
        outcomes: list[Outcome] = []
        log.append_own(encode_append_records(records(b"own")), None, outcomes.append)
        for number in range(3):
            produce(log, records(b"%d" % number, b"x"), outcomes.append)
        bench.store.logs.close_topic("t")
        await until(lambda: len(outcomes) == 4)
        return outcomes

    outcomes = bench.run(work())
    assert sum(isinstance(outcome, TopicGone) for outcome in outcomes) == 3
    assert values_of(bench.client, log.stream) == [b"first", b"own"]


def test_nothing_is_sent_again_to_a_deleted_topic(bench: Bench, log: PartitionLog) -> None:
    """Redis refuses the calls, after the topic's logs were closed."""
    begin_session(bench, log)

    async def work() -> list[Outcome]:
        outcomes: list[Outcome] = []
        for number in range(3):
            produce(log, records(b"%d" % number, b"x"), outcomes.append)
        bench.store.logs.close_topic("t")
        await until(lambda: len(outcomes) == 3)
        return outcomes

    assert all(isinstance(outcome, TopicGone) for outcome in bench.run(work()))
    assert bench.client.xlen(log.stream) == 1


async def test_closing_ends_what_is_in_flight(server: Server, prefix: str) -> None:
    outcomes: list[Outcome] = []
    async with proxied_store(server.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        await produced(log, b"first")
        proxy.hold_replies()
        for number in range(3):
            produce(log, records(b"%d" % number, b"x"), outcomes.append)
        await until(lambda: server.client.xlen(log.stream) == 7)
        proxy.refusing = True
        await proxy.cut()
    assert all(isinstance(outcome, LinkLost) for outcome in outcomes)
    assert len(outcomes) == 3
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("reader", ["XREAD", "XREADGROUP"])
def test_blocked_native_readers_see_every_entry(bench: Bench, log: PartitionLog, reader: str) -> None:
    """Native readers that are blocked on the stream are served."""
    seen: list[bytes] = []
    faults: list[Exception] = []
    bench.client.xgroup_create(log.stream, "g", "$")
    blocked_on = bench.client.xinfo_stream(log.stream)["last-generated-id"]
    ready = threading.Event()

    def read() -> None:
        client = redis.Redis(unix_socket_path=str(bench.server.socket))
        last = blocked_on
        ready.set()
        try:
            while not seen or seen[-1] != b"end":
                if reader == "XREAD":
                    found: Any = client.xread({log.stream: last}, block=10_000)
                else:
                    found = client.xreadgroup("g", "c", {log.stream: ">"}, block=10_000)
                if not found:
                    return
                entries = found[0][1] if isinstance(found, list) else next(iter(found.values()))[0]
                seen.extend(fields[b"value"] for _, fields in entries)
                last = entries[-1][0]
        except redis.RedisError as error:
            faults.append(error)
        finally:
            client.close()

    thread = threading.Thread(target=read)
    thread.start()
    ready.wait()
    sent: list[bytes] = []
    for number in range(40):
        batch = (b"%d" % number, b"x", b"y")[: 1 + number % 3]
        bench.run(produced(log, *batch))
        sent += batch
    bench.run(produced(log, b"last", b"end"))
    thread.join(30)
    assert not faults
    assert seen == [*sent, b"last", b"end"]


def test_what_a_file_and_a_replica_make_of_it(new_server: Callable[..., Server], tmp_path: Any) -> None:
    """The append-only file holds each batch as one transaction, and so does the link to a replica."""
    port = free_port()
    primary = new_server("--port", str(port), "--appendonly", "yes", "--enable-debug-command", "yes")
    replica = new_server("--replicaof", "127.0.0.1", str(port))
    bench = Bench(primary, "aof")
    log = bench.log()
    bench.run(produced(log, b"first"))
    bench.client.xgroup_create(log.stream, "g", "0")
    bench.run(all_produced(log, [(b"%d" % number, b"x", b"y") for number in range(50)]))
    expected = bench.client.xrange(log.stream)
    meta = bench.client.hgetall(log.meta)
    deadline = time.monotonic() + 20
    while replica.client.xlen(log.stream) < 151:
        assert time.monotonic() < deadline, "the replica did not follow"
    assert replica.client.xrange(log.stream) == expected
    assert replica.client.hgetall(log.meta) == meta
    assert len(replica.client.xinfo_groups(log.stream)) == 1
    bench.client.execute_command("DEBUG", "LOADAOF")
    assert bench.client.xrange(log.stream) == expected
    assert bench.client.hgetall(log.meta) == meta
    bench.close()


@pytest.mark.parametrize("command", ["xadd", "xlen", "korvet.put"])
async def test_rights_that_are_taken_away_hide_no_records(
    new_server: Callable[..., Server], prefix: str, command: str
) -> None:
    port = free_port()
    server = new_server("--port", str(port))
    if command == "korvet.put":
        require_module(server.program)
    rights = {"enabled": True, "reset": True, "passwords": ["+p"], "keys": ["*"], "categories": ["+@all"]}
    server.client.acl_setuser("u", **rights)
    async with open_store(f"redis://u:p@127.0.0.1:{port}", prefix) as store:
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        first = await produced(log, b"1")
        server.client.acl_setuser("u", **rights, commands=[f"-{command}"])
        (outcome,) = await all_outcomes(log, [(b"2", b"3", b"4")])
        there = [b"1"] if isinstance(outcome, StorageError) else [b"1", b"2", b"3", b"4"]
        assert values_of(server.client, log.stream) == there
        server.client.acl_setuser("u", **rights)
        await produced(log, b"5")
        fetched = await read_log(log, first.base_offset, 1 << 20)
        assert [record.value for record in decode(fetched.data)] == [*there, b"5"]


def test_a_damaged_producer_costs_its_batch_alone(bench: Bench, log: PartitionLog) -> None:
    """Nothing of a group is written twice when its batches are sent again."""
    for producer in (7, 8, 9):
        bench.run(produced(log, b"known", stamp=(producer, 0, 0)))
    bench.client.hset(log.meta, "p:9", "x")
    stamps = [None, (7, 0, 1), (9, 0, 1), (8, 0, 1)]
    batches = [(b"a",), (b"b", b"c", b"d", b"e"), (b"damaged",), (b"f",)]
    outcomes = bench.run(all_outcomes(log, batches, stamps, followed=True))
    assert [isinstance(outcome, Appended) for outcome in outcomes] == [True, True, False, True]
    assert "DAMAGED" in str(outcomes[2])
    again = bench.run(produced(log, *batches[1], stamp=(7, 0, 1)))
    assert again.duplicate
    values = values_of(bench.client, log.stream)
    assert values == [b"first", *[b"known"] * 3, b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("field", ["open", "done"])
def test_a_damaged_log_takes_nothing(bench: Bench, log: PartitionLog, field: str) -> None:
    bench.client.hset(log.meta, field, "x" * 17)
    (outcome,) = bench.run(all_outcomes(log, [(b"a",)]))
    assert isinstance(outcome, StorageError)
    assert values_of(bench.client, log.stream) == [b"first"]


@pytest.mark.parametrize("how", ["pipelined", "closed"])
def test_a_slow_append_leaves_the_server_alone(new_server: Callable[..., Server], how: str) -> None:
    """More commands arrive on the connection while the function runs, or it is closed."""
    server = new_server("--busy-reply-threshold", "1")
    bench = Bench(server, "slow")
    log = bench.log(offset_assignment="dense")
    bench.run(produced(log, b"first"))
    data = forms.whole_batch([forms.Record(None, b"", forms.BASE_MS)] * 300_000)
    batch = ReceivedBatch(data, parse_batch(data, 0), None)

    async def work() -> None:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        log.append(batch, None, admit, done.set_result)
        link = bench.store.commands.links(log.stream).server.write
        if how == "pipelined":
            await asyncio.gather(*(link.call("PING") for _ in range(50)), return_exceptions=True)
        else:
            await asyncio.sleep(0)
            link.reset("the test")
        await done

    bench.run(work())
    assert server.process.poll() is None
    bench.run(until(server.client.ping))
    assert server.client.xlen(log.stream) == 300_001
    bench.close()
