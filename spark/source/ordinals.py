"""Counts the records before offsets of a partition, and reads the first record from each offset on.

The records between the offsets are not fetched: Redis counts from the nearest point of the index on
(ordinals.lua).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from korvet.offsets.packing import entry_id, offset_after
from korvet.spark.records.entries import columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import Extent

# Offsets that are asked for together: a few ms of Redis's time, or a few MB, if entries are large.
_AT_ONCE: Final = 8
# Entries of native clients after the index that the script counts.
_UNINDEXED: Final = 2000


@dataclass(frozen=True, slots=True)
class Ordinals:
    """The number of records before offsets, those included that are gone.

    end: the offset up to which the index counts. before: by offset.
    """

    end: int
    before: dict[int, int]


@cache
def _script() -> str:
    return resources.files("korvet.spark.source").joinpath("ordinals.lua").read_text("utf-8")


def ordinals(connection: SourceConnection, extent: Extent, offsets: Sequence[int]) -> Ordinals | None:
    """Return how many records precede offsets, which ascend from the log start on (EVAL_RO).

    None if only the entries tell: some at or after the first offset may be no records (markers, for example),
    or something changed the log or its index meanwhile, or Redis refuses the script: the user may not use it,
    the slot of its three keys is migrating, or the log's state is damaged.
    """
    keys = (extent.stream, extent.index, f"{{{extent.stream}}}:meta")
    before: list[int] = []
    states: set[bytes] = set()
    end = 0
    for at in range(0, len(offsets), _AT_ONCE):
        numbers = (extent.origin.bias, _UNINDEXED, *offsets[at : at + _AT_ONCE])
        try:
            (answer,) = connection.paced([("EVAL_RO", _script(), 3, *keys, *numbers)])
        except ResponseError:
            return None
        if not answer:
            return None
        state, last_id, *counted = answer
        end = end or offset_after(last_id, extent.origin.bias)
        states.add(state)
        before += counted
    return Ordinals(end, dict(zip(offsets, before, strict=True))) if len(states) == 1 else None


def first_records(
    connection: SourceConnection, extent: Extent, offsets: Sequence[int], end: int
) -> dict[int, tuple[int, int] | None] | None:
    """Return the offset and the timestamp in ms of the first record from each offset on, before `end`.

    None for an offset without one. None for all if an entry before `end` has no record.
    """
    found: dict[int, tuple[int, int] | None] = {}
    for at in range(0, len(offsets), _AT_ONCE):
        some = offsets[at : at + _AT_ONCE]
        bias = extent.origin.bias
        asked = [("XRANGE", extent.stream, entry_id(offset, bias), "+", "COUNT", 1) for offset in some]
        for offset, entries in zip(some, connection.paced(asked), strict=True):
            columns = columns_of(entries, extent.origin, offset, headers=False)
            if len(columns.offsets):
                first = int(columns.offsets[0])
                found[offset] = (first, int(columns.timestamps_ms[0])) if first < end else None
            elif entries and offset_after(entries[0][0], bias) <= end:
                return None
            else:
                found[offset] = None
    return found
