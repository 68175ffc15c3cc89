"""URLs of one Redis server, of some nodes of a cluster, or of the sentinels that know a primary."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, unquote

import msgspec

from korvet.config.address import is_host, redacted
from korvet.redis.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
# The parts of a URL in RFC 3986. Python's urlsplit accepts no IPv6 address after a comma.
_URL: Final = re.compile(
    r"(?P<scheme>[^:/?#]*):(?://(?:(?P<user>[^/?#]*)@)?(?P<nodes>[^/?#]*))?(?P<path>[^?#]*)"
    r"(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?"
)
_HOST_AND_PORT: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]*))?")
_LAST_PORT: Final = 65535
_SCHEMES: Final = frozenset(("redis", "rediss", "unix"))
_SENTINEL_SCHEMES: Final = frozenset(("redis+sentinel", "rediss+sentinel"))
_PARAMETERS: Final = frozenset(("db", "username", "password"))
_SENTINEL_PARAMETERS: Final = frozenset(("sentinel_username", "sentinel_password", "sentinel_tls"))
# The time that nodes of a Redis Cluster wait for each other (cluster-node-timeout), and half of the time that
# Kafka clients wait for a response (request.timeout.ms). Scripts, forks and slow disks take seconds.
DEFAULT_TIMEOUT_MS: Final = 15_000
# The same for sentinels, which are never busy for long.
_SENTINEL_TIMEOUT_MS: Final = 3_000


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
    kind: str = "Redis"
    """What is at the address, for messages."""

    def __str__(self) -> str:
        return self.socket_path or f"{self.host}:{self.port}"

    @property
    def named(self) -> str:
        """The kind of server with its address, for messages."""
        return f"{self.kind} at {self}"

    def at(self, host: str, port: int) -> RedisAddress:
        """Another server with the same credentials and options."""
        return msgspec.structs.replace(self, host=host, port=port, socket_path=None)


class SentinelAddress(msgspec.Struct, frozen=True):
    """The sentinels that know the address of a primary."""

    name: str
    """The name of the primary in the sentinels' configuration."""
    sentinels: tuple[RedisAddress, ...]
    server: RedisAddress
    """Our credentials and options for the primary; its host and port are not known."""


def parse_target(url: str) -> tuple[RedisAddress, ...] | SentinelAddress:
    """Parse a Redis URL: the servers that it names, or the sentinels. Raises StoreError.

    redis://, rediss:// and unix:// with [user:password@], a path or ?db=N name a server. Several nodes of a
    cluster are separated by commas, as in redis://one:6379,two:6379.

    redis+sentinel:// and rediss+sentinel:// (TLS) name sentinels in the same way, and have the path /NAME or
    /NAME/DATABASE. User and password are those of the primary. The sentinels' own are in
    ?sentinel_username=U&sentinel_password=P; ?sentinel_tls=yes or no applies if only one of them uses TLS.
    """
    found = _URL.fullmatch(url.strip())
    scheme = found["scheme"].lower() if found else ""
    if not found or scheme not in _SCHEMES | _SENTINEL_SCHEMES:
        raise StoreError(
            f"{redacted(url)}: a Redis URL begins with redis://, rediss://, unix://, redis+sentinel:// or "
            "rediss+sentinel://"
        )
    if _splits_credentials(found):
        raise StoreError(
            f"{redacted(url)}: '/', '?' and '#' in a user or a password must be percent-encoded, as in %2F"
        )
    query = {name: values[-1] for name, values in parse_qs(found["query"] or "").items()}
    known = _PARAMETERS | _SENTINEL_PARAMETERS if scheme in _SENTINEL_SCHEMES else _PARAMETERS
    unknown = sorted(query.keys() - known)
    if unknown:
        # The value of an unknown parameter may be a secret.
        shown = redacted(url.partition("?")[0])
        raise StoreError(f"{shown}: unknown parameter {unknown[0]!r}; there are {', '.join(sorted(known))}")
    path, local = found["path"], scheme == "unix"
    name, database = "", path.strip("/")
    if scheme in _SENTINEL_SCHEMES:
        name, _, database = database.partition("/")
    database = query.get("db", "" if local else database) or "0"
    if not database.isdecimal():
        raise StoreError(f"{redacted(url)}: the database is {database!r}, not a number")
    if local and not path:
        raise StoreError(f"{redacted(url)}: no socket path, as in unix:///run/redis.sock")
    username, _, password = (found["user"] or "").partition(":")
    server = RedisAddress(
        host="",
        port=0,
        socket_path=unquote(path) if local else None,
        tls=scheme.startswith("rediss"),
        username=unquote(username) or query.get("username"),
        password=unquote(password) or query.get("password"),
        database=int(database),
    )
    nodes = (found["nodes"] or "").split(",")
    if scheme in _SENTINEL_SCHEMES:
        return _sentinels(unquote(name), nodes, server, query, url)
    return tuple(
        msgspec.structs.replace(server, host=host, port=port)
        for host, port in (_host_and_port(node, _DEFAULT_PORT, url) for node in nodes)
    )


def _splits_credentials(url: re.Match[str]) -> bool:
    """Whether a delimiter in the user or the password divides it: the @ after it is in a later part."""
    parameters = (url["query"] or "").split("&")
    unknown = [
        text for text in parameters if text.partition("=")[0] not in _PARAMETERS | _SENTINEL_PARAMETERS
    ]
    # A path may contain an @ if it is that of a socket.
    path = "" if url["scheme"].lower() == "unix" and not url["nodes"] else url["path"]
    return any("@" in part for part in (path, *unknown, url["fragment"] or ""))


def parse_url(url: str) -> tuple[RedisAddress, ...]:
    """As parse_target, for URLs that name servers. Raises StoreError."""
    found = parse_target(url)
    if isinstance(found, SentinelAddress):
        raise StoreError(f"{redacted(url)}: it names sentinels, not servers")
    return found


def _sentinels(
    name: str, nodes: list[str], server: RedisAddress, query: Mapping[str, str], url: str
) -> SentinelAddress:
    if not name:
        raise StoreError(
            f"{redacted(url)}: the name of the primary is missing, as in redis+sentinel://host:26379/NAME"
        )
    tls = query.get("sentinel_tls", "yes" if server.tls else "no")
    if tls not in {"yes", "no"}:
        raise StoreError(f"{redacted(url)}: sentinel_tls is {tls!r}, not yes or no")
    return SentinelAddress(
        name,
        tuple(
            RedisAddress(
                host=host,
                port=port,
                socket_path=None,
                tls=tls == "yes",
                username=query.get("sentinel_username"),
                password=query.get("sentinel_password"),
                database=0,
                timeout_ms=_SENTINEL_TIMEOUT_MS,
                kind="the sentinel",
            )
            for host, port in (_host_and_port(node, _SENTINEL_PORT, url) for node in nodes)
        ),
        server,
    )


def _host_and_port(node: str, default_port: int, url: str) -> tuple[str, int]:
    found = _HOST_AND_PORT.fullmatch(node)
    port = int(found["port"] or default_port) if found else 0
    host = (found["ipv6"] or (found["name"] or "localhost").lower()) if found else ""
    if not is_host(host) or not 0 < port <= _LAST_PORT:
        raise StoreError(f"{redacted(url)}: {node!r} is no host and port")
    return host, port
