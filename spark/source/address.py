"""The address of a Redis server or cluster, or of the sentinels that know a primary; the secrets and the TLS
files that a connection needs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from korvet.spark.source.errors import SourceError

DEFAULT_URL = "redis://127.0.0.1:6379"
DEFAULT_KEYSPACE = "korvet"
SENTINEL_PORT = 26379
_OF_SERVERS = ("redis", "rediss", "unix")
_OF_SENTINELS = ("redis+sentinel", "rediss+sentinel")
_SCHEMES = (*_OF_SERVERS, *_OF_SENTINELS)
# Parameters after the question mark of each kind of URL.
_PARAMETERS = frozenset(("db",))
_SENTINEL_PARAMETERS = _PARAMETERS | {"sentinel_username", "sentinel_tls"}
_PASSWORDS = {"password", "sentinel_password"}
# The part of a URL before its nodes; the nodes, host:port,host:port.
_NODES = re.compile(r"(?P<before>[^/?#]*//(?:[^/?#]*@)?)(?P<nodes>[^/?#]*)")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret: its value, or the file or environment variable from which each process reads it.

    No repr and no message contains the value. Raises SourceError if more than one of the three is given.
    """

    name: str = "redis.password"
    value: str | None = field(default=None, repr=False)
    file: str | None = None
    variable: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether there is a secret."""
        return (self.value, self.file, self.variable) != (None, None, None)

    def __post_init__(self) -> None:
        if sum(one is not None for one in (self.value, self.file, self.variable)) > 1:
            raise SourceError(f"give only one of {self.name}, {self.name}File and {self.name}Env")

    def reveal(self) -> str | None:
        """Return the secret; None without one. Raises SourceError if this process can't read it."""
        if self.file is not None:
            try:
                return Path(self.file).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise SourceError(f"{self.name}File {self.file} can't be read: {reason}") from None
        if self.variable is not None:
            found = os.environ.get(self.variable)
            if found is None:
                raise SourceError(
                    f"{self.name}Env names {self.variable}, which is not set in this process "
                    "(the driver or an executor)"
                )
            return found
        return self.value


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of rediss://: PEM files to verify the server and to authenticate, which each process reads."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: Secret = field(default_factory=lambda: Secret("redis.ssl.keyPassword"))
    check_hostname: bool = True

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for redis-py. Raises SourceError for a missing file or secret."""
        named = {
            "redis.ssl.ca": self.ca_file,
            "redis.ssl.cert": self.certificate_file,
            "redis.ssl.key": self.key_file,
        }
        for option, file in named.items():
            if file is not None and not os.access(file, os.R_OK):
                raise SourceError(f"{option}: the file {file} doesn't exist or can't be read")
        return {
            "ssl_cert_reqs": "required",
            "ssl_ca_certs": self.ca_file,
            "ssl_certfile": self.certificate_file,
            "ssl_keyfile": self.key_file,
            "ssl_password": self.key_password.reveal(),
            "ssl_check_hostname": self.check_hostname,
        }


def split_url(url: str) -> list[SplitResult]:
    """Return the parts of a Redis URL, once for each of its nodes. Raises ValueError.

    Python's urlsplit accepts no IPv6 address after a comma.
    """
    found = _NODES.match(url)
    if found is None:
        return [urlsplit(url)]
    before, nodes, rest = found["before"], found["nodes"], url[found.end() :]
    return [urlsplit(before + node + rest) for node in nodes.split(",")]


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The sentinels that know a primary."""

    name: str
    """The name of the primary in the sentinels' configuration."""
    urls: tuple[str, ...]
    arguments: dict[str, Any] = field(repr=False)
    """redis-py's arguments besides the URL."""


