"""TCP ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(host: str, port: int, timeout_s: float = 0.5) -> bool:
    """Whether a connection to this address is accepted now."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True
