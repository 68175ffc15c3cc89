"""TCP ports of this machine."""

from __future__ import annotations

import os
import random
import socket

# Below the ports that Linux, macOS and Windows give to outgoing connections: a connection could take such a
# port between its choice and its use, or while a server is down for a moment.
_FIRST, _END = 10240, 32768
# A server of several processes also listens on the ports after the first one.
_IN_A_ROW = 4

# Processes of one test run (pytest-xdist) have rows of their own; other runs use another order.
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_rows = [*range(_FIRST, _END, _IN_A_ROW)][_process::_processes]
random.shuffle(_rows)


def free_port() -> int:
    """A TCP port of the loopback address that nothing listens on, nor on the next three.

    No other test of this run gets one of these ports.
    """
    while True:
        port = _rows.pop()
        if all(_is_free(port + number) for number in range(_IN_A_ROW)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def accepts(host: str, port: int, timeout_s: float = 0.5) -> bool:
    """Whether this address accepts connections now."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError:
        return False
    return True


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback address."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
