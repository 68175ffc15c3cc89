"""The values that a partition's log takes and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from korvet.records.batch import BatchHeader, BytesLike

LAST_OFFSET: Final = (1 << 53) - 1
"""The largest offset of a log: Lua's numbers are doubles, which do not hold all larger integers."""
DEFAULT_AVERAGE_BYTES: Final = 256.0
"""The assumed size of an entry until the log is known."""
BOUNDS_FRESH_S: Final = 1.0
"""How long both ends of a log may be unread: records that native clients delete at its start are noticed
after this time at the latest.
"""


class ProducerSequence(msgspec.Struct, frozen=True, gc=False):
    """Where a batch belongs in the sequence of its idempotent producer (KIP-98)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool = False


Producer: TypeAlias = "ProducerSequence | BatchHeader"
"""What places a batch in its producer's sequence: the header of a batch that was received."""


class ReceivedBatch(Protocol):
    """A record batch as a producer sent it."""

    data: BytesLike
    header: BatchHeader
    plain: bytes | None
    """The decompressed records if the batch has a codec, else None."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """An append that took effect. The records have the offsets base_offset, base_offset + 1 and so on."""

    base_offset: int
    log_start: int
    previous_end: int
    """The log end offset before the append. On clock topics it is usually smaller than base_offset."""
    append_ms: int
    """The append time by Redis's clock."""
    lead_ms: int
    """How far the newest offset is ahead of Redis's clock."""
    duplicate: bool
    """Whether the same batch was appended before; base_offset is the original one then."""
    last_stable_offset: int
    """The last stable offset of the log that includes these records; -1 if it is unknown."""


class Marked(msgspec.Struct, frozen=True, gc=False):
    """A marker that took effect."""

    offset: int
    """The marker's offset; -1 if the producer had no open transaction, so that no marker was written."""
    first_offset: int
    """Where the transaction began; -1 without a transaction."""
    previous_end: int
    """The log end offset before the marker."""
    last_stable_offset: int
    """The last stable offset after the marker."""
    append_ms: int
    """The append time by Redis's clock."""

    @property
    def end(self) -> int:
        """The log end offset after the marker."""
        return self.previous_end if self.offset < 0 else self.offset + 1


class Ends(msgspec.Struct, frozen=True, gc=False):
    """The bounds of a log at one moment, in their order."""

    log_start: int = 0
    """The first offset that clients can read."""
    local_log_start: int = 0
    """The first offset that Redis has."""
    last_stable_offset: int = 0
    """The end of what readers of committed records see. A transaction is open until its marker has the copies
    that the topic asks for: a failover may take the marker back, and leave the records.
    """
    high_watermark: int = 0
    """The end of the records that readers see: those with the copies that the topic asks for."""
    log_end: int = 0

    def __post_init__(self) -> None:
        assert (
            0
            <= self.log_start
            <= self.local_log_start
            <= self.last_stable_offset
            <= self.high_watermark
            <= self.log_end
        ), f"out of order: {self}"

    @property
    def visible(self) -> tuple[int, int, int]:
        """The offsets that clients see: log start, last stable offset, high watermark."""
        return self.log_start, self.last_stable_offset, self.high_watermark


class Fetched(msgspec.Struct, frozen=True, gc=False):
    """Record batches read from a log."""

    data: bytes
    """Record batches (magic 2) one after the other; empty at the log end."""
    record_count: int
    first_offset: int
    """The first record's offset, which may lie before the requested one in a batch; -1 without records."""
    last_offset: int
    """The offset of the last record, or of the end of a skipped gap; -1 with neither."""
    next_offset: int
    """The offset of the next read."""
    ends: Ends
    """The bounds of the log."""


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """Both ends of a log, and what the log holds. Reads are valid from log_start to log_end inclusive."""

    log_start: int
    log_end: int
    entries: int
    payload_bytes: int
    """Bytes of all field names and values, as far as the index covers them."""
    epoch: int | None
    """The writers' epoch; None if none was acquired."""
    last_id: bytes
    """Redis's last generated entry ID."""
    last_stable_offset: int
    """The start of the oldest open transaction, else log_end."""
