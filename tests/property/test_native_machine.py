"""A Redis group and the Kafka group of the same name, moved from both sides in any order, with crashes
between.

The shard is the real one; Redis, the projection and the exporter's reads are a few lines each, by the rules
of docs/explain/commits.md. Projections happen some time after their commits; reads and exports are separate
steps. Whatever the interleaving: no commit undoes one that was not seen, nothing deleted returns by itself,
each movement is committed at most once, and once nothing happens any more both sides agree and nothing more
is written.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from korvet.groups.config import GroupConfig
from korvet.groups.messages import DeleteRequest, FetchTopic, OffsetDeleteRequest
from korvet.groups.native import QUIET_MS, NativeGroup, Projected
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from tests.unit.groups.driver import NONE, Driver, protocols

RETENTION_MS = 3_600_000
CONFIG = GroupConfig(
    offsets_retention_ms=RETENTION_MS,
    offsets_retention_check_interval_ms=60_000,
    initial_rebalance_delay_ms=0,
)
PLACE = ("g", "orders", 0)
KEY = OffsetCommitKey(*PLACE)
COUNT = st.integers(1, 4)
INDEX = st.integers(0, 40)
# Repeated, so that most runs reach an interesting state.
ACTS = (
    *("create", "create", "read", "read", "read", "ack", "ack", "ack_all", "set_id"),
    *("delete_consumer", "destroy", "trim", "delete"),
)
# Events while the exporter is at work.
MEANWHILE = st.lists(
    st.sampled_from(("commit", "commit", "project", "read", "ack_all", "set_id", "delete_offset", "crash")),
    max_size=3,
)


class Note(NamedTuple):
    """The last synchronisation of the Redis group, its position then, and whether the commit was read
    from it.
    """

    position: int
    offset: int | None
    stood: int
    is_read_off: bool


class Change(NamedTuple):
    """A record that is to project."""

    position: int
    offset: int | None
    force: bool
    native: int | None


class Stream:
    """A stream with one Redis group, and the synchronisation records; offsets are Kafka's."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.end = 0
        self.is_whole = True
        self.delivered: int | None = None  # offset of the last delivered entry; None: no group exists
        self.pending: set[int] = set()
        self.is_used = False  # has a consumer
        self.note: Note | None = None

    def log_start(self) -> int:
        if self.is_whole:
            return 0
        return self.entries[0] if self.entries else self.end

    def stands(self) -> int | None:
        if self.delivered is None:
            return None
        return min(self.pending & set(self.entries), default=self.delivered + 1)

    # Actions of Redis applications

    def create(self, index: int) -> None:
        if self.delivered is None:
            self.delivered, self.pending, self.is_used = min(index, self.end) - 1, set(), False

    def read(self, index: int) -> None:
        if self.delivered is not None:
            behind = self.delivered
            taken = [entry for entry in self.entries if entry > behind][: index % 4 + 1]
            self.is_used = True
            self.pending |= set(taken)
            self.delivered = max(behind, *taken) if taken else behind

    def ack(self, index: int) -> None:
        if self.pending:
            self.pending.remove(sorted(self.pending)[index % len(self.pending)])

    def ack_all(self, _: int) -> None:
        self.pending.clear()

    def set_id(self, index: int) -> None:
        if self.delivered is not None:
            self.delivered = min(index, self.end) - 1

    def delete_consumer(self, _: int) -> None:
        self.pending.clear()
        self.is_used = False

    def destroy(self, _: int) -> None:
        self.delivered, self.pending = None, set()

    def trim(self, index: int) -> None:
        self._keep([entry for entry in self.entries if entry >= index])

    def delete(self, index: int) -> None:
        if self.entries:
            gone = self.entries[index % len(self.entries)]
            self._keep([entry for entry in self.entries if entry != gone])

    def _keep(self, entries: list[int]) -> None:
        self.is_whole = self.is_whole and entries == self.entries
        self.entries = entries

    # korvet's functions

    def project(self, change: Change) -> None:
        if self.note is not None and self.note.position >= change.position:
            return
        assert change.offset is not None
        if change.native is not None:
            self.note = Note(change.position, change.offset, change.native, True)
            return
        known = self.note.offset if self.note is not None else None
        if self.delivered is None:
            self.create(0)
            self.delivered = change.offset - 1
        elif known is not None and change.offset < known:
            self.delivered, self.pending = change.offset - 1, set()
        else:
            self.delivered = max(self.delivered, change.offset - 1)
            self.pending = {entry for entry in self.pending if entry >= change.offset}
        stands = self.stands()
        assert stands is not None
        self.note = Note(change.position, change.offset, stands, False)

    def drop(self, change: Change) -> None:
        if self.note is not None and self.note.position > change.position:
            return
        keep = self.is_used or self.pending or (self.note is not None and self.note.is_read_off)
        stands = self.stands()
        if stands is not None and keep and not change.force:
            self.note = Note(change.position, None, stands, False)
        else:
            self.destroy(0)
            self.note = None

    def moved(self) -> NativeGroup | None:
        stands = self.stands()
        if stands is None or (self.note is not None and self.note.stood == stands):
            return None
        note = self.note
        projected = note and Projected(note.position, note.offset, note.is_read_off)
        return NativeGroup(*PLACE, stands, self.log_start(), projected, b"")


