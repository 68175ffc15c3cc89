"""Compaction against a model that examines all records again each time."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from korvet.log.compaction.outcomes import Outcomes
from korvet.log.compaction.survivors import KEY_COST_BYTES, Checkpoint, Survivors, is_dirty_enough

DELETE_RETENTION_MS = 1600
LATEST_BY_MS = DELETE_RETENTION_MS // 16
keys = st.sampled_from([b"", b"a", b"b", b"c", b"long" * 20, b"long" * 20 + b"er"])


class Record(NamedTuple):
    offset: int
    key: bytes | None
    tombstone: bool


class CompactedLog(RuleBasedStateMachine):
    """Records arrive, time passes, compactions of any range and map size run."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.appended: list[Record] = []
        self.checkpoint = Checkpoint()
        self.now_ms = 1_000_000
        # When a compaction has found each tombstone in the dirty section and kept it.
        self.cleaned_ms: dict[int, int] = {}
        # A tombstone whose time was over while it was the newest record. It may stay until the next
        # compaction.
        self.held_back = -1

    @rule(key=st.one_of(keys, st.none()), tombstone=st.booleans(), gap=st.integers(0, 3))
    def append(self, key: bytes | None, tombstone: bool, gap: int) -> None:
        last = self.appended[-1].offset if self.appended else -1
        record = Record(last + 1 + gap, key, tombstone and key is not None)
        self.records.append(record)
        self.appended.append(record)

    @rule(ms=st.integers(1, 2 * DELETE_RETENTION_MS))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(left_alone=st.integers(0, 4), most_keys=st.integers(1, 8))
    def compact(self, left_alone: int, most_keys: int) -> None:
        count = len(self.records) - left_alone
        end = self.records[count].offset if 0 <= count < len(self.records) else self._end()
        before = self.checkpoint
        end = max(end, before.dirty_from)
        sweeps_to = before.sweeps_to(self.now_ms, DELETE_RETENTION_MS)
        due = before.sweep_is_due(self.now_ms, DELETE_RETENTION_MS)
        newest = self.records[-1].offset if self.records else -1
        found = Survivors(sweeps_to, most_keys * KEY_COST_BYTES, Outcomes(), newest)
        for record in [one for one in self.records if before.dirty_from <= one.offset < end]:
            found.dirty(record.offset, record.key, tombstone=record.tombstone)
            if found.is_full:
                end = record.offset + 1
                break
        for record in [one for one in self.records if one.offset < before.dirty_from]:
            found.clean(record.offset, record.key, tombstone=record.tombstone)
        gone = found.gone_in_order()
        assert list(gone) == sorted(set(gone))
        assert set(gone) == self._gone(end, set(gone))
        assert newest not in gone
        if newest < sweeps_to:
            self.held_back = newest
        if due and before.dirty_from == end:
            old = [o for o, ms in self.cleaned_ms.items() if ms + DELETE_RETENTION_MS <= self.now_ms]
            # A record without a key stays while it is the newest one.
            keyless = {record.offset for record in self.records if record.key is None}
            assert set(old) >= set(gone) - keyless
        self.records = [record for record in self.records if record.offset not in set(gone)]
        clean = [record for record in self.records if record.offset < end]
        assert found.tombstones == sum(record.tombstone for record in clean)
        for record in clean:
            if record.tombstone:
                self.cleaned_ms.setdefault(record.offset, self.now_ms)
        self.checkpoint = before.after(end, found.tombstones, sweeps_to, self.now_ms, DELETE_RETENTION_MS)

    def _end(self) -> int:
        return self.appended[-1].offset + 1 if self.appended else 0

    def _gone(self, end: int, swept: set[int]) -> set[int]:
        """The records before `end` that must go; of expiring tombstones, those in `swept`."""
        newest = {record.key: record.offset for record in self.records if record.offset < end}
        gone = set()
        for record in self.records:
            if record.offset >= end:
                continue
            age_ms = self.now_ms - self.cleaned_ms.get(record.offset, self.now_ms)
            is_old = record.tombstone and age_ms >= DELETE_RETENTION_MS
            superseded = record.key is None or newest[record.key] != record.offset
            stays = record is self.records[-1]
            if not stays and (superseded or (is_old and record.offset in swept)):
                gone.add(record.offset)
        return gone

    @invariant()
    def every_key_reads_as_if_nothing_had_been_removed(self) -> None:
        before = {record.key: record.tombstone for record in self.appended if record.key is not None}
        after = {record.key: record.tombstone for record in self.records if record.key is not None}
        assert {key for key, tombstone in after.items() if not tombstone} == {
            key for key, tombstone in before.items() if not tombstone
        }

    @invariant()
    def the_checkpoint_is_small_and_survives_as_text(self) -> None:
        assert Checkpoint.decode(self.checkpoint.encode()) == self.checkpoint
        assert len(self.checkpoint.passes) <= 36

    @invariant()
    def tombstones_become_due(self) -> None:
        clean = [
            record.offset
            for record in self.records
            if record.tombstone and record.offset < self.checkpoint.dirty_from
        ]
        assert self.checkpoint.tombstones == len(clean)
        late_ms = self.now_ms + 2 * DELETE_RETENTION_MS
        if clean != [self.held_back]:
            assert self.checkpoint.sweep_is_due(late_ms, DELETE_RETENTION_MS) == bool(clean)


TestCompactedLog = CompactedLog.TestCase
TestCompactedLog.settings = settings(stateful_step_count=25)


def test_a_record_without_a_key_goes_once_it_is_not_the_newest() -> None:
    log = CompactedLog()
    log.append(b"a", tombstone=True, gap=0)
    log.append(None, tombstone=False, gap=0)
    log.compact(left_alone=0, most_keys=8)
    assert [record.offset for record in log.records] == [0, 1]
    log.append(b"b", tombstone=False, gap=0)
    log.wait(DELETE_RETENTION_MS)
    log.compact(left_alone=1, most_keys=8)
    assert [record.offset for record in log.records] == [2]


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=60))
def test_no_tombstone_goes_early_or_much_too_late(waits_ms: list[int]) -> None:
    """One tombstone is written and compacted at each step."""
    checkpoint = Checkpoint()
    now_ms, cleaned_ms = 0, []
    for offset, wait_ms in enumerate(waits_ms):
        now_ms += wait_ms
        swept_to = checkpoint.sweeps_to(now_ms, DELETE_RETENTION_MS)
        assert all(now_ms - ms >= DELETE_RETENTION_MS for ms in cleaned_ms[:swept_to])
        for known, ms in enumerate(cleaned_ms):
            next_ms = next((later for later in cleaned_ms[known + 1 :] if later > ms), ms)
            overdue_ms = DELETE_RETENTION_MS + LATEST_BY_MS + max(0, next_ms - ms)
            assert known < swept_to or now_ms - ms < overdue_ms
        checkpoint = checkpoint.after(offset + 1, 1, swept_to, now_ms, DELETE_RETENTION_MS)
        cleaned_ms.append(now_ms)


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1))
def test_the_dirty_ratio(dirty: int, clean: int, ratio: float) -> None:
    enough = is_dirty_enough(dirty, clean, ratio)
    assert enough == (dirty > 0 and dirty > ratio * (dirty + clean))
    assert is_dirty_enough(dirty, clean, 1.0) is False
    late = is_dirty_enough(dirty, clean, 1.0, oldest_dirty_ms=5, max_lag_ms=10, now_ms=16)
    assert late == (dirty > 0)
    assert not is_dirty_enough(dirty, clean, 1.0, oldest_dirty_ms=5, max_lag_ms=10, now_ms=15)
