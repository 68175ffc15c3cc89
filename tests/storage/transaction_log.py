"""A log with transactions for tests, which knows what a compaction must leave of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from korvet.log.committed import Committed, read_committed
from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.log.values import ProducerSequence
from korvet.records.control import ControlMarker
from korvet.records.kernel import parse_batch
from tests.storage.test_transactions import aborted_in_redis, append_to, outcome_of
from tests.support.logs import read_log
from tests.support.received import ReceivedBatch
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.transactions import Aborted
    from tests.storage.conftest import Bench


RETENTION_MS = 1600


NOW_MS = 1_800_000_000_000


RULES = CompactionRules(RETENTION_MS, 0, None, 0.0)


# Small, so that a log is read in many steps.
READ_BYTES = 300


Pair = tuple[bytes | None, bytes | None]


class Known(NamedTuple):
    """A record of the model."""

    offset: int
    pair: Pair
    producer_id: int
    """-1 outside a transaction."""


class Ended(NamedTuple):
    """A transaction with a marker."""

    offset: int
    committed: bool
    records: list[Known]


class Log:
    """A compacted log, and all records that were ever appended to it."""

    def __init__(self, bench: Bench, layout: str, assignment: str = "clock") -> None:
        self.bench = bench
        self.log = bench.log(
            "t",
            configs={"cleanup.policy": "compact"},
            storage_layout=layout,
            offset_assignment=assignment,
        )
        # From here on the leader knows all transactions without asking Redis.
        bench.run(self.log.bounds())
        self.now_ms = NOW_MS
        self.sequences: dict[int, int] = {}
        self.batches: list[range] = []
        """The offsets of each appended batch."""
        self.plain: list[Known] = []
        self.open: dict[int, list[Known]] = {}
        self.ended: list[Ended] = []
        # When a compaction found that a marker has no records left.
        self.empty_ms: dict[int, int] = {}

    def append(self, producer_id: int, *pairs: Pair) -> int:
        """Append in the producer's transaction, or in none (-1). Returns the first record's offset."""
        return self.bench.run(self.append_wait(producer_id, *pairs))

    async def append_wait(self, producer_id: int, *pairs: Pair) -> int:
        stamp = None
        if producer_id >= 0:
            sequence = self.sequences.get(producer_id, 0)
            self.sequences[producer_id] = sequence + len(pairs)
            stamp = ProducerSequence(producer_id, 0, sequence, True)
        data = forms.whole_batch(
            [forms.Record(*pair, forms.BASE_MS) for pair in pairs],
            attributes=16 if stamp else 0,
            producer=(producer_id, 0, stamp.base_sequence) if stamp else (-1, -1, -1),
        )
        batch = ReceivedBatch(data, parse_batch(data, 0), None)
        base = (await outcome_of(partial(append_to, self.log, batch, stamp))).base_offset
        self.batches.append(range(base, base + len(pairs)))
        records = [Known(base + number, pair, producer_id) for number, pair in enumerate(pairs)]
        (self.plain if stamp is None else self.open.setdefault(producer_id, [])).extend(records)
        return int(base)

    def end(self, producer_id: int, *, committed: bool) -> int:
        """End a transaction. Returns the marker's offset; -1 if no transaction was open."""
        return self.bench.run(self.end_wait(producer_id, committed=committed))

    async def end_wait(self, producer_id: int, *, committed: bool) -> int:
        marker = ControlMarker(producer_id, 0, committed, 1)
        offset = int((await outcome_of(partial(self.log.mark, marker))).offset)
        if offset >= 0:
            self.ended.append(Ended(offset, committed, self.open.pop(producer_id)))
        return offset

    def compact(self, map_bytes: int = 1 << 20, *, after_ms: int = 0) -> int:
        self.now_ms += after_ms
        work = Compactor(self.bench.store.commands, self.log, Pace(1e12), map_bytes)
        newest = self._newest_entry()
        removed = self.bench.run(work.compact(RULES, self.now_ms))
        assert self._newest_entry() == newest
        self.check_markers()
        return removed

    def _newest_entry(self) -> list[Any]:
        return [name for name, _ in self.bench.client.xrevrange(self.log.stream, count=1)]

    # The actual contents

    def entries(self) -> tuple[dict[int, Pair], list[int]]:
        """Records and markers in the stream, read without any cache."""
        self.log.state.tail.clear()
        data = self.bench.run(self._read_all())
        records, markers = {}, []
        for header, batch in forms.split(data):
            if header.control:
                markers.append(header.base_offset)
            elif header.record_count:
                records |= {at: (each.key, each.value) for at, each in forms.read_back(batch)}
        return records, markers

    async def _read_all(self) -> bytes:
        parts, offset = [], 0
        end = (await self.log.bounds()).log_end
        while offset < end:
            fetched = await read_log(self.log, offset, READ_BYTES)
            parts.append(fetched.data)
            offset = fetched.next_offset
        return b"".join(part for part in parts if part)

    def committed(self, offset: int = 0, max_bytes: int = READ_BYTES) -> dict[int, Pair]:
        """The records that a consumer of committed records reads from an offset on."""
        found: dict[int, Pair] = {}
        while True:
            read: Committed = self.bench.run(outcome_of(partial(read_committed, self.log, offset, max_bytes)))
            batches = forms.split(b"".join(read.batches))
            if not batches:
                return found
            found |= shown(batches, read.aborted)
            last = batches[-1][0]
            offset = last.base_offset + last.last_offset_delta + 1

    # The expected contents

    def decided(self) -> list[Known]:
        """The decided records that consumers get, in order."""
        stable = min((records[0].offset for records in self.open.values()), default=1 << 60)
        counted = [*self.plain, *(one for each in self.ended if each.committed for one in each.records)]
        return sorted(record for record in counted if record.offset < stable)

    def check(self) -> None:
        """Check the records that both kinds of consumers get."""
        counted = {record.offset: record.pair for record in self.decided()}
        newest = {pair[0]: pair[1] for pair in counted.values()}
        read = self.committed()
        assert read.items() <= counted.items()
        seen = {pair[0]: pair[1] for pair in read.values()}
        live = {key: value for key, value in newest.items() if value is not None}
        assert {key: value for key, value in seen.items() if value is not None} == live
        records, _ = self.entries()
        undecided = [one for each in self.open.values() for one in each]
        aborted = [one for each in self.ended if not each.committed for one in each.records]
        known = {one.offset: one.pair for one in (*self.plain, *undecided, *aborted)}
        known |= {one.offset: one.pair for each in self.ended for one in each.records}
        assert read.items() <= records.items() <= known.items()
        assert {one.offset for one in undecided} <= records.keys()

    def check_markers(self) -> None:
        """Check that no marker went before its records or its time, and that its aborted transaction is known
        as long.
        """
        records, markers = self.entries()
        known = {each.last_offset for each in aborted_in_redis(self.bench, self.log)}
        for each in self.ended:
            there = each.offset in markers
            if any(one.offset in records for one in each.records):
                assert there
            elif there:
                self.empty_ms.setdefault(each.offset, self.now_ms)
            elif each.offset in self.empty_ms:
                assert self.now_ms - self.empty_ms[each.offset] >= RETENTION_MS
            else:
                pytest.fail(f"marker {each.offset} went at once")
            assert (each.offset in known) <= there
            if there and not each.committed and each.offset not in self.empty_ms:
                assert each.offset in known


def shown(batches: Sequence[tuple[Any, bytes]], aborted: Sequence[Aborted]) -> dict[int, Pair]:
    """The records that a consumer delivers of one response, by the rules of Kafka's own client (KIP-98)."""
    found: dict[int, Pair] = {}
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    dropped: set[int] = set()
    for header, data in batches:
        while waiting and waiting[0].first_offset <= header.base_offset + header.last_offset_delta:
            dropped.add(waiting.pop(0).producer_id)
        if header.control:
            ((_, marker),) = forms.read_back(data)
            if marker.key == b"\0\0\0\0":
                dropped.discard(header.producer_id)
        elif header.record_count and not (header.transactional and header.producer_id in dropped):
            found |= {at: (each.key, each.value) for at, each in forms.read_back(data)}
    return found
