"""Which requests are logged: slow ones, failed ones, and those of some clients."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase, translate
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

OFF_MS: Final = -1
"""`request.log.slow.ms` when no request is logged for its duration."""
_KEYS: Final = ("api", "address", "client", "principal")


class Asking(NamedTuple):
    """Who sends a request, and of which API."""

    api: str
    address: str
    client: str
    principal: str


class Condition(NamedTuple):
    """A part of a selector: a field of Asking, and what it must match."""

    field: str
    matches: Callable[[str], bool]


class Rules(msgspec.Struct, frozen=True):
    """The rules in force."""

    slow_ms: int = OFF_MS
    failed: frozenset[ErrorCode] = frozenset()
    """The errors for which a request is logged."""
    clients: tuple[tuple[Condition, ...], ...] = ()
    """Selectors: a request matches one if it meets all of its conditions."""

    @property
    def active(self) -> bool:
        """Whether any request can match."""
        return self.slow_ms != OFF_MS or bool(self.failed or self.clients)

    @property
    def need_outcome(self) -> bool:
        """Whether a request of any client can match, once its outcome is known."""
        return self.slow_ms != OFF_MS or bool(self.failed)

    def selects(self, asking: Asking) -> bool:
        """Whether requests of this client and API are logged."""
        return any(
            all(condition.matches(getattr(asking, condition.field)) for condition in selector)
            for selector in self.clients
        )

    def reasons(self, *, busy_ms: float, errors: Collection[ErrorCode], selected: bool) -> list[str]:
        """Why a request is logged; empty if it is not. `busy_ms`: its duration without the wait that it
        allowed.
        """
        found = []
        if self.slow_ms != OFF_MS and busy_ms > self.slow_ms:
            found.append("slow")
        if not self.failed.isdisjoint(errors):
            found.append("failed")
        if selected:
            found.append("selected")
        return found


def parse_failed(text: str) -> frozenset[ErrorCode]:
    """The errors that `request.log.failed` names: names or patterns with `*` and `?`, separated by commas; a
    part that begins with `!` removes errors. Raises ValueError for a part that matches no error.
    """
    chosen: set[ErrorCode] = set()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in sorted(parts, key=lambda part: part.startswith("!")):
        removes, pattern = part.startswith("!"), part.removeprefix("!").strip().upper()
        found = {code for code in ErrorCode if code and fnmatchcase(code.name.upper(), pattern)}
        if not found:
            raise ValueError(f"no error of Kafka matches {part!r}")
        chosen = chosen - found if removes else chosen | found
    return frozenset(chosen)


def parse_clients(text: str) -> tuple[tuple[Condition, ...], ...]:
    """The selectors of `request.log.clients`, separated by semicolons: conditions KEY=PATTERN, separated by
    commas. Raises ValueError.
    """
    selectors = (selector.strip() for selector in text.split(";"))
    return tuple(tuple(_conditions(selector)) for selector in selectors if selector)


def _conditions(selector: str) -> Iterator[Condition]:
    for part in selector.split(","):
        key, equals, pattern = (piece.strip() for piece in part.partition("="))
        if key not in _KEYS or not equals or not pattern:
            raise ValueError(f"expected {', '.join(_KEYS)} = PATTERN, got {part.strip()!r}")
        yield Condition(key, _address(pattern) if key == "address" else _glob(pattern))


def _glob(pattern: str) -> Callable[[str], bool]:
    matches = re.compile(translate(pattern)).match
    return lambda text: matches(text) is not None


def _address(pattern: str) -> Callable[[str], bool]:
    if "/" in pattern:
        return _network(pattern)
    try:
        # Sockets report an IPv6 address in its shortest form: 2001:DB8:0::1 is 2001:db8::1.
        return _glob(str(ip_address(pattern)))
    except ValueError:
        return _glob(pattern)


def _network(pattern: str) -> Callable[[str], bool]:
    network = ip_network(pattern, strict=False)

    def contains(text: str) -> bool:
        try:
            return ip_address(text) in network
        except ValueError:
            return False

    return contains
