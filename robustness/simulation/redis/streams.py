"""A stream and its consumer groups, as Redis keeps them, without replies and arguments.

The rules of `entries_read` and `lag` are those of Redis 7 (`t_stream.c`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final, TypeAlias

Id: TypeAlias = tuple[int, int]
LOWEST: Final[Id] = (0, 0)
HIGHEST: Final[Id] = (2**64 - 1, 2**64 - 1)
# The number of entries that a group has read, if Redis does not know it.
UNKNOWN: Final = -1


class Pending:
    """One pending entry of a consumer."""

    __slots__ = ("consumer", "delivered_ms", "deliveries")

    def __init__(self, consumer: bytes, delivered_ms: int, deliveries: int) -> None:
        self.consumer = consumer
        self.delivered_ms = delivered_ms
        self.deliveries = deliveries


class Group:
    """A consumer group."""

    __slots__ = ("consumers", "last_id", "pending", "read")

    def __init__(self, last_id: Id, read: int) -> None:
        self.last_id = last_id
        self.read = read
        """Entries read, or UNKNOWN."""
        self.pending: dict[Id, Pending] = {}
        self.consumers: dict[bytes, list[int]] = {}
        """Consumer -> time it was last seen, time of its last successful read (-1: never), in ms."""

    def copy(self) -> Group:
        """An independent copy."""
        found = Group(self.last_id, self.read)
        found.pending = {
            entry: Pending(each.consumer, each.delivered_ms, each.deliveries)
            for entry, each in self.pending.items()
        }
        found.consumers = {name: list(times) for name, times in self.consumers.items()}
        return found


class Stream:
    """Entries in the order of their IDs."""

    __slots__ = ("added", "deleted_id", "fields", "groups", "ids", "last_id")

    def __init__(self) -> None:
        self.ids: list[Id] = []
        self.fields: dict[Id, list[bytes]] = {}
        self.last_id = LOWEST
        self.deleted_id = LOWEST
        """The newest entry that XDEL deleted."""
        self.added = 0
        self.groups: dict[bytes, Group] = {}

    def copy(self) -> Stream:
        """An independent copy. Fields of entries never change, so the copies share them."""
        found = Stream()
        found.ids, found.fields = list(self.ids), dict(self.fields)
        found.last_id, found.deleted_id, found.added = self.last_id, self.deleted_id, self.added
        found.groups = {name: group.copy() for name, group in self.groups.items()}
        return found

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def first_id(self) -> Id:
        """The first entry; 0-0 if there is none."""
        return self.ids[0] if self.ids else LOWEST

    def append(self, entry: Id, fields: list[bytes]) -> None:
        """Add an entry, whose ID is larger than the last one."""
        self.ids.append(entry)
        self.fields[entry] = fields
        self.last_id = entry
        self.added += 1

    def between(self, first: Id, last: Id, count: int = -1) -> list[Id]:
        """The IDs from first to last, at most `count` (-1: all)."""
        begin, end = bisect_left(self.ids, first), bisect_right(self.ids, last)
        return self.ids[begin : end if count < 0 else min(end, begin + count)]

    def delete(self, entry: Id) -> bool:
        """Delete an entry (XDEL). Returns whether it was there."""
        if self.fields.pop(entry, None) is None:
            return False
        del self.ids[bisect_left(self.ids, entry)]
        self.deleted_id = max(self.deleted_id, entry)
        return True

    def trim(self, count: int) -> int:
        """Remove the first `count` entries."""
        for entry in self.ids[:count]:
            del self.fields[entry]
        del self.ids[:count]
        return count

    def has_tombstone(self, after: Id) -> bool:
        """Whether an entry from `after` on may have been deleted with XDEL, so that counts are uncertain."""
        if not self.ids or self.deleted_id == LOWEST or self.first_id > self.deleted_id:
            return False
        return after <= self.deleted_id

    def distance(self, entry: Id) -> int:
        """The number of entries ever added up to `entry`; UNKNOWN if that cannot be determined."""
        if not self.added:
            return 0
        if not self.ids and entry <= self.last_id:
            return self.added
        if LOWEST < entry < self.deleted_id:
            return UNKNOWN
        if entry >= self.last_id:
            return self.added if entry == self.last_id else UNKNOWN
        if (self.deleted_id == LOWEST or self.deleted_id < self.first_id) and entry <= self.first_id:
            return self.added - len(self.ids) + (entry == self.first_id)
        return UNKNOWN

    def lag(self, group: Group) -> int | None:
        """The entries that the group has not read; None if that cannot be determined."""
        if not self.added:
            return 0
        if group.read != UNKNOWN and not self.has_tombstone(group.last_id):
            return self.added - group.read
        read = self.distance(group.last_id)
        return None if read == UNKNOWN else self.added - read

    def advance(self, group: Group, entry: Id) -> None:
        """The group has read an entry."""
        if entry <= group.last_id:
            return
        known = group.read != UNKNOWN and group.last_id >= self.first_id
        if known and not self.has_tombstone(group.last_id):
            group.read += 1
        elif self.added:
            group.read = self.distance(entry)
        group.last_id = entry


def text_of(entry: Id) -> bytes:
    """An ID as text."""
    return b"%d-%d" % entry


def parse(text: bytes, sequence: int = 0) -> Id:
    """The ID of a text; `sequence` if the text has none. Raises ValueError."""
    first, dash, second = text.partition(b"-")
    if not first.isdigit() or (dash and not second.isdigit()):
        raise ValueError("Invalid stream ID specified as stream command argument")
    return int(first), int(second) if dash else sequence


def after(entry: Id) -> Id:
    """The next ID."""
    return (entry[0], entry[1] + 1) if entry[1] < HIGHEST[1] else (entry[0] + 1, 0)


def before(entry: Id) -> Id:
    """The previous ID."""
    return (entry[0], entry[1] - 1) if entry[1] else (entry[0] - 1, HIGHEST[1])
