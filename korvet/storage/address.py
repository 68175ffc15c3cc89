"""Where Redis is: URLs of one server, or of some nodes of a cluster."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from korvet.storage.errors import StoreError

_DEFAULT_PORT: Final = 6379
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")
_LAST_PORT: Final = 65535


class RedisAddress(msgspec.Struct, frozen=True):
    """Where Redis is and who we are there; `socket_path` is set for unix sockets."""

    host: str
    port: int
    socket_path: str | None
    tls: bool
    username: str | None
    password: str | None
    database: int

    def __str__(self) -> str:
        return self.socket_path or f"{self.host}:{self.port}"


def parse_url(url: str) -> tuple[RedisAddress, ...]:
    """Parse redis://, rediss:// and unix:// URLs with [user:password@], a path or ?db=N.

    Several nodes of a cluster are separated by commas, as in redis://one:6379,two:6379. Raises StoreError.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreError(f"{_without_password(url)}: {error}") from error
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise StoreError(f"{_without_password(url)}: a Redis URL begins with redis://, rediss:// or unix://")
    local = parts.scheme == "unix"
    database = query.get("db", "" if local else parts.path.strip("/")) or "0"
    if not database.isdecimal():
        raise StoreError(f"{_without_password(url)}: the database is {database!r}, not a number")
    if local and not parts.path:
        raise StoreError(f"{_without_password(url)}: no socket path, as in unix:///run/redis.sock")
    user, _, places = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    who = unquote(username) or query.get("username"), unquote(password) or query.get("password")
    return tuple(
        RedisAddress(
            host=host,
            port=port,
            socket_path=unquote(parts.path) if local else None,
            tls=parts.scheme == "rediss",
            username=who[0],
            password=who[1],
            database=int(database),
        )
        for host, port in (_host_and_port(place, url) for place in places.split(","))
    )


def _host_and_port(place: str, url: str) -> tuple[str, int]:
    found = _HOST_AND_PORT.fullmatch(place)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if not found or not 0 < port <= _LAST_PORT:
        raise StoreError(f"{_without_password(url)}: {place!r} is no host and port")
    return found["ipv6"] or (found["name"] or "localhost").lower(), port


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2].partition("?")[0]