class NativeMachine(RuleBasedStateMachine):
    """One group on one partition."""

    @initialize()
    def start(self) -> None:
        self.stream = Stream()
        self.driver = Driver(CONFIG)
        self.member: tuple[str, int] | None = None
        self.told = 0  # records of the log that are queued for projection
        self.queue: list[Change] = []
        self.touched: bool | None = None  # None: the exporter is not at work
        self.movements = self.exports = self.movements_before_drop = 0

    # Redis applications

    @rule(count=COUNT, gap=st.sampled_from((0, 0, 5)))
    def write(self, count: int, gap: int) -> None:
        first = self.stream.end + gap
        self.stream.entries += range(first, first + count)
        self.stream.end = first + count

    @rule(act=st.sampled_from(ACTS), index=INDEX)
    def use(self, act: str, index: int) -> None:
        before = self.stream.stands()
        getattr(self.stream, act)(index)
        after = self.stream.stands()
        self.movements += after not in (None, before)

    # Kafka clients

    @rule(offset=INDEX)
    def commit(self, offset: int) -> None:
        if self.driver.commit(offset, *self.member or ()) is not NONE:
            self.member = None  # its session is over
        self.take()

    @rule()
    def come(self) -> None:
        if self.member is None and self.driver.state() in {"Empty", "Dead"}:
            token = self.driver.join(protocols=protocols("range", topics=("orders",)))
            self.driver.advance(0)
            joined = self.driver.replies[token]
            self.driver.sync(joined.member_id, joined.generation_id, {joined.member_id: b"all"})
            self.member = joined.member_id, joined.generation_id
            self.take()

    @rule()
    def leave(self) -> None:
        if self.member is not None:
            self.driver.leave(self.member[0])
            self.member = None
            self.take()

    @rule()
    def delete_group(self) -> None:
        self.driver.answer("delete_groups", DeleteRequest(("g",)))
        self.take()

    @rule()
    def delete_offset(self) -> None:
        self.driver.answer("delete_offsets", OffsetDeleteRequest("g", (FetchTopic("orders", (0,)),)))
        self.take()

    @rule(by_ms=st.sampled_from((1_000, QUIET_MS, 2 * RETENTION_MS)))
    def advance(self, by_ms: int) -> None:
        self.driver.advance(by_ms)
        self.take(force=False)

    # The broker

    @rule()
    def project(self) -> None:
        if self.queue:
            change = self.queue.pop(0)
            if change.offset is not None:
                self.stream.project(change)
            else:
                self.stream.drop(change)
                self.movements_before_drop = self.movements

    @rule(before=MEANWHILE, after=MEANWHILE, offset=INDEX)
    def export(self, before: list[str], after: list[str], offset: int) -> None:
        """The exporter at work, and events before and after it reads the group."""
        self.touched = bool(self.queue)
        self.meanwhile(before, offset)
        native = self.stream.moved()
        self.meanwhile(after, offset)
        if native is not None and self.touched is False:
            self.decide(native)
        self.touched = None

    def meanwhile(self, steps: list[str], offset: int) -> None:
        for step in steps:
            if step in ACTS:
                self.use(step, offset)
            elif step == "commit":
                self.commit(offset)
            else:
                getattr(self, step)()

    def decide(self, native: NativeGroup) -> None:
        newest = self.newest()
        outcome, behind = self.driver.shard.export([native], self.driver.now_ms)
        assert not behind, "nothing was lost"
        if not self.driver.take(outcome):
            return
        self.exports += 1
        assert self.committed() == max(native.at, native.log_start)
        # The group follows its last synchronisation, even if offsets look alike.
        if newest is not None and newest[1] is not None:
            assert native.projected is not None
            assert (native.projected.position, native.projected.offset) == newest
        else:
            assert native.projected is None or native.projected.offset is None
            assert self.movements > self.movements_before_drop, "what was deleted came back by itself"
        self.take(native=native.at)

    @rule()
    def crash(self) -> None:
        """The next broker finds what was not projected, and what was deleted. The exporter's work is lost."""
        driver = Driver(CONFIG, log=self.driver.log, suffix=self.driver.suffix)
        driver.now_ms = self.driver.now_ms
        driver.take(driver.shard.loaded(driver.now_ms))
        driver.log, driver.replies, driver.asked = self.driver.log, self.driver.replies, self.driver.asked
        self.driver = driver
        self.queue.clear()
        self.touched = None
        newest, note = self.newest(), self.stream.note
        if newest is not None and newest[1] is not None:
            if note is None or note.position < newest[0]:
                self.queue.append(Change(*newest, True, None))
        elif note is not None and note.offset is not None:
            self.queue.append(Change(note.position, None, False, None))

    @rule()
    def rest(self) -> None:
        """Nothing happens any more: both sides agree in the end, and stay so."""
        self.touched = None
        self.driver.advance(QUIET_MS)
        self.take(force=False)
        self.round()
        before = len(self.driver.log)
        self.round()
        assert len(self.driver.log) == before
        committed, stands, note = self.committed(), self.stream.stands(), self.stream.note
        assert (note.offset if note is not None else None) == committed
        if stands is not None:
            assert note is not None
            assert note.stood == stands or committed == max(stands, self.stream.log_start())

    @rule()
    def go_on_natively(self) -> None:
        """An undisturbed movement of a native consumer becomes the commit."""
        self.rest()
        self.write(3, 0)
        before = self.movements
        self.use("create", 0)
        self.use("read", 3)
        self.use("ack_all", 0)
        has_moved = self.movements > before
        self.rest()
        if has_moved:
            assert self.committed() == self.stream.stands()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.rest()
            assert self.exports <= self.movements

    # Helpers

    def take(self, *, force: bool = True, native: int | None = None) -> None:
        """Queue what was recorded since."""
        for position, (key, value) in enumerate(self.driver.log[self.told :], self.told):
            if key == KEY:
                offset = value.offset if isinstance(value, OffsetCommitValue) else None
                self.queue.append(Change(position, offset, force, native))
                self.touched = None if self.touched is None else True
        self.told = len(self.driver.log)

    def newest(self) -> tuple[int, int | None] | None:
        """The newest record of the group's partition: its position, and the offset that it commits."""
        for position in reversed(range(len(self.driver.log))):
            key, value = self.driver.log[position]
            if key == KEY:
                return position, value.offset if isinstance(value, OffsetCommitValue) else None
        return None

    def committed(self) -> int | None:
        return self.driver.fetched().get(PLACE[1:])

    def round(self) -> None:
        """All projections, and a whole round of the exporter."""
        while self.queue:
            self.project()
        self.export([], [], 0)
        while self.queue:
            self.project()


NativeMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
TestNativeMachine = NativeMachine.TestCase
