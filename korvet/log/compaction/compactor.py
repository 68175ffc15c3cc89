"""One compaction of one partition: it reads the log to find the records to remove, and copies the others
inside Redis.

Redis copies the log into a shadow, one slice per call, while appends and reads continue. In the last step the
shadow replaces the log, groups and counters included; that step also copies the newest appends
(lua/compact.lua). A compaction that ends before the last step leaves the log unchanged, and keys that the
next compaction deletes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.log.compaction.outcomes import Outcomes, decode_emptied, encode_emptied
from korvet.log.compaction.survivors import Checkpoint, Survivors, is_dirty_enough
from korvet.log.entries import batch_of, first_record
from korvet.offsets.entry_fields import Record, read_entry
from korvet.offsets.packing import SEQUENCE_BITS, AddressError, entry_id, offset_after, offset_of
from korvet.records.batch import BatchError
from korvet.records.runs import records_of, runs_of
from korvet.redis.errors import AllowanceSpent, OutOfMemory, StorageError, StorageFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.records.batch import BatchHeader
    from korvet.redis.commands import Commands

    Entry = tuple[bytes, list[bytes]]

log = logging.getLogger(__name__)

# Limits the entries of one call: one or two ms of Redis's time, and of the broker's.
_ENTRIES_AT_ONCE: Final = 256
# Limits the bytes of a page of entries: a page of large records has fewer entries.
_PAGE_BYTES: Final = 8 << 20
# Arguments of one call from which on the entries that they change are copied before further ones. A batch
# that is split may need some ten thousand.
_MANY_WORDS: Final = 4096
# Limits the parts of a batch that takes more memory in parts: Redis takes no more than 2^20 arguments.
_MOST_PARTS: Final = 100_000
# The approximate size of an entry beyond the bytes of its batch.
_ENTRY_BYTES: Final = 24
# Limits the calls of the last step: appends may be faster than the copying.
_MOST_SWAPS: Final = 10_000
# The functions that copy. While Redis is at maxmemory, they have a bounded form.
_COPYING: Final = frozenset(("korvet_shadow_begin", "korvet_shadow_copy", "korvet_shadow_pending"))
_NOT_FOUND: Final = "the next entry does not exist any more"


class CompactionRules(msgspec.Struct, frozen=True):
    """The compaction configs of a topic."""

    delete_retention_ms: int
    min_lag_ms: int
    max_lag_ms: int | None
    """None: no limit."""
    min_dirty_ratio: float
    history_ms: int | None = None
    """Compaction leaves records alone that are younger than this: they are the history. None: no history."""
    history_bytes: int | None = None
    """Limits the bytes of the history, counted from the newest record; None: no limit."""


class Pace:
    """Limits the bytes per second of all compactions of a process together."""

    __slots__ = ("_free_at_s", "bytes_per_s")

    def __init__(self, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def spend(self, size_bytes: int) -> None:
        """Return when `size_bytes` more bytes may be read or copied."""
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(self._free_at_s, now_s) + size_bytes / self.bytes_per_s
        if self._free_at_s > now_s:
            await asyncio.sleep(self._free_at_s - now_s)


class Compactor:
    """Compacts a partition that this process leads."""

    def __init__(self, commands: Commands, partition: PartitionLog, pace: Pace, map_bytes: int) -> None:
        """map_bytes: limits the memory for the keys of one compaction; if the keys need more, the compaction
        ends earlier in the log.
        """
        self._commands = commands
        self._log = partition
        self._pace = pace
        self._map_bytes = map_bytes
        topic = partition.topic.name
        self._stream, _, self._meta, _ = partition.keys
        self._shadows = commands.keyspace.shadow_keys(topic, partition.partition)
        self._keys = [*partition.keys[:3], *self._shadows]
        self._highest = partition.state.highest_epoch
        self.has_run = False
        """Whether a compaction was due."""
        self._token = b""
        # The last entry that the shadow has.
        self._copied = b"0-0"
        # Batches of Redis clients with offsets that entries before them have.
        self._overlapping: set[bytes] = set()

    async def drop_leftovers(self) -> None:
        """Delete the keys of an interrupted compaction. Raises StorageError. Function korvet_shadow_drop."""
        await self._commands.fcall("korvet_shadow_drop", [self._meta, *self._shadows], self._highest)

    async def compact(self, rules: CompactionRules, now_ms: int) -> int:
        """Compact the log if a compaction is due. Returns the number of removed records.

        Raises StorageError; FencedEpoch if another broker leads the partition. The log is unchanged then.
        """
        self._log.compacting = True
        try:
            return await self._compact(rules, now_ms)
        finally:
            self._log.compacting = False

    async def _compact(self, rules: CompactionRules, now_ms: int) -> int:
        text, stable = await asyncio.gather(
            self._read("HGET", self._meta, "compacted"), self._log.read_last_stable_offset()
        )
        checkpoint = Checkpoint.decode(text)
        sweep = checkpoint.sweep_is_due(now_ms, rules.delete_retention_ms)
        if stable <= checkpoint.dirty_from and not sweep:
            return 0
        end = max(checkpoint.dirty_from, await self._end(rules, stable, now_ms))
        if not sweep and not await self._is_dirty(checkpoint.dirty_from, end, rules, now_ms):
            return 0
        self.has_run = True
        sweeps_to = checkpoint.sweeps_to(now_ms, rules.delete_retention_ms)
        outcomes = await self._outcomes(checkpoint, rules.delete_retention_ms, now_ms)
        survivors = Survivors(sweeps_to, self._map_bytes, outcomes, await self._newest_offset())
        end = await self._find(survivors, checkpoint.dirty_from, end)
        gone = survivors.gone_in_order()
        emptied = outcomes.emptied()
        markers_ms = outcomes.markers_ms(emptied, removed=bool(gone))
        text = checkpoint.after(
            end, survivors.tombstones, survivors.swept_to, now_ms, rules.delete_retention_ms, markers_ms
        ).encode()
        if gone:
            # Before the markers are removed: else readers would treat later records of the producer as
            # aborted.
            await self._log.trimming.forget_transactions(outcomes.ended(gone), gone)
            await self._replace(survivors, gone, end, text, encode_emptied(emptied))
            self._log.compacted(end)
        else:
            words = self._highest, text, encode_emptied(emptied)
            await self._commands.fcall("korvet_compaction_note", [self._meta], *words)
        return len(gone)

    async def _outcomes(self, checkpoint: Checkpoint, delete_retention_ms: int, now_ms: int) -> Outcomes:
        """The outcomes of the log's completed transactions."""
        packed, aborted = await asyncio.gather(
            self._read("HGET", self._meta, "emptied"), self._log.queries.aborted_transactions()
        )
        return Outcomes(
            aborted,
            decode_emptied(packed),
            last_ms=checkpoint.last_ms,
            now_ms=now_ms,
            delete_retention_ms=delete_retention_ms,
        )

    # Whether a compaction is due, and where it ends

    async def _end(self, rules: CompactionRules, stable: int, now_ms: int) -> int:
        """The offset of the first record that this compaction leaves alone, at most `stable`."""
        end = await self._first_within(rules.history_ms or 0, stable, now_ms)
        if rules.history_ms is not None and rules.history_bytes is not None:
            end = max(end, await self._log.queries.offset_before_bytes(rules.history_bytes))
        return min(end, stable, await self._first_within(rules.min_lag_ms, stable, now_ms))

    async def _first_within(self, lag_ms: int, end: int, now_ms: int) -> int:
        """The offset of the first record that is younger than lag_ms; `end` if there is none."""
        young = await self._log.queries.offset_for_timestamp(now_ms - lag_ms + 1) if lag_ms else None
        return end if young is None else young[0]

    async def _is_dirty(self, dirty_from: int, end: int, rules: CompactionRules, now_ms: int) -> bool:
        dirty = await self._log.queries.count(dirty_from, end) if dirty_from < end else 0
        clean = await self._log.queries.count(0, dirty_from) if dirty else 0
        oldest_ms = None
        if dirty and rules.max_lag_ms is not None:
            oldest_ms = await self._oldest_ms(dirty_from)
        return is_dirty_enough(
            dirty,
            clean,
            rules.min_dirty_ratio,
            oldest_dirty_ms=oldest_ms,
            max_lag_ms=rules.max_lag_ms,
            now_ms=now_ms,
        )

    async def _oldest_ms(self, offset: int) -> int | None:
        """The timestamp of the first record at or after an offset."""
        bias = self._log.bias
        first = await self._read("XRANGE", self._stream, entry_id(offset, bias), "+", "COUNT", 1)
        if not first:
            return None
        name, fields = first[0]
        found = first_record(name, fields, bias, offset=offset)
        return found and found[1]

    # Which records are removed

    async def _newest_offset(self) -> int:
        """The offset of the log's newest record or marker; -1 in an empty log."""
        found = await self._read("XREVRANGE", self._stream, "+", "-", "COUNT", 1)
        return offset_after(found[0][0], self._log.bias) - 1 if found else -1

    async def _find(self, survivors: Survivors, dirty_from: int, end: int) -> int:
        """Report all records before `end` to `survivors`. Returns the offset at which the memory for keys
        ended the compaction, at most `end`.
        """
        free = await self._offset_after_entries(dirty_from) if dirty_from else 0
        async for entries in self._pages(dirty_from, end):
            free = self._report(survivors, entries, free, clean=False)
            if survivors.is_full:
                end = min(end, offset_after(entries[-1][0], self._log.bias))
                break
        free = 0
        async for entries in self._pages(0, dirty_from):
            free = self._report(survivors, entries, free, clean=True)
        # What the removal of tombstones costs a log with batches: the records before them are read again.
        async for entries in self._pages(0, dirty_from if survivors.due_to else 0):
            self._report_again(survivors, entries)
            if offset_after(entries[-1][0], self._log.bias) > survivors.due_to:
                break
        survivors.sweep()
        return end

    async def _offset_after_entries(self, end: int) -> int:
        """The offset after the last entry before `end`, which is not 0; 0 if there is none."""
        bias = self._log.bias
        found = await self._read("XREVRANGE", self._stream, "(" + entry_id(end, bias), "-", "COUNT", 1)
        return max(0, offset_after(found[0][0], bias)) if found else 0

    def _report(self, survivors: Survivors, entries: Sequence[Entry], free: int, *, clean: bool) -> int:
        """Report the records and markers of entries. Entries of Redis applications are not reported, because
        no key shows what supersedes them, and neither are entries that no offset addresses, and batches that
        begin before `free`, the offset after the entry before. Returns the offset after the entries.
        """
        bias = self._log.bias
        report = survivors.clean if clean else survivors.dirty
        for name, fields in entries:
            try:
                offset = offset_of(name, bias)
            except AddressError:
                continue
            before, free = free, offset + 1
            found = read_entry(fields, (offset + bias) >> SEQUENCE_BITS)
            if isinstance(found, Record):
                producer_id = found.producer_id
                if producer_id < 0 or not survivors.begins(producer_id, offset, 1, clean=clean):
                    report(offset, found.key, tombstone=found.value is None)
                continue
            if found is not None:
                survivors.marker(found.producer_id, offset, clean=clean)
                continue
            header = batch_of(fields, offset)
            if header is not None and header.base_offset < before:
                self._overlapping.add(name)
            elif header is not None:
                self._report_batch(survivors, header, fields[1], clean=clean)
        return free

    def _report_batch(self, survivors: Survivors, header: BatchHeader, data: bytes, *, clean: bool) -> None:
        first, count = header.base_offset, header.record_count
        survivors.has_batches = True
        if header.control:
            survivors.marker(header.producer_id, first, clean=clean)
            return
        if header.transactional and survivors.begins(header.producer_id, first, count, clean=clean):
            return
        try:
            records = records_of(data, header)
        except BatchError as error:
            log.warning("%s: a batch is not compacted: %s", self._stream.decode(), error)
            return
        report = survivors.clean if clean else survivors.dirty
        for number, record in enumerate(records, first):
            report(number, record.key, tombstone=record.tombstone)

    def _report_again(self, survivors: Survivors, entries: Sequence[Entry]) -> None:
        for name, fields in entries:
            with contextlib.suppress(AddressError, BatchError):
                header = batch_of(fields, offset_of(name, self._log.bias))
                if header is None or header.control or name in self._overlapping:
                    continue
                if header.transactional and survivors.is_aborted(header.producer_id, header.base_offset):
                    continue
                for number, record in enumerate(records_of(fields[1], header), header.base_offset):
                    survivors.clean_again(number, record.key, tombstone=record.tombstone)

    async def _pages(self, first: int, end: int) -> AsyncIterator[list[Entry]]:
        """The entries whose offset is in [first, end), in pages of bounded size."""
        bias = self._log.bias
        start, last = entry_id(first, bias), "(" + entry_id(end, bias)
        count = max(1, min(_ENTRIES_AT_ONCE, _PAGE_BYTES // max(self._log.state.largest_bytes, 1)))
        while first < end:
            page = await self._read("XRANGE", self._stream, start, last, "COUNT", count)
            if page:
                yield page
                await self._pace.spend(sum(sum(map(len, fields)) for _, fields in page))
            if len(page) < count:
                return
            start = "(" + page[-1][0].decode()

    # Copying

    async def _replace(
        self, survivors: Survivors, gone: Sequence[int], end: int, text: bytes, emptied: bytes
    ) -> None:
        """Replace the log by one without the records at the offsets `gone`, which are all before `end`."""
        self._token = uuid.uuid4().hex.encode()
        self._copied = b"0-0"
        await self._call("korvet_shadow_begin")
        try:
            if survivors.has_batches:
                await self._copy_batches(survivors, gone, end)
            else:
                await self._copy_records(gone)
            await self._copy_up_to(b"+", [])
            await self._copy_pending()
            await self._swap(text, emptied)
        except StorageError:
            with contextlib.suppress(StorageError):
                await self.drop_leftovers()
            raise

    async def _copy_records(self, gone: Sequence[int]) -> None:
        """Copy the entries up to the last of the offsets `gone`, each of which is an entry, without these
        entries.
        """
        bias = self._log.bias
        at = 0
        while at < len(gone):
            names = [entry_id(offset, bias).encode() for offset in gone[at : at + _ENTRIES_AT_ONCE]]
            changes = [word for name in names for word in (name, b"0")]
            if await self._copy(names[-1], changes) == b"done":
                # Also if native clients have deleted the entries in the meantime.
                at += len(names)
            else:
                at = bisect_left(gone, offset_after(self._copied, bias), at)

    async def _copy_batches(self, survivors: Survivors, gone: Sequence[int], end: int) -> None:
        """Copy the entries before `end`; a batch that holds some of the offsets `gone` is copied without
        their records.
        """
        at = 0
        async for entries in self._pages(0, end):
            changes: list[bytes] = []
            for name, fields in entries:
                after = bisect_left(gone, offset_after(name, self._log.bias), at)
                if after > at:
                    changes += self._change(survivors, name, fields, gone[at:after])
                at = after
                if len(changes) >= _MANY_WORDS:
                    await self._copy_up_to(name, changes)
                    changes = []
            await self._copy_up_to(entries[-1][0], changes)

    def _change(
        self, survivors: Survivors, name: bytes, fields: Sequence[bytes], gone: Sequence[int]
    ) -> list[bytes]:
        """The replacement of an entry without the offsets `gone`, as arguments of korvet_shadow_copy; empty
        if the entry stays unchanged.
        """
        try:
            last = offset_of(name, self._log.bias)
        except AddressError:
            return []
        header = batch_of(fields, last)
        # Offsets before the entry are those of entries that were deleted since.
        gone = gone[bisect_left(gone, last if header is None else header.base_offset) :]
        if not gone:
            return []
        if header is None or len(gone) == header.record_count:
            return [name, b"0"]
        records = records_of(fields[1], header)
        places = {offset - header.base_offset for offset in gone}
        kept = (place for place in range(len(records)) if place not in places)
        runs = list(runs_of(header, records, kept))
        grows = sum(len(batch) + _ENTRY_BYTES for _, batch in runs) >= header.size + _ENTRY_BYTES
        # A record that a tombstone deletes has to go before the tombstone.
        has_to_go = len(runs) <= _MOST_PARTS and any(
            survivors.is_deleted(records[place].key) for place in places
        )
        if grows and not has_to_go:
            # The remaining runs would take more memory than the whole batch.
            return []
        words = [name, b"%d" % len(runs)]
        for last, batch in runs:
            words += (entry_id(last, self._log.bias).encode(), batch)
        return words

    async def _copy_pending(self) -> None:
        """Copy the pending entries of the groups, page by page; the last step copies what changes during
        this.
        """
        for reply in await self._read("XINFO", "GROUPS", self._stream):
            group = dict(zip(reply[::2], reply[1::2], strict=True))
            start = b"-" if group[b"pending"] else b""
            while start:
                start = await self._call("korvet_shadow_pending", self._copied, group[b"name"], start)
        while await self._call("korvet_shadow_tidy", self._copied):
            pass

    async def _copy_up_to(self, last: bytes, changes: Sequence[bytes]) -> None:
        status = b"more"
        while status != b"done":
            status = await self._copy(last, changes)

    async def _copy(self, last: bytes, changes: Sequence[bytes]) -> bytes:
        """Copy the next entries, at most up to `last`."""
        added = b""
        while True:
            status, self._copied, size = await self._call(
                "korvet_shadow_copy", self._copied, last, _ENTRIES_AT_ONCE, added, *changes
            )
            await self._pace.spend(size)
            if status != b"wide":
                return bytes(status)
            added = await self._copy_wide()

    async def _copy_wide(self) -> bytes:
        """Copy the next entry by XADD: it has more fields than a script can handle."""
        found = await self._read("XRANGE", self._stream, b"(" + self._copied, "+", "COUNT", 1)
        if not found:
            raise StorageFault(f"{self._stream.decode()}: {_NOT_FOUND}")
        name, fields = found[0]
        await self._commands.call("XADD", self._shadows[0], name, *fields)
        return bytes(name)

    async def _swap(self, text: bytes, emptied: bytes) -> None:
        added = b""
        for _ in range(_MOST_SWAPS):
            status, *rest = await self._call(
                "korvet_shadow_swap", self._copied, _ENTRIES_AT_ONCE, text, added, emptied
            )
            if status == b"ok":
                return
            if status == b"changed":
                raise StorageFault(f"{self._stream.decode()}: entries were deleted while it was compacted")
            if status == b"delivered":
                raise StorageFault(f"{self._stream.decode()}: a group received batches while they were split")
            self._copied = rest[0]
            if status == b"wide":
                added = await self._copy_wide()
        raise StorageFault(f"{self._stream.decode()} grows faster than it can be compacted")

    async def _call(self, function: str, *args: bytes | str | int) -> Any:
        if self._log.refusal is not None:
            raise self._log.refusal
        head = self._log.bias, self._highest, self._token
        try:
            return await self._commands.fcall(function, self._keys, *head, *args)
        except OutOfMemory as error:
            if function not in _COPYING or isinstance(error, AllowanceSpent):
                raise
            return await self._commands.fcall(f"{function}_within", self._keys, *head, *args)

    async def _read(self, *args: bytes | str | int) -> Any:
        if self._log.refusal is not None:
            raise self._log.refusal
        return await self._log.links.read_functions.call(*args)
