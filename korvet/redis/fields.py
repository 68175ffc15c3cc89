"""Reading the hashes that brokers share, field by field.

Any client of Redis can write to these hashes. A field that cannot be read is skipped, logged once, and
reported by `korvet doctor`; the other fields are read nevertheless.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")
V = TypeVar("V")

# The exceptions of parsers for bytes that no broker wrote: int() and float() of long numbers, nested JSON.
_UNREADABLE: Final = (ValueError, RecursionError, OverflowError)
# Limits the lines that one read of a hash logs: more damaged fields than this have one cause.
_MOST_LINES: Final = 20
_SHOWN_BYTES: Final = 100
# Limits the digits and the value of a counter: scripts calculate with doubles, which represent it exactly.
_COUNTER_DIGITS: Final = 16
_COUNTER_LIMIT: Final = 1 << 53

log = logging.getLogger(__name__)


def read_fields(
    pairs: Iterable[tuple[bytes, V]], parse: Callable[[bytes, V], T]
) -> tuple[list[T], dict[bytes, str]]:
    """The results of parse(field, value), and the reason for each field that cannot be read."""
    found: list[T] = []
    damaged: dict[bytes, str] = {}
    for field, value in pairs:
        try:
            found.append(parse(field, value))
        except _UNREADABLE as error:
            damaged[field] = str(error) or type(error).__name__
    return found, damaged


def pairs_of(reply: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    """The pairs of field and value in an HGETALL reply."""
    return zip(reply[::2], reply[1::2], strict=True)


def counter_of(value: bytes | None) -> int:
    """A counter stored in a hash; 0 if the field is missing or is not a counter."""
    number = int(value) if value is not None and value.isdigit() and len(value) <= _COUNTER_DIGITS else 0
    return number if number < _COUNTER_LIMIT else 0


def shown(field: bytes) -> str:
    """Bytes of Redis as printable text, cut if they are long."""
    return repr(field[:_SHOWN_BYTES])[2:-1]


class DamageLog:
    """Logs each damaged field once, and again if the field is damaged after a repair."""

    def __init__(self) -> None:
        self._known: dict[bytes, dict[bytes, str]] = {}

    @property
    def known(self) -> Mapping[bytes, Mapping[bytes, str]]:
        """The damaged fields of each hash, as noted last."""
        return self._known

    def note(self, key: bytes, damaged: Mapping[bytes, str]) -> None:
        """Log the fields of a hash that have become damaged; `damaged`: all damaged fields now, with the
        reason.
        """
        known = self._known.get(key, {})
        new = [field for field, reason in damaged.items() if known.get(field) != reason]
        for field in new[:_MOST_LINES]:
            log.error("%s: the field %s is skipped: %s", key.decode(), shown(field), damaged[field])
        if len(new) > _MOST_LINES:
            log.error("%s: %d more fields are skipped", key.decode(), len(new) - _MOST_LINES)
        self._known[key] = dict(damaged)
