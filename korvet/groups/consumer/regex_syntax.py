"""RE2's syntax of regular expressions: a pattern becomes an automaton."""

from __future__ import annotations

from typing import Final

from korvet.groups.consumer.automaton import (
    DIGITS,
    LOWER,
    UPPER,
    WORD,
    Chars,
    InvalidRegex,
    Program,
    Range,
)

_MOST_REPETITIONS: Final = 1_000  # as RE2's
_DEEPEST: Final = 100  # nesting depth of parentheses
_PUNCTUATION: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_POSIX: Final = {
    "alnum": DIGITS | UPPER | LOWER,
    "alpha": UPPER | LOWER,
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset(" \t"),
    "cntrl": frozenset(map(chr, (*range(32), 127))),
    "digit": DIGITS,
    "graph": WORD | _PUNCTUATION,
    "lower": LOWER,
    "print": WORD | _PUNCTUATION | {" "},
    "punct": _PUNCTUATION,
    "space": frozenset(" \t\n\r\f\v"),
    "upper": UPPER,
    "word": WORD,
    "xdigit": DIGITS | frozenset("abcdefABCDEF"),
}
_SHORT: Final = {"d": DIGITS, "w": WORD, "s": frozenset(" \t\n\r\f")}
_CONTROL: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ASSERTIONS: Final = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}


class Parser:
    """Parses an expression into a program; a part is given by its first state and its last one."""

    def __init__(self, pattern: str, program: Program) -> None:
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
        """The text up to `\\E` is parsed next, with its special characters escaped: an operator after it
        repeats its last character only.
        """
        text, _, rest = self._pattern[self._at :].partition("\\E")
        plain = "".join(f"\\{char}" if char.isascii() and not char.isalnum() else char for char in text)
        self._pattern = self._pattern[: self._at] + plain + rest
        alone = self._program.state()
        return alone, alone

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
        ranges: list[Range] = []
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
