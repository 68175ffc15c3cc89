"""The changes of one stream's Redis groups that wait for their turn, or are on their way to Redis."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.redis_groups.projection import GroupCommit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.groups.offset_table import GroupTopicPartition

# Limits the changes of one call: each takes Redis about 10 us, and up to ten times that if records must be
# counted.
CHANGES_AT_ONCE: Final = 64


class CommitChange(msgspec.Struct, frozen=True, gc=False):
    """The effect of the record at `position` of `__consumer_offsets` on a committed offset; the offset None
    deletes it.

    force: destroy the Redis group even if native consumers use it. native: the Redis group's own position, as
    an offset, if the commit was read from that group. restored: the commit was read from the log, which does
    not record `native`.
    """

    group: str
    topic: str
    partition: int
    position: int
    offset: int | None
    force: bool = True
    native: int | None = None
    restored: bool = False

    @property
    def place(self) -> GroupTopicPartition:
        """The group and the partition."""
        return self.group, self.topic, self.partition


class Entry:
    """A waiting change, the newest of those that it replaces, and the callbacks of all of them.

    earliest: the offset of the first of these commits; None if a later one went back. is_lost: a failover has
    lost the record; the change is not tried again.
    """

    __slots__ = ("change", "earliest", "finished", "is_lost")

    def __init__(self, change: CommitChange, finished: Callable[[], None]) -> None:
        self.change = change
        self.earliest = change.offset
        self.finished = [finished]
        self.is_lost = False

    @property
    def is_drop(self) -> bool:
        return self.change.offset is None

    def join(self, change: CommitChange, finished: Callable[[], None]) -> None:
        """Replace the commit by a later one of the same group and partition."""
        self.finished.append(finished)
        if change.position > self.change.position:
            assert change.offset is not None
            assert self.change.offset is not None
            if change.offset < self.change.offset:
                self.earliest = None
            self.change = change

    def as_commit(self) -> GroupCommit:
        """The change to project."""
        change = self.change
        assert change.offset is not None
        return GroupCommit(
            change.group, change.position, change.offset, self.earliest, change.native, change.restored
        )

    def finish(self) -> None:
        """Call all callbacks."""
        for finished in self.finished:
            finished()


class Lane:
    """The changes of one stream: in flight, and waiting."""

    __slots__ = ("joinable", "taken", "waiting")

    def __init__(self) -> None:
        self.taken: list[Entry] = []
        self.waiting: deque[Entry] = deque()
        # By group: the waiting commit that a later commit joins; none if a deletion follows it.
        self.joinable: dict[str, Entry] = {}

    def add(self, change: CommitChange, finished: Callable[[], None]) -> None:
        """Add a change to the waiting ones."""
        joined = self.joinable.get(change.group)
        if change.offset is None:
            self.joinable.pop(change.group, None)
            self.waiting.append(Entry(change, finished))
        elif joined is not None:
            joined.join(change, finished)
        else:
            entry = self.joinable[change.group] = Entry(change, finished)
            self.waiting.append(entry)

    def take(self) -> list[Entry]:
        """The first changes, either all commits or all deletions, at most CHANGES_AT_ONCE."""
        waiting = self.waiting
        taken: list[Entry] = []
        kind = waiting[0].is_drop
        while waiting and waiting[0].is_drop == kind and len(taken) < CHANGES_AT_ONCE:
            entry = waiting.popleft()
            taken.append(entry)
            self._close(entry)
        self.taken = taken
        return taken

    def drop_overtaken(self, group: str, position: int) -> list[Entry]:
        """Remove the commits of a group that precede a deletion: they must not restore it."""
        overtaken = [
            entry
            for entry in self.waiting
            if entry.change.group == group and not entry.is_drop and entry.change.position <= position
        ]
        self._remove(overtaken)
        return overtaken

    def lose(self, is_lost: Callable[[CommitChange], bool]) -> list[Entry]:
        """Note the changes in flight that a failover has lost, and remove the waiting ones."""
        for entry in self.taken:
            entry.is_lost |= is_lost(entry.change)
        lost = [entry for entry in self.waiting if is_lost(entry.change)]
        self._remove(lost)
        return lost

    def _remove(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.waiting.remove(entry)
            self._close(entry)

    def _close(self, entry: Entry) -> None:
        """Later commits do not join this one."""
        if self.joinable.get(entry.change.group) is entry:
            del self.joinable[entry.change.group]
