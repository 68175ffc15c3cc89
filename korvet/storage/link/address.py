"""URLs of one Redis server, or of some nodes of a cluster."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qs, unquote

import msgspec

from korvet.config.address import redacted
from korvet.storage.errors import StoreError

_DEFAULT_PORT: Final = 6379
# The parts of a URL in RFC 3986. Python's urlsplit accepts no IPv6 address after a comma.
_URL: Final = re.compile(
    r"(?P<scheme>[^:/?#]*):(?://(?:(?P<user>[^/?#]*)@)?(?P<nodes>[^/?#]*))?(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#.*)?"
)
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")
_LAST_PORT: Final = 65535
# The time that nodes of a Redis Cluster wait for each other (cluster-node-timeout), and half of the time that
# Kafka clients wait for a response (request.timeout.ms). Scripts, forks and slow disks take seconds.
DEFAULT_TIMEOUT_MS: Final = 15_000


class RedisAddress(msgspec.Struct, frozen=True):
    """The address of a server and our credentials there. `socket_path` is set for unix sockets."""

    host: str
    port: int
    socket_path: str | None
    tls: bool
    username: str | None
    password: str | None
    database: int
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    """How long a connection may be silent while a reply is due."""

    def __str__(self) -> str:
        return self.socket_path or f"{self.host}:{self.port}"


def parse_url(url: str) -> tuple[RedisAddress, ...]:
    """Parse redis://, rediss:// and unix:// URLs with [user:password@], a path or ?db=N.

    Several nodes of a cluster are separated by commas, as in redis://one:6379,two:6379. Raises StoreError.
    """
    found = _URL.fullmatch(url.strip())
    scheme = found["scheme"].lower() if found else ""
    if not found or scheme not in {"redis", "rediss", "unix"}:
        raise StoreError(f"{redacted(url)}: a Redis URL begins with redis://, rediss:// or unix://")
    path, local = found["path"], scheme == "unix"
    query = {name: values[-1] for name, values in parse_qs(found["query"] or "").items()}
    database = query.get("db", "" if local else path.strip("/")) or "0"
    if not database.isdecimal():
        raise StoreError(f"{redacted(url)}: the database is {database!r}, not a number")
    if local and not path:
        raise StoreError(f"{redacted(url)}: no socket path, as in unix:///run/redis.sock")
    username, _, password = (found["user"] or "").partition(":")
    credentials = unquote(username) or query.get("username"), unquote(password) or query.get("password")
    return tuple(
        RedisAddress(
            host=host,
            port=port,
            socket_path=unquote(path) if local else None,
            tls=scheme == "rediss",
            username=credentials[0],
            password=credentials[1],
            database=int(database),
        )
        for host, port in (_host_and_port(node, url) for node in (found["nodes"] or "").split(","))
    )


def _host_and_port(node: str, url: str) -> tuple[str, int]:
    found = _HOST_AND_PORT.fullmatch(node)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if not found or not 0 < port <= _LAST_PORT:
        raise StoreError(f"{redacted(url)}: {node!r} is no host and port")
    return found["ipv6"] or (found["name"] or "localhost").lower(), port
