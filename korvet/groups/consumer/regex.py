"""Regular expressions of subscriptions and filters, in RE2's syntax and in time linear to the text.

Clients choose the expression, so with a backtracking engine (Python's `re`) one client could stop the broker.
Here an expression becomes a nondeterministic automaton. Matching keeps the set of possible states and caches
each set's successor. Syntax that RE2 lacks (lookaround, backreferences, possessive and atomic groups) is
refused, and so is an expression that takes too long with the given names: the automaton of `(.?){1000}` is in
a thousand states at each character.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from korvet.groups.consumer.automaton import WORD, InvalidRegex, Position, Program
from korvet.groups.consumer.regex_syntax import Parser

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_CACHED: Final = 32
# Limits the states and transitions in cached sets, some 100 bytes each: an expression may have very many
# sets.
_MOST_REMEMBERED: Final = 20_000
# Limits the states that one search visits, apart from cached sets: about a second. Expressions in use need a
# thousand, however many names there are.
_MOST_VISITS: Final = 1_000_000


class Regex:
    """A compiled expression."""

    def __init__(self, pattern: str) -> None:
        """Raises InvalidRegex."""
        self._program = Program()
        start, self._end = Parser(pattern, self._program).run()
        self._asserts = any(condition is not None for condition in self._program.conditions)
        self._start = Position(frozenset({start}), "")
        self._known: dict[tuple[frozenset[int], str], Position] = {}
        self._remembered = 0
        self._visits = 0

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Raises InvalidRegex if that takes too long."""
        return any(found is not None for found in self.select((text,)))

    def select(self, texts: Iterable[str]) -> Iterator[str | None]:
        """Yields the texts that match as a whole, and None after each slice of work, so that the caller
        may do something else. Raises InvalidRegex if all slices take too long.
        """
        left = _MOST_VISITS
        for text in texts:
            position = self._start
            for char in text:
                following = position.following.get(char)
                if following is None:
                    following = self._step(position, char)
                    left -= self._visits
                    if left < 0:
                        raise InvalidRegex("expression takes too long")
                    yield None
                position = following
            if position.accepts is None:
                position.accepts = self._end in self._reachable(position, "")
                left -= self._visits
            if position.accepts:
                yield text
            else:
                yield None

    def _step(self, position: Position, char: str) -> Position:
        program = self._program
        states = frozenset(
            following
            for state in self._reachable(position, char)
            if (chars := program.chars[state]) is not None and char in chars
            for following in program.nexts[state]
        )
        before = char if self._asserts else ""
        found = self._known.get((states, before))
        self._remembered += 1 if found is not None else len(states) + 2
        if self._remembered > _MOST_REMEMBERED:
            self._known.clear()
            self._start.following.clear()
            self._remembered, found = len(states) + 2, None
        if found is None:
            found = self._known[states, before] = Position(states, before)
        position.following[char] = found
        return found

    def _reachable(self, position: Position, after: str) -> set[int]:
        """The states reachable without another character, before this one ("" at the end)."""
        found = set(position.states)
        left = list(position.states)
        while left:
            state = left.pop()
            condition = self._program.conditions[state]
            if self._program.chars[state] is None and _holds(condition, position.before, after):
                more = [each for each in self._program.nexts[state] if each not in found]
                found.update(more)
                left += more
        self._visits = len(found)
        return found


def _holds(condition: str | None, before: str, after: str) -> bool:
    if condition is None:
        return True
    if condition in {"boundary", "inside"}:
        return ((before in WORD) is not (after in WORD)) is (condition == "boundary")
    side = before if condition in {"start", "line start"} else after
    return side == "" or (side == "\n" and condition.startswith("line"))


@lru_cache(_CACHED)
def compile_regex(pattern: str) -> Regex:
    """The expression. Raises InvalidRegex."""
    return Regex(pattern)
