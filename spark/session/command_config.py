"""The properties of Kafka's Java clients in a file, as Kafka's tools take it (--command-config).

A client gets references to the file in place of the values, by Kafka's own FileConfigProvider (KIP-297). So
Spark's plans, pages, logs, events and checkpoints contain no secret, whatever its property is called.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PROTOCOL: Final = "security.protocol"
# What korvet and Spark's connector set themselves.
_OWN: Final = frozenset(
    (
        "bootstrap.servers",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "auto.offset.reset",
        "enable.auto.commit",
        "allow.auto.create.topics",
        "key.deserializer",
        "value.deserializer",
        "key.serializer",
        "value.serializer",
        "interceptor.classes",
    )
)
# Messages about failures depend on these values, which are no secrets.
_SHOWN: Final = frozenset((PROTOCOL, "sasl.mechanism"))
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROVIDERS: Final = "config.providers"
_PROVIDER: Final = "korvet"
_PROVIDER_CLASS: Final = "org.apache.kafka.common.config.provider.FileConfigProvider"

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_PAIR: Final = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_command_config(path: Path) -> Mapping[str, str]:
    """Return the properties in a file for Kafka's Java clients on this machine and on executors.

    Without those that korvet sets itself. The others are references, except those of _SHOWN and those that
    refer to other providers of the file. Raises SourceError for a file that is missing or malformed.
    """
    path = path.absolute()
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SourceError(f"--command-config {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SourceError(
            f"--command-config {path} is not UTF-8 (byte {error.start}): write other characters as \\uXXXX"
        ) from error
    if set(":}") & set(str(path)):
        raise SourceError(f"--command-config {path}: the path of the file must not contain : and }}")
    try:
        found = parse_properties(text)
    except ValueError as error:
        raise SourceError(f"--command-config {path}, {error}") from error
    protocol = found.get(PROTOCOL, _PROTOCOLS[0])
    if protocol.upper() not in _PROTOCOLS:
        raise SourceError(
            f"--command-config {path}: {PROTOCOL} is {protocol!r}, not one of {', '.join(_PROTOCOLS)}"
        )
    return _references(path, {name: value for name, value in found.items() if name not in _OWN})


def _references(path: Path, found: Mapping[str, str]) -> dict[str, str]:
    others = found.get(_PROVIDERS, "")

    def stays(name: str, value: str) -> bool:
        # Kafka does not resolve references within a value that it found by a reference.
        return name in _SHOWN or name.startswith(f"{_PROVIDERS}.") or (bool(others) and "${" in value)

    given = {
        name: value if stays(name, value) else f"${{{_PROVIDER}:{path}:{name}}}"
        for name, value in found.items()
        if name != _PROVIDERS
    }
    named = ",".join(filter(None, (others, _PROVIDER)))
    return {**given, _PROVIDERS: named, f"{_PROVIDERS}.{_PROVIDER}.class": _PROVIDER_CLASS}


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in a text, as java.util.Properties reads it: the last one counts of each name.

    A property without a name is left out. Raises ValueError, with its line, for a malformed escape.
    """
    found = {}
    for number, line in _logical_lines(text):
        pair = _PAIR.fullmatch(line)
        assert pair is not None
        try:
            name, value = map(_unescaped, pair.groups())
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        found[name] = value
    found.pop("", None)
    return found


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
