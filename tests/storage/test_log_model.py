"""Appends, native commands and queries interleaved on one stream, compared with a list of its entries."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from korvet.log import index, queries
from korvet.log.compaction import compactor
from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.log.entries import entry_timestamp
from korvet.observe.counting import Counting
from korvet.observe.ordinals import Ends, Known, LogOrdinals
from korvet.observe.positions import Progress, WatchedLog
from korvet.offsets.entry_fields import Record, read_entry
from korvet.offsets.packing import MAX_SEQUENCE, pack
from korvet.records.kernel import encode_append_records
from korvet.redis import library
from korvet.spark.records.columns import CREATE_TIME
from korvet.spark.source.address import Address
from korvet.spark.source.connection import connected
from korvet.spark.source.extents import extents
from korvet.spark.source.ordinals import first_records, ordinals
from korvet.spark.source.topics import TopicInfo
from tests.storage.batches import decode, produce, read_everything
from tests.storage.conftest import Bench
from tests.storage.proxy import until
from tests.support.logs import append_own
from tests.support.machines import run_machine

if TYPE_CHECKING:
    from korvet.log.values import Appended
    from tests.support.redis_server import Server

pytestmark = pytest.mark.each_server

# Small limits, so that a short run exceeds all of them.
_LUA_LIMITS = {
    "SPAN_RECORDS = 256": "SPAN_RECORDS = 5",
    "PAGE = 64": "PAGE = 3",
    "FOLD_INLINE = 256": "FOLD_INLINE = 10",
    "PRUNED_POINTS = 1000": "PRUNED_POINTS = 3",
    "TRIMMED_SPANS = 16": "TRIMMED_SPANS = 3",
    "COPIED_BYTES = 1048576": "COPIED_BYTES = 100",
    "CLAIMED = 1000": "CLAIMED = 2",
}
_serial = itertools.count()

timestamps = st.one_of(
    st.integers(0, 50),
    st.integers(-1, 2000),
    st.sampled_from([2**52, -(2**52), 2**63 - 1, 2**63 - 2, 2**62 + 1]),
)


def is_near(time_ms: int | None, timestamp_ms: int) -> bool:
    """Whether a time that a script has read is a record's. Doubles are exact up to 2^53."""
    return time_ms is not None and abs(time_ms - timestamp_ms) <= (2048 if abs(timestamp_ms) > 2**52 else 0)


records = st.lists(
    st.tuples(
        st.none() | st.sampled_from([b"", b"a", b"b"]) | st.binary(max_size=3),
        st.none() | st.binary(max_size=40),
        timestamps,
    ),
    min_size=1,
    max_size=14,
)


# Places of entries. The number of entries depends on time, too, and must not decide what is drawn.
places = st.integers(0, 1000)

Batch: TypeAlias = "list[tuple[bytes | None, bytes | None, int]]"


class Seen(NamedTuple):
    """One record of the model."""

    id: tuple[int, int]
    offset: int
    timestamp: int
    key: bytes | None
    keyed: bool
    """Whether the record has the fields of a producer's record."""

    @property
    def addressable(self) -> bool:
        return self.id[1] <= MAX_SEQUENCE


class Entry:
    """One entry of the model."""

    def __init__(self, entry_id: bytes, fields: list[bytes], bias: int) -> None:
        ms, _, sequence = entry_id.partition(b"-")
        self.id = (int(ms), int(sequence))
        self.text = entry_id
        self.addressable = self.id[1] <= MAX_SEQUENCE
        self.size = sum(map(len, fields))
        last = pack(self.id[0], min(self.id[1], MAX_SEQUENCE)) - bias
        kind = read_entry(fields, self.id[0])
        key, keyed = (kind.key, self.addressable) if isinstance(kind, Record) else (None, False)
        self.records = [Seen(self.id, last, entry_timestamp(entry_id, fields), key, keyed)]
        if fields[0] == b"batch":
            self.records = [
                Seen(divmod(each.offset + bias, 1024), each.offset, each.timestamp_ms, each.key, True)
                for each in decode(fields[1])
            ]
            assert self.records[-1].offset == last


