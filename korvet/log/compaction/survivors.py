"""Which records of a log survive a compaction. No I/O.

A log has three sections: the *clean* section, in which earlier compactions have left each key once; the
*dirty* section; and the newest records, which compaction does not consider yet (min.compaction.lag.ms, open
transactions). A record of the first two sections survives if the dirty section holds no later record of its
key. Tombstones (null values) survive like values, so that readers learn of the deletion, but not forever: the
next compaction removes tombstones that have been in the clean section for delete.retention.ms (KIP-534).
A tombstone stays longer if an older record of its key is there, in a batch that stayed whole.
Records without a key, which precede the compaction of the topic, are removed, as Kafka's cleaner does.

The newest record or marker of a log always stays, as it does in Kafka's active segment: it brings readers
that wait for the log end to it.

Records of aborted transactions are removed; records of committed transactions are like all others. See
outcomes.py.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.compaction.outcomes import Outcomes

# Limits the bytes of a key in memory. Longer keys are represented by a digest: a collision is as unlikely as
# a hardware error.
_LONGEST_KEY: Final = 32
_DIGEST_BYTES: Final = 32
KEY_COST_BYTES: Final = 200
"""The approximate memory of one key in the map of a compaction."""
# Limits the compactions that are remembered. A tombstone is removed late by at most this share of
# delete.retention.ms.
_REMEMBERED: Final = 16
# The first byte of the word that holds `markers_ms`.
_MARKERS: Final = b"m"


class Checkpoint(msgspec.Struct, frozen=True):
    """What the next compaction of a partition needs to know of earlier ones; a text in the meta hash."""

    dirty_from: int = 0
    """The offset at which the clean section ends."""
    tombstones: int = 0
    """The number of tombstones in the clean section."""
    swept_to: int = 0
    """The offset up to which due tombstones were removed."""
    passes: tuple[tuple[int, int], ...] = ()
    """(offset, time in ms): the end of the clean section at that time, the oldest first."""
    markers_ms: int = 0
    """The time (ms) since which a marker may have no record of its transaction; 0: there is no such marker.
    """

    @classmethod
    def decode(cls, text: bytes | None) -> Checkpoint:
        """The inverse of `encode`; without a text nothing was compacted yet."""
        if not text:
            return cls()
        words = text.split()
        markers_ms = int(words.pop()[1:]) if words[-1].startswith(_MARKERS) else 0
        dirty_from, tombstones, swept_to, *pairs = map(int, words)
        passes = tuple(zip(pairs[::2], pairs[1::2], strict=True))
        return cls(dirty_from, tombstones, swept_to, passes, markers_ms)

    def encode(self) -> bytes:
        """The text in the meta hash."""
        fixed = (self.dirty_from, self.tombstones, self.swept_to)
        words = [b"%d" % number for number in (*fixed, *(part for one in self.passes for part in one))]
        if self.markers_ms:
            words.append(_MARKERS + b"%d" % self.markers_ms)
        return b" ".join(words)

    @property
    def last_ms(self) -> int | None:
        """The time of the last compaction in ms; None without one."""
        return self.passes[-1][1] if self.passes else None

    def sweeps_to(self, now_ms: int, delete_retention_ms: int) -> int:
        """The offset before which tombstones have been in the clean section for delete_retention_ms."""
        ended = (offset for offset, at_ms in self.passes if at_ms + delete_retention_ms <= now_ms)
        return max(ended, default=0)

    def sweep_is_due(self, now_ms: int, delete_retention_ms: int) -> bool:
        """Whether a compaction now may remove tombstones or markers that the last compaction had to keep."""
        if 0 < self.markers_ms <= now_ms - delete_retention_ms:
            return True
        return self.tombstones > 0 and self.sweeps_to(now_ms, delete_retention_ms) > self.swept_to

    def after(
        self,
        dirty_from: int,
        tombstones: int,
        swept_to: int,
        now_ms: int,
        delete_retention_ms: int,
        markers_ms: int = 0,
    ) -> Checkpoint:
        """The checkpoint after a compaction up to `dirty_from`."""
        # Only the newest of the passes that are old enough matters. Due tombstones from `swept_to` on stay,
        # and count as new.
        old = [one for one in self.passes if one[1] + delete_retention_ms <= now_ms and one[0] <= swept_to]
        young = [one for one in self.passes if one[1] + delete_retention_ms > now_ms]
        passes = [*old[-1:], *young]
        if len(young) > 1 and now_ms - young[-2][1] < delete_retention_ms // _REMEMBERED:
            # Tombstones up to that pass count as a little younger than they are.
            passes.pop()
        return Checkpoint(dirty_from, tombstones, swept_to, (*passes, (dirty_from, now_ms)), markers_ms)


class Survivors:
    """Finds the records that compaction removes. The caller reports all dirty records first, then all clean
    ones, each in order of offsets; then, if `due_to` is not 0, the clean ones in batches once more.
    """

    __slots__ = (
        "_due",
        "_kept",
        "_keys",
        "_most_keys",
        "_newest",
        "_outcomes",
        "_sweeps_to",
        "due_to",
        "gone",
        "has_batches",
        "swept_to",
        "tombstones",
    )

    def __init__(self, sweeps_to: int, map_bytes: int, outcomes: Outcomes, newest: int) -> None:
        """`sweeps_to`: clean tombstones before this offset are removed. `map_bytes` limits the memory of the
        dirty section's keys, and that of the keys of due tombstones in logs with batches. `newest` is the
        offset of the log's newest record or marker.
        """
        self._newest = newest
        self._sweeps_to = sweeps_to
        self._most_keys = max(1, map_bytes // KEY_COST_BYTES)
        self._outcomes = outcomes
        # By key: twice the offset of its newest dirty record, plus one if that record is a tombstone.
        self._keys: dict[bytes, int] = {}
        # By key: the offset of its newest tombstone that goes unless an older record of the key is there.
        self._due: dict[bytes, int] = {}
        # The keys in `_due` of which an older record is there.
        self._kept: set[bytes] = set()
        self.has_batches = False
        """Whether the log holds batches, which may have stayed whole; the caller sets it."""
        self.due_to = 0
        """The offset of the last tombstone that goes unless an older record of its key is there; 0: none."""
        self.swept_to = sweeps_to
        """The offset up to which due tombstones are removed."""
        self.gone = array("q")
        """The offsets of the removed records, in no order."""
        self.tombstones = 0
        """The number of tombstones that survive."""

    @property
    def is_full(self) -> bool:
        """Whether the map is full: the dirty section must end here."""
        return len(self._keys) >= self._most_keys

    def dirty(self, offset: int, key: bytes | None, *, tombstone: bool) -> None:
        """Report the next record of the dirty section."""
        if key is None:
            self._remove_unless_newest(offset)
            return
        short = _shortened(key)
        before = self._keys.get(short)
        if before is not None:
            self.gone.append(before >> 1)
            self.tombstones -= before & 1
        self._keys[short] = offset << 1 | tombstone
        self.tombstones += tombstone

    def clean(self, offset: int, key: bytes | None, *, tombstone: bool) -> None:
        """Report the next record of the clean section."""
        if key is None or (short := _shortened(key)) in self._keys:
            self._remove_unless_newest(offset)
        elif not tombstone or offset >= self._sweeps_to or offset == self._newest:
            self.tombstones += tombstone
        elif self.has_batches:
            self._note_due(short, offset)
        else:
            self.gone.append(offset)

    def _remove_unless_newest(self, offset: int) -> None:
        if offset != self._newest:
            self.gone.append(offset)

    def _note_due(self, short: bytes, offset: int) -> None:
        before = self._due.get(short)
        if before is not None:
            self.gone.append(before)
            self._kept.add(short)
        elif len(self._due) >= self._most_keys:
            self._keep(offset)
            return
        self._due[short] = self.due_to = offset

    def _keep(self, offset: int) -> None:
        self.tombstones += 1
        self.swept_to = min(self.swept_to, offset)

    def clean_again(self, offset: int, key: bytes | None, *, tombstone: bool) -> None:
        """Report a record of the clean section a second time, if it is in a batch."""
        if key is None or tombstone:
            return
        short = _shortened(key)
        if offset < self._due.get(short, 0):
            self.gone.append(offset)
            self._kept.add(short)

    def sweep(self) -> None:
        """Remove the due tombstones, except those of keys of which an older record is there: such a record
        may stay, in a batch that a group has pending.
        """
        for short, offset in self._due.items():
            if short in self._kept:
                self._keep(offset)
            else:
                self.gone.append(offset)

    def is_deleted(self, key: bytes | None) -> bool:
        """Whether a tombstone, which stays, has deleted the key's records in the clean section and those
        before the tombstone.
        """
        if key is None:
            return False
        short = _shortened(key)
        return short in self._kept or bool(self._keys.get(short, 0) & 1)

    def begins(self, producer_id: int, offset: int, records: int, *, clean: bool) -> bool:
        """Report that the next `records` records belong to one transaction. Returns whether the transaction
        was aborted: then all its records are removed, and the caller does not report them one by one.
        """
        self._outcomes.record(producer_id, clean=clean)
        if not self._outcomes.is_aborted(producer_id, offset):
            return False
        last = offset + records - 1
        self.gone.extend(range(offset, last))
        self._remove_unless_newest(last)
        return True

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Whether a record at this offset belongs to an aborted transaction."""
        return self._outcomes.is_aborted(producer_id, offset)

    def marker(self, producer_id: int, offset: int, *, clean: bool) -> None:
        """Report the marker of a producer's transaction."""
        if clean and offset == self._newest:
            return
        if self._outcomes.marker(producer_id, offset, clean=clean):
            self.gone.append(offset)

    def gone_in_order(self) -> Sequence[int]:
        """The offsets of the removed records, ascending."""
        return sorted(self.gone)


def is_dirty_enough(
    dirty_records: int,
    clean_records: int,
    min_dirty_ratio: float,
    *,
    oldest_dirty_ms: int | None = None,
    max_lag_ms: int | None = None,
    now_ms: int = 0,
) -> bool:
    """Whether a compaction is worth its cost: more than `min_dirty_ratio` of the records that it would read
    are dirty, or the oldest dirty record is older than `max_lag_ms` (None: no limit).
    """
    if not dirty_records:
        return False
    if max_lag_ms is not None and oldest_dirty_ms is not None and oldest_dirty_ms + max_lag_ms < now_ms:
        return True
    return dirty_records > min_dirty_ratio * (dirty_records + clean_records)


def _shortened(key: bytes) -> bytes:
    if len(key) < _LONGEST_KEY:
        return key
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
