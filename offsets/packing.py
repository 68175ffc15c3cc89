"""Kafka offsets as Redis stream entry IDs, and back.

An offset packs an entry ID `ms-seq` as `ms << 10 | seq`. A *dense* topic counts 0, 1, 2 ... instead; Redis
refuses the ID 0-0, so there offset o is stored under the ID of o + 1: `bias` is 1 for dense topics, else 0.
"""

from __future__ import annotations

from typing import Final

# Ten bits leave 2^53 for the milliseconds of an int64 offset, and keep offsets below 2^53 (exact in a double,
# so in JavaScript clients) until the year 2248. Fixed when a keyspace is created: changing it moves every
# offset.
SEQUENCE_BITS: Final = 10
MAX_SEQUENCE: Final = (1 << SEQUENCE_BITS) - 1
# Kafka's offsets are int64.
MAX_OFFSET: Final = (1 << 63) - 1
MAX_MS: Final = MAX_OFFSET >> SEQUENCE_BITS
# Both halves of a Redis entry ID are uint64.
MAX_ENTRY_ID_PART: Final = (1 << 64) - 1
# Digits of such a half, leading zeros included.
_PART_DIGITS: Final = 20


class AddressError(ValueError):
    """An offset without an entry ID, or an entry ID without an offset."""


def pack(ms: int, seq: int) -> int:
    """Return the packed offset of entry `ms-seq`.

    Raises AddressError if seq is not in 0..MAX_SEQUENCE or the offset would not fit int64.
    """
    if not 0 <= seq <= MAX_SEQUENCE:
        raise AddressError(f"sequence {seq} is not in 0..{MAX_SEQUENCE}")
    if not 0 <= ms <= MAX_MS:
        raise AddressError(f"{ms} ms is not in 0..{MAX_MS}")
    return ms << SEQUENCE_BITS | seq


def unpack(offset: int) -> tuple[int, int]:
    """Return (ms, seq) of a packed offset; the inverse of `pack`. Raises AddressError outside 0..2^63-1."""
    _check_offset(offset)
    return offset >> SEQUENCE_BITS, offset & MAX_SEQUENCE


def entry_id(offset: int, bias: int = 0) -> str:
    """Return the entry ID, "ms-seq", under which `offset` is stored.

    bias is 1 on a dense topic, else 0. Raises AddressError outside 0..2^63-1.
    """
    _check_offset(offset)
    packed = offset + bias
    return f"{packed >> SEQUENCE_BITS}-{packed & MAX_SEQUENCE}"


def offset_of(entry_id: str | bytes, bias: int = 0) -> int:
    """Return the offset stored under `entry_id` ("ms-seq"); the exact inverse of the function entry_id.

    Raises AddressError if the ID is malformed or names no offset: a sequence above MAX_SEQUENCE, as `XADD
    *` assigns under load, an offset beyond int64, or 0-0 on a dense topic.
    """
    ms, seq = id_parts(entry_id)
    if seq > MAX_SEQUENCE:
        raise AddressError(f"entry {ms}-{seq} has a sequence above {MAX_SEQUENCE} and so no offset")
    offset = (ms << SEQUENCE_BITS | seq) - bias
    _check_offset(offset)
    return offset


def offset_after(entry_id: str | bytes, bias: int = 0) -> int:
    """Return the lowest offset that an entry after `entry_id` can have. It may exceed MAX_OFFSET.

    Redis refuses to add the entry 0-0, so 0-0 is the position before all entries, and offset 0 follows it.
    Raises AddressError if the ID is malformed.
    """
    ms, seq = id_parts(entry_id)
    if ms == seq == 0:
        return 0
    return (ms << SEQUENCE_BITS) + min(seq, MAX_SEQUENCE) + 1 - bias


def id_parts(entry_id: str | bytes) -> tuple[int, int]:
    """Return (ms, sequence) of an entry ID. Raises AddressError if it is malformed."""
    text = entry_id if isinstance(entry_id, bytes) else entry_id.encode("ascii", "replace")
    left, _, right = text.partition(b"-")
    is_number = left.isdigit() and right.isdigit()
    if not is_number or len(left) > _PART_DIGITS or len(right) > _PART_DIGITS:
        shown = text[:64].decode("ascii", "replace")
        raise AddressError(f"{shown!r} is not an entry ID of the form ms-seq")
    ms, seq = int(left), int(right)
    if ms > MAX_ENTRY_ID_PART or seq > MAX_ENTRY_ID_PART:
        raise AddressError(f"entry ID {text.decode()} does not fit two unsigned 64 bit numbers")
    return ms, seq


def _check_offset(offset: int) -> None:
    if not 0 <= offset <= MAX_OFFSET:
        raise AddressError(f"offset {offset} is not in 0..{MAX_OFFSET}")
