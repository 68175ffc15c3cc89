"""The outcomes of a log's transactions, as its compaction needs them. No I/O.

Compaction removes the records of aborted transactions and treats the records of committed transactions like
all others. It removes a marker when the log has held no record of the marker's transaction for
delete.retention.ms, as Kafka's cleaner does: a reader that began before sees the whole transaction. A pass
through the log shows that no record is left; so the records were gone when the previous compaction ended.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.log.transactions import holds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from korvet.log.transactions import Aborted

# The head of a list of markers without records: the time at which they were found, and the number of offsets.
_HEAD: Final = struct.Struct(">qi")
# Limits the times that are remembered. A marker is removed late by at most this share of delete.retention.ms.
_REMEMBERED: Final = 16


class Emptied(NamedTuple):
    """Markers without records: since when, and their offsets."""

    since_ms: int
    offsets: Sequence[int]
    """Ascending."""


def decode_emptied(packed: bytes | None) -> list[Emptied]:
    """The inverse of `encode_emptied`; an empty list for None."""
    found: list[Emptied] = []
    at = 0
    while packed and at < len(packed):
        since_ms, count = _HEAD.unpack_from(packed, at)
        at += _HEAD.size
        found.append(Emptied(since_ms, struct.unpack_from(f">{count}q", packed, at)))
        at += 8 * count
    return found


def encode_emptied(emptied: Iterable[Emptied]) -> bytes:
    """The value of the field in a partition's meta hash."""
    return b"".join(
        _HEAD.pack(each.since_ms, len(each.offsets)) + struct.pack(f">{len(each.offsets)}q", *each.offsets)
        for each in emptied
    )


class Outcomes:
    """The transactions of a log during a compaction. The caller reports the dirty section first, then the
    clean section, each in order of offsets.
    """

    __slots__ = (
        "_aborted",
        "_all_are_due",
        "_due",
        "_empty",
        "_found_ms",
        "_in_log",
        "_now_ms",
        "_remembered_for_ms",
        "_young",
        "has_new_markers",
        "has_records",
    )

    def __init__(
        self,
        aborted: Iterable[Aborted] = (),
        emptied: Sequence[Emptied] = (),
        *,
        last_ms: int | None = None,
        now_ms: int = 0,
        delete_retention_ms: int = 0,
    ) -> None:
        """`aborted` is in the order of the markers. `emptied` is what the previous compaction, at `last_ms`,
        remembered.
        """
        self._aborted: dict[int, list[Aborted]] = {}
        for each in aborted:
            self._aborted.setdefault(each.producer_id, []).append(each)
        oldest_ms = now_ms - delete_retention_ms
        self._due = {offset for each in emptied if each.since_ms <= oldest_ms for offset in each.offsets}
        self._young = [each for each in emptied if each.since_ms > oldest_ms]
        self._all_are_due = last_ms is not None and last_ms <= oldest_ms
        self._found_ms = now_ms if last_ms is None else last_ms
        self._now_ms = now_ms
        self._remembered_for_ms = delete_retention_ms // _REMEMBERED
        # Producers with a record in the clean section and no marker after the record yet.
        self._in_log: set[int] = set()
        self._empty = array("q")
        self.has_records = False
        """Whether the log holds records of transactions."""
        self.has_new_markers = False
        """Whether the dirty section holds markers."""

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a record at this offset belongs to an aborted transaction."""
        ranges = self._aborted.get(producer_id)
        if not ranges:
            return False
        at = bisect_right(ranges, offset, key=_first_offset)
        return at > 0 and offset <= ranges[at - 1].last_offset

    def record(self, producer_id: int, *, clean: bool) -> None:
        """Report a record of a transaction."""
        self.has_records = True
        if clean:
            self._in_log.add(producer_id)

    def marker(self, producer_id: int, offset: int, *, clean: bool) -> bool:
        """Report a marker. Returns whether compaction removes it; markers in the dirty section stay."""
        if not clean:
            self.has_new_markers = True
            return False
        if producer_id in self._in_log:
            self._in_log.discard(producer_id)
            return False
        if self._all_are_due or offset in self._due:
            return True
        self._empty.append(offset)
        return False

    def ended(self, gone: Sequence[int]) -> list[Aborted]:
        """The aborted transactions whose markers are removed. `gone`: the removed offsets, ascending."""
        return [each for ranges in self._aborted.values() for each in ranges if holds(gone, each.last_offset)]

    def emptied(self) -> list[Emptied]:
        """The markers that stay and have no records, for the next compaction, the oldest time first."""
        empty = set(self._empty)
        found = []
        for each in self._young:
            known = [offset for offset in each.offsets if offset in empty]
            empty.difference_update(known)
            if known:
                found.append(Emptied(each.since_ms, known))
        if empty:
            found.append(Emptied(self._found_ms, sorted(empty)))
        if len(found) > 2 and found[-1].since_ms - found[-3].since_ms < self._remembered_for_ms:
            # The markers of the time before count as a little younger than they are.
            last = found.pop()
            found[-1] = Emptied(last.since_ms, sorted((*found[-1].offsets, *last.offsets)))
        return found

    def markers_ms(self, emptied: Sequence[Emptied], *, removed: bool) -> int:
        """See Checkpoint.markers_ms. `removed`: whether any record was removed."""
        times = [emptied[0].since_ms] if emptied else []
        if self.has_new_markers or (self.has_records and removed):
            times.append(self._now_ms)
        return min(times, default=0)


def _first_offset(aborted: Aborted) -> int:
    return aborted.first_offset
