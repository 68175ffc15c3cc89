"""What a compaction keeps of a log, reckoned without I/O.

A log has three sections: the *clean* one, in which no key comes twice, since earlier compactions went through
it; the *dirty* one; and the newest records, which are not looked at yet (min.compaction.lag.ms, open
transactions). A record of the first two survives if no later one of its key is in the dirty section.
Tombstones (null values) survive like values, so that readers hear of the deletion, but not for ever: once
they have been in the clean section for delete.retention.ms the next compaction takes them (KIP-534). Records
without a key, from a time before the topic was compacted, go, as Kafka's cleaner has it.

Records of aborted transactions go, those of committed ones are as any others; see outcomes.py.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.storage.compaction.outcomes import Outcomes

# Longer keys are told apart by a digest, so that they take no more memory: two alike are as likely as a
# broken machine.
_LONGEST_KEY: Final = 32
_DIGEST_BYTES: Final = 32
KEY_COST_BYTES: Final = 200
"""What a key takes in the map of a compaction, about."""
# A tombstone goes late by this share of delete.retention.ms at most: so many compactions are remembered.
_REMEMBERED: Final = 16
# Begins the word of the markers.
_MARKERS: Final = b"m"


class Checkpoint(msgspec.Struct, frozen=True):
    """What is remembered of a partition's compactions; as text in its meta hash."""

    dirty_from: int = 0
    """Offset up to which the log is clean."""
    tombstones: int = 0
    """So many are in the clean section."""
    swept_to: int = 0
    """Offset up to which they were removed."""
    passes: tuple[tuple[int, int], ...] = ()
    """(offset, time in ms): up to where the log was clean at that time, the oldest first."""
    markers_ms: int = 0
    """The time (ms) at which a marker may have lost the last record of its transaction; 0: none has."""

    @classmethod
    def decode(cls, text: bytes | None) -> Checkpoint:
        """The inverse of `encode`; nothing compacted yet where there is no text."""
        if not text:
            return cls()
        words = text.split()
        markers_ms = int(words.pop()[1:]) if words[-1].startswith(_MARKERS) else 0
        dirty_from, tombstones, swept_to, *pairs = map(int, words)
        passes = tuple(zip(pairs[::2], pairs[1::2], strict=True))
        return cls(dirty_from, tombstones, swept_to, passes, markers_ms)

    def encode(self) -> bytes:
        """As text."""
        fixed = (self.dirty_from, self.tombstones, self.swept_to)
        words = [b"%d" % number for number in (*fixed, *(part for one in self.passes for part in one))]
        if self.markers_ms:
            words.append(_MARKERS + b"%d" % self.markers_ms)
        return b" ".join(words)

    @property
    def last_ms(self) -> int | None:
        """When the last compaction was; None without one."""
        return self.passes[-1][1] if self.passes else None

    def sweeps_to(self, now_ms: int, delete_retention_ms: int) -> int:
        """Tombstones before this offset have been in the clean section for delete_retention_ms."""
        ended = (offset for offset, at_ms in self.passes if at_ms + delete_retention_ms <= now_ms)
        return max(ended, default=0)

    def sweep_is_due(self, now_ms: int, delete_retention_ms: int) -> bool:
        """Whether tombstones or markers may be gone by a compaction now that the last one had to keep."""
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
        """What to remember after a compaction up to `dirty_from`."""
        # Of those that are old enough the newest says all.
        old = [one for one in self.passes if one[1] + delete_retention_ms <= now_ms]
        young = [one for one in self.passes if one[1] + delete_retention_ms > now_ms]
        passes = [*old[-1:], *young]
        if len(young) > 1 and now_ms - young[-2][1] < delete_retention_ms // _REMEMBERED:
            # Those up to there will be taken for a little younger than they are.
            passes.pop()
        return Checkpoint(dirty_from, tombstones, swept_to, (*passes, (dirty_from, now_ms)), markers_ms)


class Survivors:
    """Finds the records that go. Tell it of all dirty ones first, then of all clean ones, each in order."""

    __slots__ = ("_keys", "_most_keys", "_outcomes", "_sweeps_to", "gone", "tombstones")

    def __init__(self, sweeps_to: int, map_bytes: int, outcomes: Outcomes) -> None:
        """Clean tombstones before the offset `sweeps_to` go; the keys take no more than map_bytes."""
        self._sweeps_to = sweeps_to
        self._most_keys = max(1, map_bytes // KEY_COST_BYTES)
        self._outcomes = outcomes
        # Key: twice the offset of its newest dirty record, and one more where that is a tombstone.
        self._keys: dict[bytes, int] = {}
        self.gone = array("q")
        """Offsets of the records that go, not in order."""
        self.tombstones = 0
        """So many of them survive."""

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another key: the dirty section has to end here."""
        return len(self._keys) >= self._most_keys

    def dirty(self, offset: int, key: bytes | None, *, tombstone: bool) -> None:
        """The next record of the dirty section."""
        if key is None:
            self.gone.append(offset)
            return
        short = _shortened(key)
        before = self._keys.get(short)
        if before is not None:
            self.gone.append(before >> 1)
            self.tombstones -= before & 1
        self._keys[short] = offset << 1 | tombstone
        self.tombstones += tombstone

    def clean(self, offset: int, key: bytes | None, *, tombstone: bool) -> None:
        """The next record of the clean section."""
        if key is None or _shortened(key) in self._keys or (tombstone and offset < self._sweeps_to):
            self.gone.append(offset)
        else:
            self.tombstones += tombstone

    def begins(self, producer_id: int, offset: int, records: int, *, clean: bool) -> bool:
        """So many records of a transaction come next. True where it was aborted: then they all go, and are
        not to be told.
        """
        self._outcomes.record(producer_id, clean=clean)
        if not self._outcomes.is_aborted(producer_id, offset):
            return False
        self.gone.extend(range(offset, offset + records))
        return True

    def marker(self, producer_id: int, offset: int, *, clean: bool) -> None:
        """The marker of a producer's transaction comes next."""
        if self._outcomes.marker(producer_id, offset, clean=clean):
            self.gone.append(offset)

    def gone_in_order(self) -> Sequence[int]:
        """Offsets of the records that go, ascending."""
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
    """Whether a compaction is worth its cost: more than min_dirty_ratio of the records that it would go
    through are dirty, or the oldest of these is older than max_lag_ms (None: no limit).
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
