"""Java properties, the files of Kafka's clients and tools: read as java.util.Properties.load(Reader) does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PAIR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# Escapes that are meant as such. Others may be backslashes of a path on Windows.
_MEANT: Final = re.compile(r"\\[\\:=#! ]|\\u[0-9a-fA-F]{4}")


class Property(NamedTuple):
    """One property, as the last line with its name gives it."""

    value: str
    line: int
    """The number of the first of its lines, from 1."""
    written: str
    """The value with its escapes."""


def parse_properties(text: str) -> dict[str, Property]:
    """Return the properties by name. One without a name is left out. Raises ValueError, with its line, for a
    malformed escape.
    """
    found = {}
    for number, line in _logical_lines(text):
        pair = _PAIR.fullmatch(line)
        assert pair is not None
        try:
            name, value = map(_unescaped, pair.groups())
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        found[name] = Property(value, number, pair[2])
    found.pop("", None)
    return found


def check_paths(properties: Mapping[str, Property], exists: Callable[[str], bool]) -> None:
    """Check the paths of files in properties, as in `ssl.truststore.location`. Raises ValueError, with its
    line, for one that doesn't exist and is written with single backslashes: Java reads C:\\keys as C:keys.
    """
    for name, (value, line, written) in properties.items():
        if name.endswith(".location") and "\\" in _MEANT.sub("", written) and not exists(value):
            raise ValueError(
                f"line {line}: {name} is read as {value!r}, which does not exist: write \\\\ or / for each \\"
            )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blank ones, joined at backslashes, each with the number of its first one."""
    begun, first = "", 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not begun:
            first = number
            if line.startswith(("#", "!")):
                line = ""
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        begun += line[:-1] if continues else line
        if begun and not continues:
            yield first, begun
            begun = ""
    if begun:
        yield first, begun


def _unescaped(text: str) -> str:
    def character(escape: re.Match[str]) -> str:
        code, other = escape.groups()
        if code is not None:
            return chr(int(code, 16))
        if other == "u":
            raise ValueError("\\u needs four hexadecimal digits")
        return _CONTROLS.get(other, other)

    # Java writes a character beyond U+FFFF as two escapes.
    units = _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass")
    return units.decode("utf-16", "replace")
