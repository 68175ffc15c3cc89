"""Acknowledgement batches of requests as ranges with types (KIP-932, KIP-1222). No I/O."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Protocol

from korvet.redis_groups.share import Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RENEW: Final = 4
"""The lock of the record begins again."""
RELEASE: Final = b"2"
"""The type of a range of records that can be acquired again."""
RENEWAL: Final = b"4"
"""The type in a range of records whose locks begin again."""
_DIGITS: Final = b"01234"


# Runs of records that are archived for certain, and of those that may be.
_REJECTED: Final = re.compile(rb"[03]+")
_NOT_ACCEPTED: Final = re.compile(rb"[023]+")


class InvalidAcknowledgement(Exception):
    """An acknowledgement that no client may send: INVALID_REQUEST."""


class Batch(Protocol):
    """An AcknowledgementBatch of ShareFetch or ShareAcknowledge."""

    first_offset: int
    last_offset: int
    acknowledge_types: tuple[int, ...]


def acknowledged_ranges(batches: Sequence[Batch], *, may_renew: bool) -> list[Range]:
    """The ranges of one partition, in order; the first offset of one may be the last one of the range before.
    Raises InvalidAcknowledgement.
    """
    ranges: list[Range] = []
    end = -1
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if first > last:
            raise InvalidAcknowledgement(f"The batch from offset {first} to {last} ends before it begins")
        if first < end:
            raise InvalidAcknowledgement(f"The batch from offset {first} begins before the last one ends")
        if len(types) not in (1, last - first + 1):
            raise InvalidAcknowledgement(f"The batch from offset {first} to {last} has {len(types)} types")
        if any(not 0 <= each <= RENEW for each in types):
            raise InvalidAcknowledgement("Unknown acknowledge type")
        if not may_renew and RENEW in types:
            raise InvalidAcknowledgement("Acknowledgements of the type renew are not allowed here")
        ranges.append(Range(first, last, bytes(_DIGITS[each] for each in types)))
        end = last
    return ranges


def given_up_ranges(ranges: Iterable[Range], *, released: bool) -> list[tuple[int, int]]:
    """The first and last offsets of what was rejected, and gaps, in acknowledgements that were applied.
    released: with what was released, because some of it was archived instead.
    """
    pattern = _NOT_ACCEPTED if released else _REJECTED
    found: list[tuple[int, int]] = []
    for first, last, types in ranges:
        if len(types) == 1:
            if pattern.match(types):
                found.append((first, last))
        elif types.strip(b"1"):
            found += ((first + run.start(), first + run.end() - 1) for run in pattern.finditer(types))
    return found


def is_repeated(ranges: Sequence[Range]) -> bool:
    """Whether two ranges have an offset in common."""
    return any(one.last == following.first for one, following in pairwise(ranges))
