"""Compaction of logs with transactions, compared with a model that knows the outcome of each transaction."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from korvet.log import queries, trimming
from korvet.log.committed import Committed, read_committed
from korvet.log.compaction import compactor
from korvet.log.compaction.compactor import Compactor, Pace
from korvet.log.partition_log import PartitionLog
from korvet.log.values import ProducerSequence
from korvet.offsets.packing import offset_of
from korvet.records.control import ControlMarker
from korvet.records.kernel import encode_append_records
from korvet.redis.commands import Commands
from korvet.redis.errors import StorageError
from tests.storage.conftest import Bench
from tests.storage.test_transactions import aborted_in_redis, outcome_of
from tests.storage.transaction_log import (
    NOW_MS,
    RETENTION_MS,
    RULES,
    Log,
    Pair,
)
from tests.support.logs import append_own
from tests.support.machines import run_machine
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.redis_server import Server

LAYOUTS = pytest.mark.parametrize("layout", ["record", "batch"])
_serial = itertools.count()


@LAYOUTS
def test_records_of_transactions_are_compacted(bench: Bench, layout: str) -> None:
    made = Log(bench, layout)
    made.append(1, (b"a", b"1"), (b"b", b"1"))
    first = made.end(1, committed=True)
    made.append(2, (b"a", b"no"), (b"c", b"no"))
    made.append(-1, (b"b", b"2"))
    second = made.end(2, committed=False)
    made.append(1, (b"a", b"3"))
    made.end(1, committed=True)
    held = made.append(3, (b"a", b"open"))
    made.append(-1, (b"b", b"behind"))
    assert made.compact() == 4
    records, markers = made.entries()
    assert sorted(pair[1] for pair in records.values() if pair[1]) == [b"2", b"3", b"behind", b"open"]
    assert markers[:2] == [first, second]
    assert set(made.committed().values()) == {(b"a", b"3"), (b"b", b"2")}
    made.check()
    # Markers without records are removed after delete.retention.ms; an open transaction is left alone.
    assert made.compact(after_ms=RETENTION_MS - 1) == 0
    assert made.compact(after_ms=1) == 2
    records, markers = made.entries()
    assert len(markers) == 1
    assert held in records
    assert aborted_in_redis(bench, made.log) == []
    made.check()
    made.end(3, committed=False)
    assert set(made.committed().values()) == {(b"a", b"3"), (b"b", b"2"), (b"b", b"behind")}
    # The records are removed again. Their marker stays while it is the newest entry.
    assert made.compact() == 2
    assert made.compact(after_ms=RETENTION_MS) == 0
    made.append(-1, (b"newest", b"1"))
    assert made.compact() == 0
    assert made.compact(after_ms=RETENTION_MS) == 1
    assert set(made.committed().values()) == {(b"a", b"3"), (b"b", b"behind"), (b"newest", b"1")}
    made.check()


@LAYOUTS
def test_a_tombstone_in_a_transaction(bench: Bench, layout: str) -> None:
    made = Log(bench, layout)
    made.append(-1, (b"a", b"1"), (b"b", b"1"))
    made.append(1, (b"a", None))
    made.end(1, committed=True)
    made.append(1, (b"b", None))
    made.end(1, committed=False)
    made.append(-1, (b"newest", b"1"))
    assert made.compact() == 2
    assert set(made.committed().values()) == {(b"a", None), (b"b", b"1"), (b"newest", b"1")}
    # The tombstone is removed after its time, its marker after the same time again.
    assert made.compact(after_ms=RETENTION_MS) == 2
    assert set(made.committed().values()) == {(b"b", b"1"), (b"newest", b"1")}
    assert len(made.entries()[1]) == 1
    assert made.compact(after_ms=RETENTION_MS) == 1
    assert made.entries()[1] == []
    assert made.compact(after_ms=10 * RETENTION_MS) == 0
    made.check()


def went_on(bench: Bench, layout: str) -> tuple[Log, set[Pair]]:
    """A log with a marker whose aborted record is gone, and a later committed record of the same producer.
    Returns the expected records, too.
    """
    made = Log(bench, layout)
    made.append(-1, (b"first", b"1"))
    made.append(1, (b"a", b"no"))
    made.end(1, committed=False)
    made.compact()
    made.append(1, (b"a", b"1"))
    made.end(1, committed=True)
    return made, {(b"first", b"1"), (b"a", b"1")}


@LAYOUTS
def test_a_producer_continues_after_a_removed_marker(bench: Bench, layout: str) -> None:
    """Its later commits do not count as aborted, neither for the leader nor for readers that ask Redis."""
    made, wanted = went_on(bench, layout)
    made.compact(after_ms=RETENTION_MS)
    assert len(made.entries()[1]) == 1
    assert set(made.committed(max_bytes=1 << 20).values()) == wanted
    made.log.state.transactions.forget()
    made.log.state.tail.clear()
    assert set(made.committed(max_bytes=1 << 20).values()) == wanted


@LAYOUTS
def test_what_is_read_while_redis_forgets_is_not_remembered(bench: Bench, layout: str) -> None:
    """Readers that ask just before learn of an aborted transaction whose marker is about to be removed."""
    made, wanted = went_on(bench, layout)
    made.log.state.transactions.forget()
    bench.run(made.log.bounds())
    seen: list[Any] = []
    call = Commands.call

    async def reading_before(commands: Commands, *args: bytes | str | int) -> Any:
        if args[0] == "ZREM":
            made.log.state.tail.clear()
            seen.append(await outcome_of(partial(read_committed, made.log, 0, 1 << 20)))
        return await call(commands, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Commands, "call", reading_before)
        made.compact(after_ms=RETENTION_MS)
    (read,) = seen
    assert len(read.aborted) == 1
    assert len(made.entries()[1]) == 1
    assert set(made.committed(max_bytes=1 << 20).values()) == wanted


@LAYOUTS
def test_markers_are_removed_in_time_on_a_busy_log(bench: Bench, layout: str) -> None:
    made = Log(bench, layout)
    made.append(1, (b"a", b"no"))
    marker = made.end(1, committed=False)
    step_ms = RETENTION_MS // 40
    for number in range(45):
        made.append(-1, (b"b", b"%d" % number))
        made.compact(after_ms=step_ms)
        gone_ms = made.now_ms - NOW_MS - step_ms
        if gone_ms < RETENTION_MS:
            assert marker in made.entries()[1]
    assert gone_ms >= RETENTION_MS + RETENTION_MS // 16 + step_ms
    assert made.entries()[1] == []


class Interrupted(Compactor):
    """Calls `act` before the first call of one function; `act` may raise."""

    def __init__(self, made: Log, before: str, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(made.bench.store.commands, made.log, Pace(1e12), 1 << 20)
        self.before = f"korvet_shadow_{before}"
        self.act = act

    async def _call(self, function: str, *args: bytes | str | int) -> Any:
        if function == self.before:
            self.before = ""
            await self.act()
        return await super()._call(function, *args)


@LAYOUTS
@pytest.mark.parametrize("before", ["begin", "copy", "swap"])
def test_a_crash_at_any_moment_leaves_the_log_right(bench: Bench, layout: str, before: str) -> None:
    made = Log(bench, layout)
    for number in range(6):
        made.append(1, (b"a", b"%d" % number), (b"b%d" % number, b""))
        made.end(1, committed=number % 2 == 0)

    async def crash() -> None:
        raise RuntimeError

    for after_ms in (0, RETENTION_MS):
        made.now_ms += after_ms
        with pytest.raises(RuntimeError):
            made.bench.run(Interrupted(made, before, crash).compact(RULES, made.now_ms))
        made.check()
        made.check_markers()
        # Only Redis knows the transactions now.
        made.log.state.transactions.forget()
        made.check()
        assert made.compact() > 0
        made.check()


def test_a_read_that_overtakes_a_compaction_is_repeated(bench: Bench) -> None:
    """The aborted transactions in its reply do not match the records in its reply."""
    made = Log(bench, "record")
    made.append(1, (b"a", b"no"))
    marker = made.end(1, committed=False)
    made.append(1, (b"a", b"1"))
    made.end(1, committed=True)
    made.compact()
    made.log.state.tail.clear()
    made.log.state.transactions.forget()
    (stale,) = aborted_in_redis(bench, made.log)
    assert stale.last_offset == marker
    arrived: list[Any] = []

    read = made.log.read

    def overtaken(offset: int, max_bytes: int, done: Callable[[Any], None]) -> None:
        arrived.append(offset)
        if len(arrived) == 1:
            made.log.state.transactions.prune([stale.last_offset])
        read(offset, max_bytes, done)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "read", lambda _, *args, **options: overtaken(*args, **options))
        outcome = bench.run(outcome_of(partial(read_committed, made.log, 0, 1 << 20)))
    assert isinstance(outcome, Committed)
    assert arrived == [0, 0]


@LAYOUTS
@pytest.mark.parametrize("before", ["copy", "swap"])
def test_transactions_continue_during_a_compaction(bench: Bench, layout: str, before: str) -> None:
    made = Log(bench, layout)
    for number in range(4):
        made.append(1, (b"a", b"%d" % number))
        made.end(1, committed=number != 2)
    made.append(2, (b"a", b"open"))

    async def act() -> None:
        await made.append_wait(1, (b"a", b"late"))
        await made.end_wait(1, committed=True)
        await made.append_wait(3, (b"a", b"no"))
        await made.end_wait(3, committed=False)
        await made.end_wait(2, committed=False)

    assert bench.run(Interrupted(made, before, act).compact(RULES, made.now_ms)) == 3
    records, markers = made.entries()
    assert [pair[1] for pair in records.values()] == [b"3", b"open", b"late", b"no"]
    assert len(markers) == 7
    made.check()
    assert list(made.committed().values()) == [(b"a", b"3"), (b"a", b"late")]
    assert made.compact() == 3
    assert list(made.committed().values()) == [(b"a", b"late")]
    made.check()


def test_offsets_in_transactions_are_compacted(bench: Bench) -> None:
    """Like the transactions in `__consumer_offsets`: entries that `latest` names stay."""
    topic = bench.topic(
        "__state", configs={"cleanup.policy": "compact"}, internal=True, offset_assignment="dense"
    )
    state = bench.store.logs.get(topic, 0)

    def write(key: bytes, producer_id: int) -> None:
        arguments = encode_append_records([(key, b"v", forms.BASE_MS)], (producer_id, 0))
        bench.run(append_own(state, arguments, ProducerSequence(producer_id, 0, -1, True)))

    def mark(producer_id: int, *, committed: bool) -> None:
        outcome = bench.run(outcome_of(partial(state.mark, ControlMarker(producer_id, 0, committed, 1))))
        assert not isinstance(outcome, StorageError)

    for number in range(5):
        write(b"group", 1)
        write(b"other %d" % number, 1)
        mark(1, committed=number < 4)
    write(b"group", 2)
    work = Compactor(bench.store.commands, state, Pace(1e12), 1 << 20)
    assert bench.run(work.compact(RULES, NOW_MS)) == 5
    latest = bench.client.hgetall(state.keys[3])
    assert len(latest) == 5
    there = {name for name, _ in bench.client.xrange(state.stream)}
    assert set(latest.values()) <= there
    newest = max(offset_of(name, 1) for name in latest.values())
    assert newest < bench.run(state.read_last_stable_offset()) == 15
    # Four more markers are left with one record each, and the marker of an aborted transaction without any.
    assert bench.run(work.compact(RULES, NOW_MS + RETENTION_MS)) == 1


class TransactionMachine(RuleBasedStateMachine):
    """Transactions of several producers begin and end, time passes, and compactions run up to any offset."""

    server: ClassVar[Server]

    @initialize(layout=st.sampled_from(["record", "batch"]), assignment=st.sampled_from(["clock", "dense"]))
    def begin(self, layout: str, assignment: str) -> None:
        self.bench = Bench(self.server, f"txn{next(_serial)}")
        self.made = Log(self.bench, layout, assignment)
        self.count = 0

    @rule(
        producer_id=st.integers(-1, 2),
        keys=st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=1, max_size=3),
        tombstones=st.booleans(),
        outcome=st.sampled_from(["open", "commit", "commit", "abort", "abort"]),
    )
    def append(self, producer_id: int, keys: list[bytes], tombstones: bool, outcome: str) -> None:
        self.count += 1
        self.made.append(producer_id, *((key, None if tombstones else b"%d" % self.count) for key in keys))
        if producer_id >= 0 and outcome != "open":
            self.made.end(producer_id, committed=outcome == "commit")

    @rule(producer_id=st.integers(0, 2), committed=st.booleans())
    def end(self, producer_id: int, committed: bool) -> None:
        self.made.end(producer_id, committed=committed)

    @rule(
        map_bytes=st.sampled_from([200, 600, 1 << 20, 1 << 20]),
        after_ms=st.sampled_from([0, 1, 100, RETENTION_MS // 2, RETENTION_MS]),
    )
    def compact(self, map_bytes: int, after_ms: int) -> None:
        self.made.compact(map_bytes, after_ms=after_ms)
        self.made.check()

    @rule()
    def forget(self) -> None:
        """Take over as another broker does: nothing is known."""
        self.made.log.state.transactions.forget()
        self.made.log.state.tail.clear()
        self.made.check()

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        for producer_id in range(3):
            self.made.end(producer_id, committed=False)
        self.made.append(-1, (b"newest", b"1"))
        # Tombstones must be removed before their markers are without records.
        for _ in range(4):
            self.made.compact(after_ms=2 * RETENTION_MS)
        self.made.check()
        records, markers = self.made.entries()
        newest = {pair[0]: offset for offset, pair in sorted(records.items())}
        survivors = {offset for offset in newest.values() if records[offset][1] is not None}
        # A batch with a survivor stays whole if its remaining runs would take more memory than the batch.
        superseded = records.keys() - survivors
        whole = [batch for batch in self.made.batches if not superseded.isdisjoint(batch)]
        assert all(not survivors.isdisjoint(batch) for batch in whole)
        assert not superseded or self.made.log.topic.storage_layout == "batch"
        wanted = [each for each in self.made.ended if any(one.offset in records for one in each.records)]
        assert markers == sorted(each.offset for each in wanted)
        assert aborted_in_redis(self.bench, self.made.log) == []
        self.bench.client.delete(*self.made.log.keys, self.made.log.state.aborted_key)
        self.bench.close()


def test_compacted_transactions_equal_the_model(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_SCANNED_AT_ONCE", 3)
    monkeypatch.setattr(trimming, "_REMOVED_AT_ONCE", 3)
    monkeypatch.setattr(compactor, "_ENTRIES_AT_ONCE", 4)
    TransactionMachine.server = server
    run_machine(TransactionMachine, examples=25, steps=25)
