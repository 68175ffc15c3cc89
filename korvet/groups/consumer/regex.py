"""Regular expressions of subscriptions, in the syntax of RE2 as far as Python's `re` has the same.

What RE2 does not know (looking around, references to groups, possessive and atomic groups) is refused, as
Kafka does, and what only RE2 knows is translated where topic names can tell the difference.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_CACHED_PATTERNS: Final = 1_000
_MOST_REPETITIONS: Final = 1_000
_POSIX: Final = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7F",
    "digit": "0-9",
    "lower": "a-z",
    "punct": "!-/:-@\\[-`{-~",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_GROUPS: Final = re.compile(r"\(\?(?:P?<([A-Za-z_]\w*)>|([imsU]*(?:-[imsU]+)?)([:)]))")
_REPEAT: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_ESCAPES: Final = frozenset("AbBdDfnrsStvwWx")
_CODE: Final = re.compile(r"\\x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,6})\})")


class InvalidRegex(ValueError):
    """A regular expression that RE2 would not take, or that we can't translate; the message says why."""


@lru_cache(_CACHED_PATTERNS)
def compile_regex(pattern: str) -> re.Pattern[str]:
    """The pattern, to be matched with `fullmatch`. Raises InvalidRegex."""
    try:
        return re.compile(_Translation(pattern).run(), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidRegex(str(error)) from error


class _Translation:
    """One walk through a pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._out: list[str] = []
        self._repeated = False  # the last element has an operator of repetition behind it

    def run(self) -> str:
        pattern = self._pattern
        while self._at < len(pattern):
            char = pattern[self._at]
            if char == "\\":
                self._put(self._escape(inside=False))
            elif char == "[":
                self._put(self._class())
            elif char == "(":
                self._put(self._group())
            elif char in "*+?" or (char == "{" and _REPEAT.match(pattern, self._at)):
                self._repetition()
            else:
                self._at += 1
                self._put("\\{" if char == "{" else char)
        return "".join(self._out)

    def _put(self, text: str) -> None:
        self._out.append(text)
        self._repeated = False

    def _repetition(self) -> None:
        bounds = _REPEAT.match(self._pattern, self._at)
        text = bounds.group() if bounds else self._pattern[self._at]
        if self._repeated:
            raise InvalidRegex(f"invalid nested repetition operator: `{text}`")
        if bounds and max(int(number or 0) for number in bounds.groups()) > _MOST_REPETITIONS:
            raise InvalidRegex(f"bad repetition operator: `{text}`")
        self._at += len(text)
        if self._pattern.startswith("?", self._at):
            self._at += 1
            text += "?"
        self._out.append(text)
        self._repeated = True

    def _group(self) -> str:
        if not self._pattern.startswith("(?", self._at):
            self._at += 1
            return "("
        found = _GROUPS.match(self._pattern, self._at)
        if found is None:
            raise InvalidRegex(
                f"invalid or unsupported Perl syntax: `{self._pattern[self._at : self._at + 4]}`"
            )
        self._at = found.end()
        name, flags, end = found.groups()
        if name is not None:
            return f"(?P<{name}>"
        if "U" in flags:
            raise InvalidRegex("the flag U is not supported")
        if end == ")" and (self._out or "-" in flags):
            # RE2 lets flags begin anywhere; `re` at the start only.
            raise InvalidRegex("flags in the middle of an expression are not supported")
        return f"(?{flags}{end}"

    def _escape(self, *, inside: bool) -> str:
        pattern, start = self._pattern, self._at
        char = pattern[start + 1 : start + 2]
        self._at += 2
        if char == "Q" and not inside:
            end = pattern.find("\\E", self._at)
            quoted = pattern[self._at :] if end < 0 else pattern[self._at : end]
            self._at = len(pattern) if end < 0 else end + 2
            return re.escape(quoted)
        if char == "z" and not inside:
            return "\\Z"
        if char == "x":
            code = _CODE.match(pattern, start)
            if code is None or int(code[1] or code[2], 16) > 0x10FFFF:
                raise InvalidRegex(f"invalid escape sequence: `{pattern[start : start + 4]}`")
            self._at = code.end()
            return re.escape(chr(int(code[1] or code[2], 16)))
        if not char or (char.isalnum() and (char not in _ESCAPES or (inside and char in "AbB"))):
            raise InvalidRegex(f"invalid escape sequence: `\\{char}`")
        return f"\\{char}"

    def _class(self) -> str:
        """A bracket expression; `[` has no meaning within one but for POSIX names."""
        pattern, out = self._pattern, ["["]
        self._at += 1
        if pattern.startswith("^", self._at):
            out.append("^")
            self._at += 1
        first = True
        while first or not pattern.startswith("]", self._at):
            if self._at >= len(pattern):
                raise InvalidRegex(f"missing closing ]: `{pattern}`")
            char = pattern[self._at]
            if char == "\\":
                out.append(self._escape(inside=True))
            elif pattern.startswith("[:", self._at) and (end := pattern.find(":]", self._at)) > 0:
                out.append(self._posix(pattern[self._at + 2 : end]))
                self._at = end + 2
            else:
                out.append(f"\\{char}" if char in "[]&~|" else char)
                self._at += 1
            first = False
        self._at += 1
        return "".join((*out, "]"))

    @staticmethod
    def _posix(name: str) -> str:
        if name not in _POSIX:
            raise InvalidRegex(f"invalid character class range: `[:{name}:]`")
        return _POSIX[name]
