"""The address of a Redis server or cluster, the secrets and the TLS files that a connection needs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit, urlunsplit

from korvet.spark.source.errors import SourceError

DEFAULT_URL = "redis://127.0.0.1:6379"
DEFAULT_KEYSPACE = "korvet"
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
class Address:
    """A Redis server, or nodes of a cluster, and the keyspace in it.

    The URL contains no password. Commas separate several nodes. Raises SourceError for an invalid address.
    """

    url: str = DEFAULT_URL
    keyspace: str = DEFAULT_KEYSPACE
    user: str | None = None
    password: Secret = field(default_factory=Secret)
    tls: Tls | None = None

    def __post_init__(self) -> None:
        try:
            parts = split_url(self.url)[0]
            password, user = parts.password, parts.username
            query = set(parse_qs(parts.query, keep_blank_values=True))
        except ValueError:
            raise SourceError("the redis URL can't be parsed") from None
        if password is not None or "password" in query:
            raise SourceError(
                "the redis URL must not contain a password (plans and logs show it): use redis.password"
            )
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise SourceError("the redis URL must start with redis://, rediss:// or unix://")
        if query - {"db"}:
            raise SourceError("the redis URL may have only db after its question mark")
        if user and self.user:
            raise SourceError("give the user in the redis URL or by redis.user, not both")
        if self.tls is not None and parts.scheme != "rediss":
            raise SourceError("the options redis.ssl.* need a redis URL that starts with rediss://")
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
        if self.tls is not None:
            found.update(self.tls.arguments())
        return found

    def server_urls(self) -> list[str]:
        """Return a URL for each node."""
        nodes = split_url(self.url)
        return [self.url] if len(nodes) == 1 else [urlunsplit(parts) for parts in nodes]

    def stream(self, topic: str, partition: int) -> str:
        """Return the key of a partition's stream."""
        return f"{self.keyspace}:{topic}:{partition}"

    @property
    def topics_key(self) -> str:
        """The key of the catalogue, a hash of topic name to JSON."""
        return f"{{{self.keyspace}}}:topics"