class LogMachine(RuleBasedStateMachine):
    """After every rule the invariants ask all queries."""

    server: Server

    @initialize(dense=st.booleans(), batched=st.booleans())
    def begin(self, dense: bool, batched: bool) -> None:
        self.bench = Bench(self.server, f"model{next(_serial)}")
        self.topic = TopicInfo("t", 1, dense, CREATE_TIME, False, None, has_batches=batched)
        self.client = self.bench.client
        self.batched = batched
        self.log = self.bench.log(
            "t",
            offset_assignment="dense" if dense else "clock",
            storage_layout="batch" if batched else "record",
        )
        self.keys = self.bench.store.commands.keyspace.partition_keys("t", 0)
        self.bias = self.log.bias
        self.entries: list[Entry] = []
        self.records: list[Seen] = []
        self.end = 0
        self.lost = False
        self.newest_deleted_ms = -1
        """The largest timestamp that native clients deleted: the index may still have it for a span."""
        self.emptied = False
        """Whether XDEL has left no entry: the log start is the log end that brokers knew at most."""
        self.clean_to = 0
        self.appended = 0
        """Records ever appended."""
        self.counted: set[tuple[int, int]] = set()
        """The entries among them that may still be there."""
        self.edition = -1
        self.known: dict[int, int] = {}
        """Ordinals of the previous look, by offset."""
        self.watched = WatchedLog(LogOrdinals(self.bench.store.commands, self.log.topic, 0))
        self.counting = Counting()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.client.delete(*self.keys)
            self.bench.close()

    def refresh(self) -> None:
        """Read the contents of the stream with XRANGE."""
        raw = self.client.execute_command("XRANGE", self.log.stream, "-", "+", **{"NEVER_DECODE": True})
        self.entries = [Entry(entry_id, fields_of(fields), self.bias) for entry_id, fields in raw]
        self.records = [record for entry in self.entries for record in entry.records]
        self.appended += sum(len(entry.records) for entry in self.entries if entry.id not in self.counted)
        self.counted = {entry.id for entry in self.entries}

    @precondition(lambda self: not self.batched)
    @rule(batch=records)
    def append(self, batch: Batch) -> None:
        appended = self.bench.run(append_own(self.log, encode_append_records(batch)))
        assert appended.base_offset >= self.end
        assert appended.previous_end >= self.end
        self.refresh()
        self.check_last(batch, appended)

    def check_last(self, batch: Batch, appended: Appended) -> None:
        ours = self.records[-len(batch) :]
        assert [entry.offset for entry in ours] == [appended.base_offset + i for i in range(len(batch))]
        assert [entry.timestamp for entry in ours] == [timestamp for _, _, timestamp in batch]

    @rule(batches=st.lists(records, min_size=1, max_size=4), native=st.booleans())
    def produce(self, batches: list[Batch], native: bool) -> None:
        """Produce several batches at once, with a native entry before, between or after them."""
        done: list[Appended] = []

        async def run() -> None:
            for number, batch in enumerate(batches):
                produce(self.log, batch, done.append)  # type: ignore[arg-type]
                if native and number == 1:
                    self.client.execute_command("XADD", self.log.stream, "*", "f", "between")
            await until(lambda: len(done) == len(batches))

        self.bench.run(run())
        assert all(appended.base_offset >= self.end for appended in done)
        assert [one.base_offset for one in done] == sorted(one.base_offset for one in done)
        self.refresh()
        by_offset = {record.offset: record for record in self.records if record.addressable}
        for batch, appended in zip(batches, done, strict=True):
            ours = [by_offset[appended.base_offset + i] for i in range(len(batch))]
            assert [record.timestamp for record in ours] == [timestamp for _, _, timestamp in batch]
            between = [entry for entry in self.entries if ours[0].id <= entry.id <= ours[-1].id]
            assert len(between) == (1 if self.batched else len(batch))
            assert [record for entry in between for record in entry.records] == ours

    @rule(count=st.integers(1, 30))
    def native_add(self, count: int) -> None:
        pipeline = self.client.pipeline(transaction=False)
        for number in range(count):
            pipeline.execute_command("XADD", self.log.stream, "*", "f", number)
        pipeline.execute()
        self.refresh()

    @rule(count=st.integers(1, 4), sequence=st.sampled_from([1022, 1023, 1024, 5000]))
    def native_add_unaddressable(self, count: int, sequence: int) -> None:
        ms = max(self.end >> 10, self.entries[-1].id[0] if self.entries else 0) + 2
        for number in range(count):
            self.client.execute_command("XADD", self.log.stream, f"{ms}-{sequence + number}", "f", number)
        self.refresh()

    @rule()
    def native_function(self) -> None:
        added = self.client.fcall("korvet_xadd", 3, *self.keys[:3], "value", "x", "ts", "7")
        self.refresh()
        assert self.entries[-1].text == added
        assert self.records[-1].offset >= self.end

    @precondition(lambda self: self.entries)
    @rule(places=st.lists(places, min_size=1, max_size=8))
    def native_delete(self, places: list[int]) -> None:
        chosen = {self.entries[place % len(self.entries)].text for place in places}
        self.client.xdel(self.log.stream, *chosen)
        self.refresh_deleted()
        self.emptied = self.emptied or not self.entries

    @precondition(lambda self: self.entries)
    @rule(place=places)
    def native_trim(self, place: int) -> None:
        self.client.xtrim(self.log.stream, maxlen=place % len(self.entries), approximate=False)
        self.refresh_deleted()

    def refresh_deleted(self) -> None:
        """Take over that a native client deleted entries."""
        before = self.records
        self.lost = True
        self.refresh()
        left = {record.offset for record in self.records}
        deleted = [record.timestamp for record in before if record.offset not in left]
        self.newest_deleted_ms = max([self.newest_deleted_ms, *deleted])

    @precondition(lambda self: self.entries)
    @rule()
    def native_drop(self) -> None:
        self.client.delete(self.log.stream)
        self.lost = True
        self.refresh()

    @rule(places=st.lists(places, min_size=1, max_size=8), beyond=st.sampled_from([0, 0, 0, 1, 5000]))
    def commit(self, places: list[int], beyond: int) -> None:
        """Groups commit any offsets, before or after their last ones."""
        offsets = [0, *(record.offset for record in self.records), self.end]
        for number, place in enumerate(places):
            progress = self.watched.commits.setdefault(f"g{number}", Progress(0))
            progress.offset = offsets[place % len(offsets)] + beyond

    @rule(cutoff_ms=st.integers(-1, 2100))
    def trim_by_time(self, cutoff_ms: int) -> None:
        before = self.entries
        dropped = self.bench.run(self.log.trimming.trim(0, None, cutoff_ms))
        self.refresh()
        assert [entry.id for entry in before[dropped:]] == [entry.id for entry in self.entries]
        assert all(record.timestamp < cutoff_ms for entry in before[:dropped] for record in entry.records)
        remaining_ms = [record.timestamp for entry in before for record in entry.records]
        # On a dense topic, times up to that of the last entry ID may be those of entry IDs, and so no times.
        least_ms = before[-1].id[0] + 1 if before and self.log.bias else 0
        if (
            before
            and self.newest_deleted_ms < cutoff_ms
            and all(least_ms <= ms < cutoff_ms for ms in remaining_ms)
        ):
            assert not self.entries
        self.lost = self.lost or dropped > 0

    @rule(keep=st.integers(0, 600))
    def trim_by_bytes(self, keep: int) -> None:
        before = self.entries
        dropped = self.bench.run(self.log.trimming.trim(None, keep, 0))
        self.refresh()
        assert [entry.id for entry in before[dropped:]] == [entry.id for entry in self.entries]
        left = sum(entry.size for entry in self.entries)
        if dropped:
            assert left >= keep
        # Only whole spans are deleted: what stays too long is less than one span and one batch of the largest
        # records.
        largest = max((entry.size for entry in before), default=0)
        unaddressable = sum(entry.size for entry in before if not entry.addressable)
        assert left < keep + (5 + 14) * largest + unaddressable or not self.entries
        self.lost = self.lost or dropped > 0

    @precondition(lambda self: self.entries)
    @rule(place=places)
    def compact(self, place: int) -> None:
        """Records without a key or with a newer record are removed, except the newest one; a group's pending
        entries stay.
        """
        self.client.xgroup_create(self.log.stream, "g", "0")
        count = 1 + place % (1 + len(self.entries))
        self.client.xreadgroup("g", "c", {self.log.stream: ">"}, count=count, noack=self.batched)
        pending = self.client.xpending_range(self.log.stream, "g", "-", "+", 1000)
        before, dirty = self.records, self.bench.run(self.log.queries.count(self.clean_to, self.end))
        working = Compactor(self.bench.store.commands, self.log, Pace(1e12), 1 << 20)
        self.bench.run(working.compact(CompactionRules(1 << 50, 0, None, 0.0), 0))
        appended = self.appended
        self.refresh()
        # Parts of batches are no new records.
        self.appended = appended
        newest = {record.key: record for record in before if record.keyed and record.key is not None}
        last = before[-1]
        kept = [one for one in before if not one.keyed or newest.get(one.key) == one or one == last]
        if not dirty:
            assert self.records == before
        elif self.batched:
            assert set(kept) <= set(self.records) <= set(before)
        else:
            assert self.records == kept
        after = self.client.xpending_range(self.log.stream, "g", "-", "+", 1000)
        assert [one["message_id"] for one in after] == [one["message_id"] for one in pending]
        self.client.xgroup_destroy(self.log.stream, "g")
        self.clean_to = max(self.clean_to, self.end)

    @invariant()
    def ends(self) -> None:
        if not hasattr(self, "log"):
            return
        bounds = self.bench.run(self.log.bounds())
        assert bounds.log_end >= self.end
        assert bounds.entries == len(self.entries)
        if self.entries:
            assert bounds.log_end >= self.records[-1].offset + 1
            assert bounds.log_start <= self.records[0].offset + (not self.records[0].addressable)
        elif not self.emptied:
            assert bounds.log_start == bounds.log_end
        if not self.lost:
            assert bounds.log_start == 0
        self.end = bounds.log_end

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "log"):
            return
        some = self.records[:: max(1, len(self.records) // 4)]
        for low, high in itertools.combinations(sorted([0, self.end, *(each.offset for each in some)]), 2):
            expected = sum(self.at(low) <= record.id < self.at(high) for record in self.records)
            assert self.bench.run(self.log.queries.count(low, high)) == expected, (low, high)
        bounds = self.bench.run(self.log.bounds())
        assert bounds.payload_bytes == sum(entry.size for entry in self.entries)

    @invariant()
    def ordinals(self) -> None:
        """Ordinals equal plain counting, whether they are counted from a known one or from the index; they
        never decrease, and within an edition only those before the log start change.
        """
        if not hasattr(self, "log"):
            return
        some = self.records[:: max(1, len(self.records) // 4)]
        offsets = sorted({0, self.end, *(each.offset for each in some), *list(self.known)[-4:]})
        near = [max((one for one in self.known if one <= offset), default=None) for offset in offsets]
        known = [None if one is None else Known(one, self.known[one]) for one in near]
        asked = list(zip(offsets, known, strict=True))
        ordinals = LogOrdinals(self.bench.store.commands, self.log.topic, 0)
        ends, positions = self.bench.run(ordinals.positions(asked, self.edition))
        assert self.bench.run(self.ends_alone(ordinals)) == ends
        assert (ends.end_ordinal, ends.start_ordinal) == (self.appended, self.appended - len(self.records))
        assert (ends.log_start, ends.log_end) == (self.log.ends.log_start, self.log.ends.log_end)
        for offset, ordinal, next_ms in positions:
            unread = [record for record in self.records if record.id >= self.at(offset)]
            assert ends.end_ordinal - ordinal == len(unread), offset
            assert ordinal >= self.known.get(offset, 0)
            if not unread:
                assert next_ms is None
            elif not self.batched:
                assert is_near(next_ms, unread[0].timestamp)
            if offset in self.known and self.edition == ends.edition:
                assert ordinal == max(self.known[offset], ends.start_ordinal)
                # The log start stays before entries that were deleted before a broker saw them.
                assert offset <= ends.log_start or ordinal == self.known[offset]
        self.edition = ends.edition
        self.known = {one.offset: one.ordinal for one in positions}

    @invariant()
    def a_reader_counts(self) -> None:
        """A reader of Redis, which does not correct the index first, counts right or not at all."""
        if not hasattr(self, "log"):
            return
        address = Address(self.server.url, self.bench.prefix)
        with connected(address) as connection:
            (extent,) = extents(connection, address, [self.topic])
            some = {record.offset for record in self.records[:: max(1, len(self.records) // 4)]}
            offsets = sorted({extent.log_start, *(one for one in some if one > extent.log_start), self.end})
            found = ordinals(connection, extent, offsets)
            if found is None:
                is_plain = all(record.addressable for record in self.records)
                assert self.lost or not is_plain or not self.client.hexists(self.keys[2], "log")
                return
            known = [offset for offset in offsets if offset <= found.end]
            for low, high in itertools.combinations(known, 2):
                expected = sum(low <= record.offset < high for record in self.records)
                assert found.before[high] - found.before[low] == expected, (low, high)
            firsts = first_records(connection, extent, known, found.end)
        if firsts is not None:
            for offset in known:
                later = [(one.offset, one.timestamp) for one in self.records if one.offset >= offset]
                assert firsts[offset] == (later[0] if later and later[0][0] < found.end else None)

    @invariant()
    def lags(self) -> None:
        """What is kept of committed offsets, and read again only after changes, equals plain counting."""
        if not hasattr(self, "log"):
            return
        self.bench.run(self.counting.read([self.watched], 1))
        assert self.counting.failures == 0
        ends = self.watched.ends
        assert ends is not None
        for progress in self.watched.commits.values():
            unread = [record for record in self.records if record.id >= self.at(progress.offset)]
            position = progress.position
            assert position is not None
            assert ends.end_ordinal - progress.ordinal(position, ends) == len(unread)
            if unread and not self.batched:
                assert is_near(position.next_ms, unread[0].timestamp)

    @staticmethod
    async def ends_alone(ordinals: LogOrdinals) -> Ends:
        return await ordinals.ends_of(await ordinals.ask())

    @invariant()
    def times(self) -> None:
        if not hasattr(self, "log"):
            return
        seen = [record for record in self.records if record.addressable]
        stamps = [entry.timestamp for entry in seen]
        for wanted in {-1, 0, 25, 1000, *stamps[::5], *(stamp + 1 for stamp in stamps[-2:])}:
            expected = next(((e.offset, e.timestamp) for e in seen if e.timestamp >= wanted), None)
            assert self.bench.run(self.log.queries.offset_for_timestamp(wanted)) == expected, wanted
        newest = max(stamps, default=None)
        expected = next(((e.offset, e.timestamp) for e in seen if e.timestamp == newest), None)
        assert self.bench.run(self.log.queries.offset_of_max_timestamp()) == expected

    @invariant()
    def reads(self) -> None:
        if not hasattr(self, "log"):
            return
        found = self.bench.run(read_everything(self.log, max_bytes=300))
        assert found == [record.offset for record in self.records if record.addressable]

    def at(self, offset: int) -> tuple[int, int]:
        return ((offset + self.bias) >> 10, (offset + self.bias) & MAX_SEQUENCE)


def fields_of(fields: Any) -> list[bytes]:
    """The fields of an entry: redis-py returns a flat list, a list of pairs or a dictionary, depending on its
    version and options."""
    if isinstance(fields, dict):
        return [part for pair in fields.items() for part in pair]
    return list(fields)


def test_log_equals_model(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    source = library.library_source()
    for limit, small in _LUA_LIMITS.items():
        assert limit in source
        source = source.replace(limit, small)
    monkeypatch.setattr(library, "library_source", lambda: source)
    monkeypatch.setattr(index, "_COUNTED_AT_ONCE", 7)
    monkeypatch.setattr(queries, "_POINTS_AT_ONCE", 2)
    monkeypatch.setattr(queries, "_SCANNED_AT_ONCE", 3)
    monkeypatch.setattr(compactor, "_ENTRIES_AT_ONCE", 4)
    LogMachine.server = server
    run_machine(LogMachine, examples=25, steps=20)