@dataclass(frozen=True, slots=True)
class Address:
    """A Redis server, nodes of a cluster, or sentinels that know a primary; and the keyspace in it.

    The URL contains no password. Commas separate several nodes. Raises SourceError for an invalid address.

    max_cpu: pages are requested only as fast as keeps the main thread of each server below this load, a part
    of 1, caused by all clients together. None: as fast as possible.
    """

    url: str = DEFAULT_URL
    keyspace: str = DEFAULT_KEYSPACE
    user: str | None = None
    password: Secret = field(default_factory=Secret)
    tls: Tls | None = None
    sentinel_password: Secret = field(default_factory=lambda: Secret("redis.sentinel.password"))
    max_cpu: float | None = None

    def __post_init__(self) -> None:
        try:
            nodes = split_url(self.url)
            parts = nodes[0]
            password, user = parts.password, parts.username
            # Reading a port checks it.
            _ = [node.port for node in nodes]
        except ValueError:
            raise SourceError("the redis URL can't be parsed") from None
        query = _query(parts)
        if password is not None or _PASSWORDS & set(query):
            raise SourceError(
                "the redis URL must not contain a password (plans and logs show it): use redis.password"
                " or redis.sentinel.password"
            )
        if parts.scheme not in _SCHEMES:
            raise SourceError(f"the redis URL must start with {', '.join(f'{one}://' for one in _SCHEMES)}")
        known = _SENTINEL_PARAMETERS if parts.scheme in _OF_SENTINELS else _PARAMETERS
        if set(query) - known:
            raise SourceError(
                f"the redis URL may have only {', '.join(sorted(known))} after its question mark"
            )
        if user and self.user:
            raise SourceError("give the user in the redis URL or by redis.user, not both")
        if parts.scheme in _OF_SENTINELS:
            if not _name_and_database(parts)[0]:
                raise SourceError("the redis URL must name the primary, as in redis+sentinel://host/NAME")
            if query.get("sentinel_tls", "yes") not in {"yes", "no"}:
                raise SourceError("sentinel_tls in the redis URL must be yes or no")
        database = _database(parts)
        if database and not (database.isascii() and database.isdecimal()):
            # redis-py would take 0, or leave out the slashes.
            raise SourceError(f"the database in the redis URL must be a number, not {database!r}")
        if self.tls is not None and not (_uses_tls(parts) or _sentinels_use_tls(parts)):
            raise SourceError(
                "the options redis.ssl.* need a redis URL that starts with rediss://, or one of sentinels"
            )
        if self.max_cpu is not None and not 0 < self.max_cpu <= 1:
            raise SourceError(f"maxRedisCpu must be above 0 and at most 1, not {self.max_cpu:g}")
        if not self.keyspace or any(brace in self.keyspace for brace in "{}"):
            raise SourceError(f"{self.keyspace!r} is not a keyspace name: empty, or with braces")

    def arguments(self) -> dict[str, Any]:
        """Return redis-py's arguments besides the URL. Raises SourceError for a missing file or secret."""
        found: dict[str, Any] = {}
        password = self.password.reveal()
        if password is not None:
            found["password"] = password
        if self.user is not None:
            found["username"] = self.user
        if self.tls is not None and _uses_tls(split_url(self.url)[0]):
            found.update(self.tls.arguments())
        return found

    def sentinels(self) -> Sentinels | None:
        """Return the sentinels; None if the URL names servers. Raises SourceError for a missing file or
        secret.
        """
        nodes = split_url(self.url)
        first = nodes[0]
        if first.scheme not in _OF_SENTINELS:
            return None
        tls = _sentinels_use_tls(first)
        arguments: dict[str, Any] = {
            "username": _query(first).get("sentinel_username"),
            "password": self.sentinel_password.reveal(),
        }
        if tls and self.tls is not None:
            arguments.update(self.tls.arguments())
        scheme = "rediss" if tls else "redis"
        urls = tuple(
            f"{scheme}://{_authority(node.hostname or 'localhost', node.port or SENTINEL_PORT)}"
            for node in nodes
        )
        return Sentinels(_name_and_database(first)[0], urls, arguments)

    def server_urls(self) -> list[str]:
        """Return a URL for each node that the URL names."""
        nodes = split_url(self.url)
        return [self.url] if len(nodes) == 1 else [urlunsplit(parts) for parts in nodes]

    def primary_url(self, host: str, port: int) -> str:
        """Return the URL of the primary whose address the sentinels have returned."""
        parts = split_url(self.url)[0]
        user, at, _ = parts.netloc.rpartition("@")
        scheme = parts.scheme.removesuffix("+sentinel")
        return f"{scheme}://{user}{at}{_authority(host, port)}/{_database(parts)}"

    def stream(self, topic: str, partition: int) -> str:
        """Return the key of a partition's stream."""
        return f"{self.keyspace}:{topic}:{partition}"

    @property
    def topics_key(self) -> str:
        """The key of the catalogue, a hash of topic name to JSON."""
        return f"{{{self.keyspace}}}:topics"


def _query(parts: SplitResult) -> dict[str, str]:
    return dict(parse_qsl(parts.query, keep_blank_values=True))


def _name_and_database(parts: SplitResult) -> tuple[str, str]:
    """The name of the primary and the database in the path of a URL of sentinels."""
    name, _, database = parts.path.strip("/").partition("/")
    return unquote(name), database


def _database(parts: SplitResult) -> str:
    """The number of the database, from the query or the path; empty without one."""
    if parts.scheme in _OF_SENTINELS:
        in_path = _name_and_database(parts)[1]
    else:
        in_path = "" if parts.scheme == "unix" else parts.path.strip("/")
    return _query(parts).get("db") or in_path


def _uses_tls(parts: SplitResult) -> bool:
    return parts.scheme.startswith("rediss")


def _sentinels_use_tls(parts: SplitResult) -> bool:
    """Whether the sentinels accept TLS only; False if the URL names no sentinels."""
    default = "yes" if _uses_tls(parts) else "no"
    return parts.scheme in _OF_SENTINELS and _query(parts).get("sentinel_tls", default) == "yes"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
