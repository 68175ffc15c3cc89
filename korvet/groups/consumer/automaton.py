"""Nondeterministic automata of regular expressions: states, and transitions by sets of characters."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, TypeAlias

_MOST_STATES: Final = 10_000
DIGITS: Final = frozenset("0123456789")
UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
LOWER: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
WORD: Final = DIGITS | UPPER | LOWER | {"_"}
LAST_CHAR: Final = chr(0x10FFFF)
Range: TypeAlias = tuple[str, str]
"""The first character and the last one."""


class InvalidRegex(ValueError):
    """An expression that RE2 would refuse, or that is too large; the message is the reason."""


class Chars:
    """A set of characters and ranges; with `negated`, all others."""

    __slots__ = ("chars", "negated", "ranges")

    def __init__(
        self, chars: frozenset[str], ranges: tuple[Range, ...] = (), *, negated: bool = False
    ) -> None:
        """ranges: ranges of non-ASCII characters, which may be very long."""
        self.chars = chars
        self.ranges = _merged(ranges)
        self.negated = negated

    def __contains__(self, char: str) -> bool:
        found = char in self.chars
        if not found and self.ranges and char > "\x7f":
            at = bisect_right(self.ranges, (char, LAST_CHAR)) - 1
            found = at >= 0 and char <= self.ranges[at][1]
        return found is not self.negated

    def folded(self) -> Chars:
        """The set with the other case of every letter, except those of ranges."""
        both = {other for char in self.chars for other in (char, char.lower(), char.upper())}
        return Chars(frozenset(both), self.ranges, negated=self.negated)


def _merged(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """The same characters in ascending ranges that do not overlap."""
    merged: list[Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


class Program:
    """The automaton: each state has a transition by a character, free transitions, or transitions under
    an assertion.
    """

    def __init__(self) -> None:
        self.chars: list[Chars | None] = []
        self.nexts: list[list[int]] = []
        self.conditions: list[str | None] = []

    def state(self, chars: Chars | None = None, condition: str | None = None) -> int:
        if len(self.chars) >= _MOST_STATES:
            raise InvalidRegex("expression too large")
        self.chars.append(chars)
        self.conditions.append(condition)
        self.nexts.append([])
        return len(self.chars) - 1

    def copy(self, first: int, last: int) -> int:
        """Copy the states from `first` up to `last` with their transitions; returns the difference of
        their numbers.
        """
        shift = len(self.chars) - first
        for number in range(first, last):
            state = self.state(self.chars[number], self.conditions[number])
            self.nexts[state] = [each + shift for each in self.nexts[number] if first <= each < last]
        return shift


class Position:
    """The possible states of an automaton, and the character before the position, for assertions."""

    __slots__ = ("accepts", "before", "following", "states")

    def __init__(self, states: frozenset[int], before: str) -> None:
        self.states = states
        self.before = before
        self.accepts: bool | None = None
        """Whether the text up to here matches; None: not computed yet."""
        self.following: dict[str, Position] = {}
