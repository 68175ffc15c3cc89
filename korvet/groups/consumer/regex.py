"""Regular expressions of subscriptions and filters, in RE2's syntax and in time linear to the text.

Clients choose the expression, so with a backtracking engine (Python's `re`) one client could stop the broker.
Here an expression becomes a nondeterministic automaton. Matching keeps the set of possible states and caches
each set's successor. Syntax that RE2 lacks (lookaround, backreferences, possessive and atomic groups) is
refused, and so is an expression that takes too long with the given names: the automaton of `(.?){1000}` is in
a thousand states at each character.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_CACHED: Final = 32
_MOST_REPETITIONS: Final = 1_000  # as RE2's
_MOST_STATES: Final = 10_000
_DEEPEST: Final = 100  # nesting depth of parentheses
# Limits the states and transitions in cached sets, some 100 bytes each: an expression may have very many
# sets.
_MOST_REMEMBERED: Final = 20_000
# Limits the states that one search visits, apart from cached sets: about a second. Expressions in use need a
# thousand, however many names there are.
_MOST_VISITS: Final = 1_000_000

_DIGITS: Final = frozenset("0123456789")
_UPPER: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOWER: Final = frozenset("abcdefghijklmnopqrstuvwxyz")
_WORD: Final = _DIGITS | _UPPER | _LOWER | {"_"}
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_POSIX: Final = {
    "alnum": _DIGITS | _UPPER | _LOWER,
    "alpha": _UPPER | _LOWER,
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset(" \t"),
    "cntrl": frozenset(map(chr, (*range(32), 127))),
    "digit": _DIGITS,
    "graph": _WORD | _PUNCTUATION,
    "lower": _LOWER,
    "print": _WORD | _PUNCTUATION | {" "},
    "punct": _PUNCTUATION,
    "space": frozenset(" \t\n\r\f\v"),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": _DIGITS | frozenset("abcdefABCDEF"),
}
_SHORT: Final = {"d": _DIGITS, "w": _WORD, "s": frozenset(" \t\n\r\f")}
_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LAST_CHAR: Final = chr(0x10FFFF)
_Range: TypeAlias = tuple[str, str]
"""The first character and the last one."""
_ASSERTIONS: Final = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}


class InvalidRegex(ValueError):
    """An expression that RE2 would refuse, or that is too large; the message is the reason."""


class Chars:
    """A set of characters and ranges; with `negated`, all others."""

    __slots__ = ("chars", "negated", "ranges")

    def __init__(
        self, chars: frozenset[str], ranges: tuple[_Range, ...] = (), *, negated: bool = False
    ) -> None:
        """ranges: of non-ASCII characters, where a range may be very long."""
        self.chars = chars
        self.ranges = _merged(ranges)
        self.negated = negated

    def __contains__(self, char: str) -> bool:
        found = char in self.chars
        if not found and self.ranges and char > "\x7f":
            at = bisect_right(self.ranges, (char, _LAST_CHAR)) - 1
            found = at >= 0 and char <= self.ranges[at][1]
        return found is not self.negated

    def folded(self) -> Chars:
        """The set with the other case of every letter, except those of ranges."""
        both = {other for char in self.chars for other in (char, char.lower(), char.upper())}
        return Chars(frozenset(both), self.ranges, negated=self.negated)


def _merged(ranges: tuple[_Range, ...]) -> tuple[_Range, ...]:
    """The same characters in ascending ranges that do not overlap."""
    merged: list[_Range] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


class _Program:
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


class _Position:
    """The possible states of an automaton, and the character before the position, for assertions."""

    __slots__ = ("accepts", "before", "following", "states")

    def __init__(self, states: frozenset[int], before: str) -> None:
        self.states = states
        self.before = before
        self.accepts: bool | None = None
        """Whether the text up to here matches; None: not computed yet."""
        self.following: dict[str, _Position] = {}


class Regex:
    """A compiled expression."""

    def __init__(self, pattern: str) -> None:
        """Raises InvalidRegex."""
        self._program = _Program()
        start, self._end = _Parser(pattern, self._program).run()
        self._asserts = any(condition is not None for condition in self._program.conditions)
        self._start = _Position(frozenset({start}), "")
        self._known: dict[tuple[frozenset[int], str], _Position] = {}
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

    def _step(self, position: _Position, char: str) -> _Position:
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
            found = self._known[states, before] = _Position(states, before)
        position.following[char] = found
        return found

    def _reachable(self, position: _Position, after: str) -> set[int]:
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
        return ((before in _WORD) is not (after in _WORD)) is (condition == "boundary")
    side = before if condition in {"start", "line start"} else after
    return side == "" or (side == "\n" and condition.startswith("line"))


class _Parser:
    """Parses an expression into a program; a part is given by its first state and its last one."""

    def __init__(self, pattern: str, program: _Program) -> None:
        self._pattern = pattern
        self._at = 0
        self._program = program
        self._depth = 0
        self._ignore_case = self._multiline = self._dot_all = False

    def run(self) -> tuple[int, int]:
        part = self._alternatives()
        if self._at < len(self._pattern):
            raise InvalidRegex("unexpected )")
        return part

    def _next(self, text: str) -> bool:
        """Whether `text` comes next; if so, it is consumed."""
        found = self._pattern.startswith(text, self._at)
        self._at += len(text) if found else 0
        return found

    def _alternatives(self) -> tuple[int, int]:
        first, last = self._program.state(), -1
        ends = []
        while True:
            start, end = self._sequence()
            self._program.nexts[first].append(start)
            ends.append(end)
            if not self._next("|"):
                break
        last = self._program.state()
        for end in ends:
            self._program.nexts[end].append(last)
        return first, last

    def _sequence(self) -> tuple[int, int]:
        first = last = self._program.state()
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            begin = len(self._program.chars)
            part = self._repeated(begin, self._element())
            self._program.nexts[last].append(part[0])
            last = part[1]
        return first, last

    def _element(self) -> tuple[int, int]:
        char = self._pattern[self._at]
        if self._next("("):
            return self._group()
        if self._next("["):
            return self._one(self._class())
        if self._next("\\"):
            return self._escape()
        if char in "*+?":
            raise InvalidRegex(f"missing argument to repetition operator: `{char}`")
        self._at += 1
        if char == ".":
            return self._one(Chars(frozenset("" if self._dot_all else "\n"), negated=True))
        if char in "^$":
            name = "start" if char == "^" else "end"
            return self._assertion(f"line {name}" if self._multiline else name)
        return self._one(Chars(frozenset(char)))

    def _one(self, chars: Chars) -> tuple[int, int]:
        first = self._program.state(chars.folded() if self._ignore_case else chars)
        last = self._program.state()
        self._program.nexts[first].append(last)
        return first, last

    def _assertion(self, condition: str) -> tuple[int, int]:
        first, last = self._program.state(condition=condition), self._program.state()
        self._program.nexts[first].append(last)
        return first, last

    # Repetitions

    def _repeated(self, begin: int, part: tuple[int, int]) -> tuple[int, int]:
        """The element whose states begin at `begin`, with its repetition operator, if there is one."""
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._bounds(peek=True) is not None:
            raise InvalidRegex("invalid nested repetition operator")
        end = len(self._program.chars)
        least, most = bounds
        first = last = self._program.state()
        shift = 0
        for number in range(max(least, most if most is not None else least + 1, 1)):
            if number:
                shift = self._program.copy(begin, end)
            following = self._program.state()
            start = part[0] + shift
            self._program.nexts[last].append(start)
            self._program.nexts[part[1] + shift].append(following)
            if number >= least:
                self._program.nexts[last].append(following)
                if most is None:
                    self._program.nexts[following].append(start)
            last = following
        if most == 0:
            alone = self._program.state()
            return alone, alone
        return first, last

    def _bounds(self, *, peek: bool = False) -> tuple[int, int | None] | None:
        """The next repetition operator: minimum and maximum (None: no limit)."""
        at = self._at
        char = self._pattern[at : at + 1]
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found = simple.get(char)
        length = 1
        if char == "{":
            close = self._pattern.find("}", at)
            inner = self._pattern[at + 1 : close] if close > 0 else ""
            least, comma, most = inner.partition(",")
            if not _is_number(least) or (most and not _is_number(most)):
                return None
            found = int(least), (int(most) if most else None if comma else int(least))
            length = close - at + 1
            high = found[0] if found[1] is None else found[1]
            if max(found[0], high) > _MOST_REPETITIONS or high < found[0]:
                raise InvalidRegex(f"bad repetition operator: `{{{inner}}}`")
        if found is None or peek:
            return found
        self._at += length
        self._next("?")  # greediness does not change whether the whole text matches
        return found

    # Groups

    def _group(self) -> tuple[int, int]:
        flags = self._ignore_case, self._multiline, self._dot_all
        if self._next("?") and not self._opening():
            # Flags for the rest of the enclosing group.
            alone = self._program.state()
            return alone, alone
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InvalidRegex("expression nests too deeply")
        part = self._alternatives()
        self._depth -= 1
        if not self._next(")"):
            raise InvalidRegex("missing closing )")
        self._ignore_case, self._multiline, self._dot_all = flags
        return part

    def _opening(self) -> bool:
        """The text after `(?`: a name or flags. Returns whether a group begins; otherwise only flags
        change.
        """
        if self._next("P<") or self._next("<"):
            name, found, _ = self._pattern[self._at :].partition(">")
            if not found or not name.isidentifier() or not name.isascii():
                raise InvalidRegex("invalid named capture")
            self._at += len(name) + 1
            return True
        value = True
        while self._at < len(self._pattern):
            char = self._pattern[self._at]
            self._at += 1
            if char in ":)":
                return char == ":"
            if char == "-" and value:
                value = False
            elif char == "i":
                self._ignore_case = value
            elif char == "m":
                self._multiline = value
            elif char == "s":
                self._dot_all = value
            elif char != "U":  # which only changes greediness
                break
        raise InvalidRegex("invalid or unsupported Perl syntax: `(?`")

    # Characters

    def _escape(self) -> tuple[int, int]:
        char = self._pattern[self._at : self._at + 1]
        if self._next("Q"):
            return self._quoted()
        if char in _ASSERTIONS:
            self._at += 1
            return self._assertion(_ASSERTIONS[char])
        return self._one(self._escaped())

    def _quoted(self) -> tuple[int, int]:
        text, found, _ = self._pattern[self._at :].partition("\\E")
        self._at += len(text) + len(found)
        first = last = self._program.state()
        for char in text:
            start, end = self._one(Chars(frozenset(char)))
            self._program.nexts[last].append(start)
            last = end
        return first, last

    def _escaped(self) -> Chars:
        """The text after a backslash, outside of brackets or inside."""
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        if char.lower() in _SHORT:
            return Chars(_SHORT[char.lower()], negated=char.isupper())
        if char in _CONTROL:
            return Chars(frozenset(_CONTROL[char]))
        if char == "x":
            return Chars(frozenset(self._code()))
        if not char or char.isalnum() or not char.isascii():
            raise InvalidRegex(f"invalid escape sequence: `\\{char}`")
        return Chars(frozenset(char))

    def _code(self) -> str:
        digits = self._pattern[self._at : self._at + 2]
        length = 2
        if digits.startswith("{"):
            digits, _, _ = self._pattern[self._at + 1 :].partition("}")
            length = len(digits) + 2
        if not digits or not set(digits) <= _POSIX["xdigit"] or (length == 2 and len(digits) != 2):
            raise InvalidRegex("invalid escape sequence: `\\x`")
        if len(digits) > 8 or int(digits, 16) > 0x10FFFF:
            raise InvalidRegex("invalid escape sequence: `\\x`")
        self._at += length
        return chr(int(digits, 16))

    def _class(self) -> Chars:
        """A bracket expression, after its bracket."""
        negated = self._next("^")
        chars: set[str] = set()
        ranges: list[_Range] = []
        others: list[Chars] = []
        first = True
        while first or not self._next("]"):
            first = False
            if self._at >= len(self._pattern):
                raise InvalidRegex("missing closing ]")
            found = self._class_item()
            if found.negated:
                others.append(found)
                continue
            chars |= found.chars
            ranges += found.ranges
        if others:
            # All characters except those that every negated part excludes and no other part includes.
            out = frozenset.intersection(*(each.chars for each in others)) - chars
            return Chars(out, negated=not negated)
        return Chars(frozenset(chars), tuple(ranges), negated=negated)

    def _class_item(self) -> Chars:
        if self._next("[:"):
            name, found, _ = self._pattern[self._at :].partition(":]")
            self._at += len(name) + 2
            if not found or name.removeprefix("^") not in _POSIX:
                raise InvalidRegex(f"invalid character class range: `[:{name}`")
            return Chars(_POSIX[name.removeprefix("^")], negated=name.startswith("^"))
        low = self._class_char()
        is_range = self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)
        if not is_range:
            return low
        self._at += 1
        high = self._class_char()
        if low.negated or high.negated or len(low.chars) != 1 or len(high.chars) != 1:
            raise InvalidRegex("invalid character class range")
        (first,), (last,) = low.chars, high.chars
        if first > last:
            raise InvalidRegex(f"invalid character class range: `{first}-{last}`")
        plain = frozenset(map(chr, range(min(ord(first), 128), min(ord(last), 127) + 1)))
        return Chars(plain, ((max(first, "\x80"), last),) if last > "\x7f" else ())

    def _class_char(self) -> Chars:
        if self._next("\\"):
            return self._escaped()
        char = self._pattern[self._at : self._at + 1]
        if not char:
            raise InvalidRegex("missing closing ]")
        self._at += 1
        return Chars(frozenset(char))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


@lru_cache(_CACHED)
def compile_regex(pattern: str) -> Regex:
    """The expression. Raises InvalidRegex."""
    return Regex(pattern)
