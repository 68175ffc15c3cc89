"""Which groups have records that are not safe yet: not in the log, or on too few replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.offsets.schema import OffsetCommitKey, UnknownKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.groups.messages import Record


class UnsafeGroups:
    """Counts the unsafe records of each group: those of its committed offsets apart from all others."""

    __slots__ = ("_offsets", "_others")

    def __init__(self) -> None:
        self._offsets: dict[str, int] = {}
        self._others: dict[str, int] = {}

    def has_offsets(self, group_id: str) -> bool:
        """Whether a group has unsafe records of offsets."""
        return group_id in self._offsets

    def has_others(self, group_id: str) -> bool:
        """Whether a group has other unsafe records: those of its members and assignments."""
        return group_id in self._others

    def add(self, records: Iterable[Record]) -> None:
        """Count records that have been replayed."""
        self._change_all(records, 1)

    def remove(self, records: Iterable[Record]) -> None:
        """Stop counting records, which are safe now."""
        self._change_all(records, -1)

    def add_offset(self, group_id: str) -> None:
        """Count an offset that a transaction's marker has committed."""
        _change(self._offsets, group_id, 1)

    def remove_offset(self, group_id: str) -> None:
        """Stop counting such an offset: the marker is safe now."""
        _change(self._offsets, group_id, -1)

    def _change_all(self, records: Iterable[Record], by: int) -> None:
        for key, _ in records:
            if isinstance(key, OffsetCommitKey):
                _change(self._offsets, key.group, by)
            elif not isinstance(key, UnknownKey):
                _change(self._others, key.group, by)


def _change(counts: dict[str, int], group_id: str, by: int) -> None:
    count = counts.get(group_id, 0) + by
    if count:
        counts[group_id] = count
    else:
        del counts[group_id]
