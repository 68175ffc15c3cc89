"""The words for the status of consumer groups, and which of them follow from offsets alone.

The history of commits decides on the others: korvet.spark.tables.health has the rules.
"""

from collections.abc import Collection
from typing import Final

OK, AHEAD, LOST = "OK", "AHEAD", "LOST"
STATUSES: Final = (
    OK,
    "UNKNOWN",
    "BEHIND",
    "UNCOMMITTED",
    "WARNING",
    "STOPPED",
    "STALLED",
    "REWIND",
    AHEAD,
    LOST,
)
"""The statuses of a partition, worst last. A group has the status of its worst partition."""
# The worst status that history can give.
_WORST_OF_HISTORY: Final = STATUSES.index("REWIND")


def status_of_offsets(
    committed_offset: int, start_offset: int, end_offset: int, known_from: int | None, *, is_read: bool
) -> str | None:
    """Return the status of a partition; None if its history decides, or if it isn't known whether records
    were lost.

    known_from: every offset from it to the log start was a record; None if that isn't known. is_read: whether
    nothing is unread.
    """
    if committed_offset < start_offset:
        if known_from is None:
            return None
        if committed_offset >= known_from:
            return LOST
    if committed_offset > end_offset:
        return AHEAD
    return OK if is_read else None


def worst_status(statuses: Collection[str | None]) -> str | None:
    """Return the status of a group with partitions of these statuses; None if history decides, or if it has
    none.
    """
    worst = max((STATUSES.index(each) for each in statuses if each is not None), default=None)
    if worst is None or (None in statuses and worst <= _WORST_OF_HISTORY):
        return None
    return STATUSES[worst]
