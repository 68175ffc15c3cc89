"""Addresses of hosts, and Redis URLs without their passwords."""

import re
from typing import NamedTuple

# What is before the password of a URL's user, and of its query, and that.
_USERS_PASSWORD = re.compile(r"(://[^:/?#]*:).*@")
_QUERYS_PASSWORD = re.compile(r"([?&](?:sentinel_)?password=)[^&#]*")


class Address(NamedTuple):
    """A host and a TCP port, written `HOST:PORT` (an IPv6 host in brackets)."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read `HOST:PORT` or `[IPV6]:PORT`; port 0 means any free port. Raises ValueError."""
    if "://" in text:
        raise ValueError(f"expected HOST:PORT without a protocol, not {text!r}")
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"an IPv6 host must be in brackets, as in [::1]:9092, not {text!r}")
    if not colon or not is_host(host):
        raise ValueError(f"expected HOST:PORT, not {text!r}")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError(f"expected a port from 0 to 65535, not {port!r}")
    return Address(host, int(port))


def is_host(name: str) -> bool:
    """Whether a name can be looked up. Sockets raise UnicodeError for others, such as a..b."""
    try:
        return bool(name.encode("idna"))
    except UnicodeError:
        return False


def redacted(url: str) -> str:
    """A Redis URL without its password, for logs and messages."""
    # The query first: an @ in it does not end the password of a user.
    hidden = _QUERYS_PASSWORD.sub(r"\1***", url)
    return _USERS_PASSWORD.sub(r"\1***@", hidden)
