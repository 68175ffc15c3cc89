"""Members and native workers of a share group on one stream, compared with a plain model of its records."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from korvet.offsets.packing import entry_id, pack
from korvet.redis_groups.share import (
    EXHAUSTED,
    MEMBER_PREFIX,
    REJECTED,
    RELEASED,
    Acknowledged,
    Limits,
    PastAcquired,
    PendingKind,
)
from tests.storage.conftest import Bench
from tests.storage.share_queue import ACCEPT, GROUP, LOCK_MS, Queue
from tests.support.machines import run_machine

if TYPE_CHECKING:
    from tests.support.redis_server import Server

pytestmark = pytest.mark.each_server

LOCKS = 6
# Entries of which korvet_share_acquire decides at once at first.
FIRST_READ = 32
MEMBERS, WORKERS = ("a", "b"), ("x", "y")
NOBODY = (None, RELEASED, REJECTED, EXHAUSTED)
members, workers = st.sampled_from(MEMBERS), st.sampled_from(WORKERS)
_serial = iter(range(1_000_000))


class Record:
    """What is known of one record."""

    def __init__(self) -> None:
        self.owner: str | None = None
        """The Redis consumer that has it; None before the first delivery, and when it is done."""
        self.deliveries = 0
        self.received = 0
        """How often it was delivered to anybody, for good or not."""
        self.claimed = 0
        """How often native workers claimed it."""
        self.is_expired = False
        self.is_done = False
        self.exists = True


class ShareMachine(RuleBasedStateMachine):
    """One rule for each thing that members and native workers do."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench(self.server, f"share{next(_serial)}")
        self.records: dict[int, Record] = {}
        self.delivered = 0
        """The offset up to which records were delivered."""

    @initialize(
        assignment=st.sampled_from(["clock", "dense"]),
        keeps_dead=st.booleans(),
        deliveries=st.integers(1, 7),
    )
    def make(self, assignment: str, keeps_dead: bool, deliveries: int) -> None:
        self.queue = Queue(self.bench, offset_assignment=assignment)
        self.queue.limits = Limits(LOCK_MS, deliveries, LOCKS, keeps_dead)
        self.queue.initialise()

    def teardown(self) -> None:
        """Accept all that is left: every record was delivered, unless it was deleted before."""
        self.queue.limits = msgspec.structs.replace(self.queue.limits, locks=10_000)
        self._expire(self._owned())
        self._expire_all()
        while offsets := self._acquire("last", 100):
            ranges = [(offset, offset, ACCEPT) for offset in offsets]
            assert self.queue.acknowledge("last", *ranges) == Acknowledged(len(offsets), 0, 0, 0, 0)
            for offset in offsets:
                self._finish(self.records[offset])
        self.write_dead_letters(len(self.records))
        assert self.queue.owners() == {}
        assert all(record.received or not record.exists for record in self.records.values())
        self.bench.close()

    # The model

    def _with(self, owner: str) -> list[int]:
        return [offset for offset, record in self.records.items() if record.owner == owner]

    def _finish(self, record: Record) -> None:
        assert not record.is_done
        record.owner, record.is_done, record.is_expired = None, True, False

    def _archive(self, record: Record, waits_as: str) -> None:
        """End all deliveries of a record: it becomes a dead letter if it exists and the group keeps these."""
        if self.queue.limits.keeps_dead and record.exists:
            record.owner, record.is_expired = waits_as, False
        else:
            self._finish(record)

    def _end_delivery(self, record: Record) -> None:
        if record.deliveries >= self.queue.limits.deliveries:
            self._archive(record, EXHAUSTED)
        elif not record.exists:
            self._finish(record)
        else:
            record.owner, record.is_expired = RELEASED, False

    def _expire(self, offsets: list[int]) -> None:
        self.queue.age(offsets)
        for offset in offsets:
            self.records[offset].is_expired = True

    def _owned(self) -> list[int]:
        return [offset for offset, record in self.records.items() if record.owner not in NOBODY]

    def _expire_all(self) -> None:
        for record in self.records.values():
            if record.is_expired:
                self._end_delivery(record)

    def _deliver(self, offset: int, owner: str, deliveries: int) -> None:
        record = self.records[offset]
        assert not record.is_done
        record.owner, record.deliveries, record.is_expired = owner, deliveries, False
        record.received += 1
        assert record.deliveries <= self.queue.limits.deliveries + record.claimed
        self.delivered = max(self.delivered, offset)

    def _new(self) -> list[int]:
        return [
            offset for offset, record in self.records.items() if offset > self.delivered and record.exists
        ]

    def _free(self) -> int:
        """How many locks members may still have."""
        locked = sum(len(self._with(MEMBER_PREFIX + name)) for name in (*MEMBERS, "last"))
        return self.queue.limits.locks - locked

    def _is_suspect(self, offset: int) -> bool:
        """Whether a record was delivered half as often as it may be."""
        deliveries = self.records[offset].deliveries
        return deliveries >= 2 and 2 * deliveries >= self.queue.limits.deliveries

    def _is_last(self, offset: int) -> bool:
        """Whether the next delivery of a record is its last one."""
        return self.records[offset].deliveries == self.queue.limits.deliveries - 1

    def _together(self, offsets: list[int]) -> list[int]:
        """The first of these released records that a member gets at once."""
        if not self._is_suspect(offsets[0]) or self._is_last(offsets[0]):
            return offsets[:1]
        suspects = list(itertools.takewhile(self._is_suspect, offsets))
        first = max(2, math.ceil(self.queue.limits.deliveries / 2))
        times = self.records[offsets[0]].deliveries - first + 1
        some = suspects[: max(1, len(suspects) >> times)]
        return list(itertools.takewhile(lambda offset: not self._is_last(offset), some))

    def _released(self, room: int) -> tuple[dict[int, int], bool]:
        """The deliveries of the released records that a member gets, and whether it gets new ones, too."""
        expected: dict[int, int] = {}
        left = self._with(RELEASED)
        while left and len(expected) < room:
            are_suspects = self._is_suspect(left[0])
            if expected and are_suspects:
                return expected, False
            together = self._together(left[: min(room, FIRST_READ)])
            for offset in together:
                record = self.records[offset]
                if record.exists:
                    expected[offset] = record.deliveries + 1
                else:
                    self._finish(record)
            if expected and are_suspects:
                return expected, False
            left = left[len(together) :]
        return expected, True

    def _acquire(self, member: str, most: int, *, only_new: bool = False) -> list[int]:
        """Acquire, compare with what the model says, and return the offsets."""
        is_idle = not self._with(RELEASED) and not any(record.is_expired for record in self.records.values())
        room = min(most, self._free())
        if is_idle and room > 0 and only_new:
            found = self.queue.acquire(member, room, only_new=True)
        else:
            found = self.queue.acquire(member, most)
        self._expire_all()
        room = min(most, self._free())
        expected, is_whole = self._released(room)
        if is_whole:
            expected.update(dict.fromkeys(self._new()[: max(0, room - len(expected))], 1))
        assert {
            offset: run.deliveries for run in found.runs for offset in range(run.first, run.last + 1)
        } == expected
        for offset, deliveries in expected.items():
            self._deliver(offset, MEMBER_PREFIX + member, deliveries)
        assert found.records == len(expected)
        return list(expected)

    # Members

    @rule(count=st.integers(1, 4), gap=st.integers(0, 2))
    def add(self, count: int, gap: int) -> None:
        first = max(self.records, default=0) + 1 + gap
        for offset in range(first, first + count):
            self.records[offset] = Record()
        self.queue.add(*range(first, first + count))

    @rule(member=members, most=st.integers(1, 5), only_new=st.booleans())
    def acquire(self, member: str, most: int, only_new: bool) -> None:
        self._acquire(member, most, only_new=only_new)

    @rule(member=members, data=st.data())
    def acknowledge(self, member: str, data: st.DataObject) -> None:
        """Acknowledge records of one's own, each with a type of its own."""
        own = [offset for offset in self._with(MEMBER_PREFIX + member) if not self.records[offset].is_expired]
        accepts_all = data.draw(st.booleans())
        chosen = [offset for offset in own if accepts_all or data.draw(st.booleans())]
        types = [ACCEPT[0] if accepts_all else data.draw(st.sampled_from(b"01234")) for _ in chosen]
        done = self.queue.acknowledge(
            member, *((offset, offset, bytes([kind])) for offset, kind in zip(chosen, types, strict=True))
        )
        assert done is not None
        assert sum(done) >= len(chosen) - sum(not self.records[offset].exists for offset in chosen)
        for offset, kind in zip(chosen, types, strict=True):
            record = self.records[offset]
            if kind in b"01":
                self._finish(record)
            elif kind == ord("3"):
                self._archive(record, REJECTED)
            elif kind == ord("2"):
                self._end_delivery(record)
            elif not record.exists:
                self._finish(record)

    @rule(member=members, first=st.integers(1, 30), size=st.integers(0, 3))
    def acknowledge_whatever(self, member: str, first: int, size: int) -> None:
        """Accept a range that may have records of others, or none."""
        pending = [offset for offset, record in self.records.items() if record.owner is not None]
        start = min(pending, default=self.delivered + 1)
        asked = [offset for offset in range(first, first + size + 1) if offset >= start]
        records = [self.records.get(offset) for offset in asked]
        is_own = all(
            record is not None and record.owner == MEMBER_PREFIX + member and not record.is_expired
            for record in records
        )
        if not is_own and pending and first + size > self.delivered and asked:
            # All before may be the member's own.
            with pytest.raises(PastAcquired):
                self.queue.acknowledge(member, (first, first + size, ACCEPT))
            return
        done = self.queue.acknowledge(member, (first, first + size, ACCEPT))
        assert done == (Acknowledged(len(asked), 0, 0, 0, 0) if is_own else None)
        for record in records if is_own else ():
            assert record is not None
            self._finish(record)

    @rule(member=members)
    def leave(self, member: str) -> None:
        self.queue.release(member)
        for offset in self._with(MEMBER_PREFIX + member):
            self._end_delivery(self.records[offset])

    @rule(most=st.integers(1, 3))
    def write_dead_letters(self, most: int) -> None:
        found = self.queue.bench.run(self.queue.queue.dead(most, copies=True))
        waiting = {owner: self._with(owner) for owner in (REJECTED, EXHAUSTED)}
        expected = [*waiting[REJECTED], *waiting[EXHAUSTED]][:most]
        assert [one.offset for one in found] == expected
        for one in found:
            record = self.records[one.offset]
            assert (one.deliveries, one.rejected) == (record.deliveries, record.owner == REJECTED)
            assert bool(one.fields) == record.exists
            self._finish(record)
        if found:
            self.queue.bench.run(self.queue.queue.forget_dead(found))

    # Time, and native workers

    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Let some locks expire, of members and of native workers."""
        owned = [offset for offset in self._owned() if self.records[offset].exists]
        self._expire([offset for offset in owned if data.draw(st.booleans())])

    @rule(worker=workers, count=st.integers(1, 4))
    def read(self, worker: str, count: int) -> None:
        expected = self._new()[:count]
        found = self.queue.read_natively(count, worker)
        assert found == [entry_id(offset, self.queue.bias).encode() for offset in expected]
        for offset in expected:
            self._deliver(offset, worker, 1)

    @rule(worker=workers, data=st.data())
    def accept_natively(self, worker: str, data: st.DataObject) -> None:
        for offset in self._with(worker):
            if data.draw(st.booleans()):
                self.queue.client.xack(self.queue.stream, GROUP, entry_id(offset, self.queue.bias))
                self._finish(self.records[offset])

    @rule(worker=workers, count=st.integers(1, 3))
    def claim(self, worker: str, count: int) -> None:
        """Take over what was released, or kept for too long."""
        stream = self.queue.stream
        reply: Any = self.queue.client.xautoclaim(stream, GROUP, worker, LOCK_MS, "0-0", count=count)
        for name, _ in reply[1]:
            offset = pack(*map(int, name.split(b"-"))) - self.queue.bias
            record = self.records[offset]
            assert record.owner == RELEASED or record.is_expired
            record.claimed += 1
            self._deliver(offset, worker, record.deliveries + 1)
        for name in reply[2] if len(reply) > 2 else ():
            record = self.records[pack(*map(int, name.split(b"-"))) - self.queue.bias]
            assert not record.exists
            self._finish(record)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        existing = [offset for offset, record in self.records.items() if record.exists]
        if existing:
            offset = data.draw(st.sampled_from(existing))
            self.records[offset].exists = False
            self.queue.client.xdel(self.queue.stream, entry_id(offset, self.queue.bias))

    @invariant()
    def owners_are_those_of_the_model(self) -> None:
        if hasattr(self, "queue"):
            assert self.queue.owners() == {
                offset: (record.owner, record.deliveries)
                for offset, record in self.records.items()
                if record.owner is not None
            }

    @invariant()
    def the_view_of_pending_entries_is_that_of_the_model(self) -> None:
        if not hasattr(self, "queue") or not self.delivered:
            return
        pending = {offset: record for offset, record in self.records.items() if record.owner is not None}
        view = self.queue.bench.run(self.queue.queue.pending())
        assert view is not None
        assert (view.start, view.end) == (min(pending, default=self.delivered + 1), self.delivered + 1)
        kinds = {RELEASED: PendingKind.RELEASED} | dict.fromkeys((REJECTED, EXHAUSTED), PendingKind.ARCHIVED)
        expected = {
            offset: (record.deliveries, kinds.get(record.owner or "", PendingKind.TAKEN))
            for offset, record in pending.items()
        }
        assert {
            offset: (run.deliveries, run.kind)
            for run in view.runs
            for offset in range(run.first, run.last + 1)
        } == expected
        live = [kind for _, kind in expected.values() if kind is not PendingKind.ARCHIVED]
        assert (view.live, view.has_more) == (len(live), False)


def test_records_equal_model(server: Server) -> None:
    ShareMachine.server = server
    run_machine(ShareMachine, examples=40, steps=30)
