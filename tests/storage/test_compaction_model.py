"""Compaction compared with a model, while Redis groups hold entries, and records are deleted and appended."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from korvet.log.compaction import compactor
from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.log.entries import batch_of
from korvet.offsets.packing import offset_of
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import StorageFault
from tests.api.batches import batch
from tests.storage.compacting import COMPACT, NOW_MS, contents
from tests.storage.conftest import Bench
from tests.storage.test_batch_layout import append as append_batch
from tests.support.logs import append_own
from tests.support.machines import run_machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.redis_server import Server

pytestmark = pytest.mark.each_server

RETENTION_MS = 1600
KEYS = [b"", b"a", b"b", b"long" * 20]
NATIVE: list[dict[Any, Any]] = [
    {"temperature": "21"},
    {"key": "a"},
    {"key": "b", "value": "native"},
    {"value": "x"},
]
_serial = itertools.count()

rows = st.lists(
    st.tuples(st.sampled_from([*KEYS, *KEYS, *KEYS, None]), st.sampled_from([b"v", b"v" * 60, None])),
    min_size=1,
    max_size=4,
)
# What happens during a compaction: before which function, and what.
interference = st.tuples(
    st.sampled_from(["begin", "copy", "pending", "tidy", "swap"]),
    st.sampled_from(["append", "native", "xdel", "delete", "deliver", "acknowledge"]),
    st.integers(0, 20),
)


class Disturbed(Compactor):
    """Something happens before the first call of one function."""

    def __init__(self, machine: CompactedLog, what: tuple[str, str, int] | None, map_bytes: int) -> None:
        super().__init__(machine.bench.store.commands, machine.log, Pace(1e12), map_bytes)
        self.machine = machine
        self.what = what

    async def _call(self, function: str, *args: bytes | str | int) -> Any:
        if self.what and function == f"korvet_shadow_{self.what[0]}":
            _, what, number = self.what
            self.what = None
            await self.machine.act(what, number)
        return await super()._call(function, *args)


class CompactedLog(RuleBasedStateMachine):
    """Knows all records that were ever appended, and which of them were deleted otherwise."""

    server: ClassVar[Server]

    @initialize(
        layout=st.sampled_from(["record", "batch", "batch"]), assignment=st.sampled_from(["clock", "dense"])
    )
    def begin(self, layout: str, assignment: str) -> None:
        self.bench = Bench(self.server, f"cmp{next(_serial)}")
        self.log = self.bench.log(configs=COMPACT, storage_layout=layout, offset_assignment=assignment)
        self.bench.client.xgroup_create(self.log.stream, "g", "0", mkstream=True)
        self.now_ms = NOW_MS
        self.known: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.deleted: set[int] = set()
        # Keys whose newest record was deleted by XDEL: an older one may be there or not.
        self.doubtful: set[bytes | None] = set()
        self.foreign: set[int] = set()
        # The offsets of entries that the group has not acknowledged.
        self.held: set[int] = set()
        self.number = 0

    def offsets(self, name: bytes, fields: Any) -> list[int]:
        pairs = [text for pair in fields.items() for text in pair]
        last = offset_of(name, self.log.bias)
        header = batch_of(pairs, last)
        return [last] if header is None else list(range(header.base_offset, last + 1))

    def entries(self) -> list[tuple[bytes, list[int]]]:
        found = self.bench.client.xrange(self.log.stream)
        return [(name, self.offsets(name, fields)) for name, fields in found]

    async def append_wait(self, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        pairs = [(key, value and value + b"%d" % (self.number + at)) for at, (key, value) in enumerate(pairs)]
        self.number += len(pairs)
        known = self.log.state.known
        seen_end = known.ends.log_end if known.loaded else 0
        if self.log.topic.storage_layout == "batch":
            base = (await append_batch(self.log, batch(pairs))).base_offset
        else:
            timed = [(key, value, 0) for key, value in pairs]
            base = (await append_own(self.log, encode_append_records(timed))).base_offset
        assert base >= seen_end
        self.note(base, pairs)

    def note(self, base: int, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        for offset, pair in enumerate(pairs, base):
            # Entries that were deleted before a broker saw them may leave their offsets to a batch.
            assert offset not in self.known or offset in self.deleted
            for gone in (self.deleted, self.foreign, self.held):
                gone.discard(offset)
            self.known[offset] = pair
            self.doubtful.discard(pair[0])

    @rule(pairs=rows)
    def append(self, pairs: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        self.bench.run(self.append_wait(pairs))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    def append_tombstones(self, keys: Sequence[bytes]) -> None:
        self.bench.run(self.append_wait([(key, None) for key in keys]))

    @rule(what=st.sampled_from(["native", "xdel", "delete", "acknowledge"]), number=st.integers(0, 20))
    def disturb(self, what: str, number: int) -> None:
        self.bench.run(self.act(what, number))

    def native(self, kind: int) -> None:
        fields = NATIVE[kind]
        name = self.bench.client.xadd(self.log.stream, fields)
        offset = offset_of(name, self.log.bias)
        key, value = fields.get("key"), fields.get("value")
        self.known[offset] = (key and key.encode(), value and value.encode())
        if kind == 0:
            self.foreign.add(offset)
        else:
            self.doubtful.discard(self.known[offset][0])

    def xdel(self, place: int) -> None:
        entries = self.entries()
        if entries:
            name, offsets = entries[place % len(entries)]
            self.bench.client.xdel(self.log.stream, name)
            self.deleted.update(offsets)
            self.doubtful.update(self.known[offset][0] for offset in offsets)

    async def delete_wait(self, place: int) -> None:
        there = sorted(self.known)
        if place < len(there):
            await self.log.trimming.delete_before(there[place])

    @rule(count=st.integers(1, 6))
    def deliver(self, count: int) -> None:
        for _, found in self.bench.client.xreadgroup("g", "c", {self.log.stream: ">"}, count=count):
            for name, fields in found:
                self.held.update(self.offsets(name, fields))

    def acknowledge(self, place: int) -> None:
        there = dict(self.entries())
        pending = self.bench.client.xpending_range(self.log.stream, "g", "-", "+", 100)
        if pending:
            name = pending[place % len(pending)]["message_id"]
            self.bench.client.xack(self.log.stream, "g", name)
            self.held.difference_update(there.get(name, ()))

    @rule(
        map_bytes=st.sampled_from([200, 600, 1 << 20, 1 << 20]),
        after_ms=st.sampled_from([0, 100, RETENTION_MS, RETENTION_MS, 2 * RETENTION_MS]),
        interfering=st.one_of(st.none(), st.none(), interference),
    )
    def compact(self, map_bytes: int, after_ms: int, interfering: tuple[str, str, int] | None) -> None:
        self.now_ms += after_ms
        newest = self.entries()[-1:]
        work = Disturbed(self, interfering, map_bytes)
        try:
            self.bench.run(work.compact(CompactionRules(RETENTION_MS, 0, None, 0.0), self.now_ms))
        except StorageFault:
            assert interfering
        if not interfering:
            assert [name for name, _ in self.entries()[-1:]] == [name for name, _ in newest]
        self.check()

    async def act(self, what: str, number: int) -> None:
        if what == "append":
            await self.append_wait(
                [(KEYS[number % 4], None if number % 3 else b"mid"), (KEYS[number % 3], b"mid")]
            )
        elif what == "native":
            self.native(number % 4)
        elif what == "deliver":
            self.deliver(1 + number % 6)
        elif what == "delete":
            await self.delete_wait(number)
        else:
            getattr(self, what)(number)

    def check(self) -> None:
        self.log.state.tail.clear()
        start = self.bench.run(self.log.bounds()).log_start
        # A fetch returns whole batches.
        found = {at: pair for at, pair in contents(self.bench, self.log).items() if at >= start}
        known = {at: pair for at, pair in self.known.items() if at >= start and at not in self.deleted}
        for offset, pair in found.items():
            if offset not in self.foreign:
                assert known[offset] == pair
        assert list(found) == sorted(found)
        assert {at for at in self.foreign if at in known} <= found.keys()
        keyed = {
            at: pair for at, pair in sorted(known.items()) if at not in self.foreign and pair[0] is not None
        }
        newest = {pair[0]: pair[1] for pair in keyed.values()}
        seen = {
            pair[0]: pair[1] for at, pair in found.items() if at not in self.foreign and pair[0] is not None
        }
        for key in {*newest, *seen} - self.doubtful:
            assert seen.get(key) == newest.get(key), key
        entries = self.entries()
        records = [at for _, offsets in entries for at in offsets]
        assert records == sorted(set(records))
        assert self.bench.run(self.log.queries.count(0, self.log.ends.log_end)) == len(records)
        pending = self.bench.client.xpending_range(self.log.stream, "g", "-", "+", 1000)
        names = {each["message_id"] for each in pending}
        for name, offsets in entries:
            if self.held.intersection(offsets):
                assert name in names

    def state_of(
        self, records: dict[int, tuple[bytes | None, bytes | None]]
    ) -> dict[bytes | None, bytes | None]:
        """The newest value of each key."""
        there = [pair for at, pair in sorted(records.items()) if at not in self.foreign]
        return {key: value for key, value in there if key is not None}

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.held.clear()
            for each in self.bench.client.xpending_range(self.log.stream, "g", "-", "+", 1000):
                self.bench.client.xack(self.log.stream, "g", each["message_id"])
            for _ in range(6):
                self.compact(1 << 20, 2 * RETENTION_MS, None)
            self.bench.close()


def test_compacted_logs_equal_the_model(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactor, "_ENTRIES_AT_ONCE", 4)
    CompactedLog.server = server
    run_machine(CompactedLog, examples=30, steps=30)
