"""Questions about one partition's log: its bounds, counts, timestamps, leader epochs and producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from korvet.cluster.assignment import to_leader_epoch
from korvet.log.entries import first_record
from korvet.log.transactions import (
    Aborted,
    KnownProducer,
    parse_aborted,
    parse_open,
    parse_producer,
)
from korvet.offsets.packing import entry_id

if TYPE_CHECKING:
    from korvet.log.index import LogIndex
    from korvet.log.state import LogState
    from korvet.log.values import Bounds

# Points of the index that one call of korvet_find_time looks at.
_POINTS_AT_ONCE: Final = 1000
# Entries, aborted transactions or producers that one command reads.
_SCANNED_AT_ONCE: Final = 128
# Timestamps are int64.
_MAX_TIMESTAMP: Final = (1 << 63) - 1


class Queries:
    """Asks Redis about one log. Every method raises StorageError."""

    __slots__ = ("_index", "_state")

    def __init__(self, state: LogState, index: LogIndex) -> None:
        self._state = state
        self._index = index

    async def bounds(self) -> Bounds:
        """Read both ends. Raises FencedEpoch, too: another broker leads the partition. Function
        korvet_bounds.
        """
        state = self._state
        bounds = state.take_bounds(await self._index.fcall("korvet_bounds", state.bias, read=True))
        if state.is_superseded(bounds.epoch):
            raise state.superseded()
        return bounds

    async def count(self, from_offset: int, to_offset: int) -> int:
        """The exact number of records in [from_offset, to_offset), in entry ID order.

        Entries that no offset names count as part of their millisecond. Function korvet_count.
        """
        return int((await self._index.call("korvet_count", from_offset, to_offset))[1])

    async def offset_before_bytes(self, size_bytes: int) -> int:
        """The first offset from which on the log holds at most `size_bytes`, if all records had the average
        size; 0 if the whole log holds no more. Function korvet_before_bytes.
        """
        return int((await self._index.call("korvet_before_bytes", size_bytes))[1])

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first record with that timestamp or a later one. Function
        korvet_find_time.
        """
        offset = 0
        while True:
            reply = await self._index.call("korvet_find_time", timestamp_ms, offset, _POINTS_AT_ONCE)
            if reply[0] == b"none":
                return None
            if reply[0] == b"more":
                offset = reply[1]
                continue
            first, after, log_start = reply[1:]
            found = await self._scan(max(first, offset, log_start), after, timestamp_ms)
            if found is not None or after < 0:
                return found
            offset = after

    async def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first record with the largest timestamp."""
        await self._index.call("korvet_count", 0, 0)
        reply = await self._index.fcall("korvet_bounds", self._state.bias, read=True)
        high = _MAX_TIMESTAMP + 1
        best = None
        if reply[6]:
            # The largest timestamp in the index; its record may be deleted since, or the number rounded.
            probe = min(int(reply[6]), _MAX_TIMESTAMP)
            best = await self.offset_for_timestamp(probe)
            high = high if best else probe
        if best is None:
            best = await self.offset_for_timestamp(-_MAX_TIMESTAMP - 1)
        if best is None:
            return None
        probe = best[1] + 1
        while probe < high:
            above = await self.offset_for_timestamp(probe)
            if above is None:
                high = probe
            else:
                best = above
            probe = (best[1] + high + 1) // 2
        return best

    async def _scan(self, first: int, after: int, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with that timestamp or a later one, at or after offset
        `first`, in the entries before offset `after`, or up to the log end if `after` is -1.
        """
        bias = self._state.bias
        start = entry_id(first, bias)
        end = "+" if after < 0 else "(" + entry_id(after, bias)
        while True:
            page = await self._read("XRANGE", self._state.stream, start, end, "COUNT", _SCANNED_AT_ONCE)
            for found_id, fields in page:
                found = first_record(found_id, fields, bias, offset=first, timestamp_ms=timestamp_ms)
                if found is not None:
                    return found
            if len(page) < _SCANNED_AT_ONCE:
                return None
            start = "(" + page[-1][0].decode()

    async def end_of_leader_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(`epoch`, the offset up to which the log continues what a consumer read in that epoch); None for a
        later epoch than the present one. This is the log end unless writes may have been lost since: then it
        is the log end that the next leader found.
        """
        state = self._state
        if epoch > state.leader_epoch:
            return None
        bounds = await self.bounds()
        if epoch == state.leader_epoch:
            return epoch, bounds.log_end
        leaders = await self._read("HGET", state.meta, "leaders")
        end = bounds.log_end
        for one in reversed(bytes(leaders or b"").split()):
            began, _, offset = one.partition(b":")
            if to_leader_epoch(int(began)) <= epoch:
                break
            end = int(offset)
        return epoch, end

    async def aborted_transactions(self) -> list[Aborted]:
        """The aborted transactions that have or had records in the log, in the order of their markers."""
        found: list[Aborted] = []
        after = "-inf"
        while True:
            page = await self._read(
                "ZRANGEBYSCORE",
                self._state.aborted_key,
                after,
                "+inf",
                "WITHSCORES",
                "LIMIT",
                0,
                _SCANNED_AT_ONCE,
            )
            found += parse_aborted(page)
            if len(page) < 2 * _SCANNED_AT_ONCE:
                return found
            after = f"({found[-1].last_offset}"

    async def open_producers(self) -> dict[int, int]:
        """The producers with an open transaction, each with the offset at which it begins."""
        return parse_open(await self._read("HGET", self._state.meta, "open"))

    async def producers(self) -> list[KnownProducer]:
        """The remembered producers, ordered by id."""
        meta = self._state.meta
        opened = await self.open_producers()
        known: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, page = await self._read("HSCAN", meta, cursor, "MATCH", "p:*", "COUNT", _SCANNED_AT_ONCE)
            known.update(zip(page[::2], page[1::2], strict=True))
            if cursor == b"0":
                break
        if not known:
            return []
        epochs = await self._read("HMGET", meta, *(b"c" + field[1:] for field in known))
        return sorted(
            parse_producer(field, packed, epoch, opened.get(int(field[2:]), -1))
            for (field, packed), epoch in zip(known.items(), epochs, strict=True)
        )

    async def _read(self, *args: bytes | str | int) -> Any:
        self._state.check_open()
        return await self._state.links.read.call(*args)
