"""What keys hold, and the database that maps keys to values. Expiry uses the time that the server sets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections import deque

    from robustness.simulation.redis.streams import Stream

T = TypeVar("T")
Hash: TypeAlias = dict[bytes, bytes]
Score: TypeAlias = float


class Fault(Exception):
    """An error reply, with its code as the first word."""


class Status(bytes):
    """A status reply, as +OK."""


OK: Final = Status(b"OK")
WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
SYNTAX_ERROR: Final = "ERR syntax error"
NO_INTEGER: Final = "ERR value is not an integer or out of range"


class SortedSet:
    """Members by score; equal scores are ordered by member."""

    __slots__ = ("_ordered", "scores")

    def __init__(self) -> None:
        self.scores: dict[bytes, Score] = {}
        self._ordered: list[tuple[Score, bytes]] = []

    def __len__(self) -> int:
        return len(self.scores)

    def copy(self) -> SortedSet:
        """An independent copy."""
        found = SortedSet()
        found.scores, found._ordered = dict(self.scores), list(self._ordered)
        return found

    def add(self, member: bytes, score: Score) -> bool:
        """Set a member's score. Returns whether the member is new."""
        is_new = not self.remove(member)
        self.scores[member] = score
        insort(self._ordered, (score, member))
        return is_new

    def remove(self, member: bytes) -> bool:
        """Returns whether the member was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self._ordered[bisect_left(self._ordered, (score, member))]
        return True

    def rank(self, member: bytes) -> int | None:
        """The number of members before this one; None if it is not there."""
        score = self.scores.get(member)
        return None if score is None else bisect_left(self._ordered, (score, member))

    def by_rank(self, first: int, last: int) -> list[tuple[Score, bytes]]:
        """Members of ranks first to last; negative ranks count from the end."""
        count = len(self._ordered)
        first = max(first + count, 0) if first < 0 else first
        last = last + count if last < 0 else last
        return self._ordered[first : last + 1] if last >= first else []

    def by_score(self, lowest: bytes, highest: bytes) -> list[tuple[Score, bytes]]:
        """Members with scores between two bounds as of ZRANGEBYSCORE."""
        low, above = _bound(lowest)
        high, below = _bound(highest)
        first = (bisect_right if above else bisect_left)(self._ordered, low, key=_score_of)
        last = (bisect_left if below else bisect_right)(self._ordered, high, key=_score_of)
        return self._ordered[first:last]


def _score_of(entry: tuple[Score, bytes]) -> Score:
    return entry[0]


def _bound(text: bytes) -> tuple[Score, bool]:
    """The score of a bound, and whether it is excluded."""
    try:
        return (float(text[1:]), True) if text.startswith(b"(") else (float(text), False)
    except ValueError:
        raise Fault("ERR min or max is not a float") from None


Value: TypeAlias = "bytes | Hash | deque[bytes] | set[bytes] | SortedSet | Stream"


class Database:
    """All keys of one server."""

    __slots__ = ("_values", "expiries", "now_ms", "now_us")

    def __init__(self) -> None:
        self._values: dict[bytes, Value] = {}
        self.expiries: dict[bytes, int] = {}
        self.now_us = 0
        """The time of the command in progress, in microseconds since the epoch."""
        self.now_ms = 0

    def set_time(self, now_us: int) -> None:
        """Begin a command at this time."""
        self.now_us, self.now_ms = now_us, now_us // 1000
        if self.expiries:
            for key in [key for key, expiry_ms in self.expiries.items() if expiry_ms <= self.now_ms]:
                self.delete(key)

    def copy(self) -> Database:
        """An independent copy, as a replica gets it."""
        found = Database()
        found.expiries = dict(self.expiries)
        for key, value in self._values.items():
            found._values[key] = value if isinstance(value, bytes) else value.copy()
        return found

    def keys(self) -> list[bytes]:
        """The names of all keys."""
        return list(self._values)

    def any(self, key: bytes) -> Value | None:
        """The value of a key of any type; None if there is no such key."""
        return self._values.get(key)

    def get(self, key: bytes, kind: type[T]) -> T | None:
        """The value of a key; None if there is no such key. Raises Fault if it is of another type."""
        found = self._values.get(key)
        if found is None or isinstance(found, kind):
            return found
        raise Fault(WRONG_TYPE)

    def obtain(self, key: bytes, kind: type[T]) -> T:
        """The value of a key; makes an empty one if there is no such key. Raises Fault as `get` does."""
        found = self.get(key, kind)
        if found is None:
            found = kind()
            self._values[key] = found  # type: ignore[assignment]
        return found

    def put(self, key: bytes, value: Value) -> None:
        """Set a key."""
        self._values[key] = value

    def delete(self, key: bytes) -> bool:
        """Returns whether the key existed."""
        self.expiries.pop(key, None)
        return self._values.pop(key, None) is not None

    def drop_if_empty(self, key: bytes, value: Hash | deque[bytes] | set[bytes] | SortedSet) -> None:
        """Delete a key whose last element is gone."""
        if not value:
            self.delete(key)

    def rename(self, key: bytes, new: bytes) -> None:
        """Rename a key. Raises Fault if there is no such key."""
        value = self._values.get(key)
        if value is None:
            raise Fault("ERR no such key")
        expiry_ms = self.expiries.get(key)
        self.delete(key)
        self.delete(new)
        self._values[new] = value
        if expiry_ms is not None:
            self.expiries[new] = expiry_ms


def integer_of(text: bytes) -> int:
    """The integer of an argument. Raises Fault."""
    try:
        return int(text)
    except ValueError:
        raise Fault(NO_INTEGER) from None


def text_of_score(score: Score) -> bytes:
    """A score as Redis writes it."""
    return b"%d" % score if score == int(score) else repr(score).encode()
