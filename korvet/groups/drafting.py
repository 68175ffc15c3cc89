"""The changes of one request to a group of the newer protocols: records, and the group after their replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from korvet.groups.messages import Record
    from korvet.offsets.schema import Key, Value


class Replayed(Protocol):
    """A group that changes by replay of its records."""

    group_id: str

    def copy(self) -> Self:
        """A copy that changes independently."""

    def replay(self, key: Key, value: Value | None) -> None:
        """Apply a record of this group."""


_Group = TypeVar("_Group", bound=Replayed)


class Drafting(Generic[_Group]):
    """`group` is the current group until the first record is written, then a copy that is ahead of it."""

    def __init__(self, group: _Group, records: list[Record] | None = None) -> None:
        """records: earlier records of the request, which precede a group that does not exist yet."""
        self.group = group
        self.records: list[Record] = [] if records is None else records
        self._is_copy = records is not None

    def write(self, key: Key, value: Value | None) -> None:
        """Add a record."""
        if not self._is_copy:
            self.group = self.group.copy()
            self._is_copy = True
        self.records.append((key, value))
        self.group.replay(key, value)
