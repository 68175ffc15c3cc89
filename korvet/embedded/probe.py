"""A few blocking commands for a server that is starting, stopping, or orphaned.

korvet.redis contains the real connections. This module is for the time before they can exist. It is not
redis-py, which would take 50 ms and 4 MB at the start of every broker.
"""

import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from korvet.config.address import Address

_CUT = "the connection was closed"


class ProbeError(Exception):
    """The server is unreachable, or returned an error (the message is then Redis's)."""


class Probe:
    """One connection to a server's Unix socket or TCP port. Every command may raise ProbeError."""

    def __init__(self, place: Path | Address, timeout_s: float = 5.0, password: str = "") -> None:
        """`password`: of the default user; empty if the server asks for none."""
        family = socket.AF_INET if isinstance(place, Address) else socket.AF_UNIX
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(place if isinstance(place, Address) else str(place))
        except OSError as error:
            self._socket.close()
            raise ProbeError(f"{place}: {error.strerror or error}") from error
        self._input = self._socket.makefile("rb")
        if password:
            try:
                self._ask(f"AUTH {password}".encode())
            except ProbeError:
                self.__exit__(None, None, None)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._input.close()
        self._socket.close()

    def ping(self) -> None:
        """Send PING. Raises ProbeError("LOADING ...") while the server reads its files."""
        self._ask(b"PING")

    def info(self, section: str) -> dict[str, str]:
        """Send INFO for one section. Works also while the server is loading."""
        lines = self._ask(b"INFO " + section.encode()).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def config_set(self, name: str, value: str) -> None:
        """Send CONFIG SET for one parameter."""
        self._ask(f"CONFIG SET {name} {value}".encode())

    def rewrite(self) -> None:
        """Send BGREWRITEAOF: the server begins to rewrite its append-only file, or does so soon."""
        self._ask(b"BGREWRITEAOF")

    def shut_down(self) -> None:
        """Send SHUTDOWN NOSAVE: the server flushes its append-only file and exits."""
        try:
            self._ask(b"SHUTDOWN NOSAVE")
        except ProbeError as error:
            if str(error) != _CUT:
                raise

    def _ask(self, command: bytes) -> bytes:
        try:
            self._socket.sendall(command + b"\r\n")
            head = self._input.readline()
            if head.startswith(b"$"):
                size = int(head[1:])
                return self._input.read(size + 2)[:size]
        except (OSError, ValueError) as error:
            raise ProbeError(f"no answer: {error}") from error
        if not head.startswith(b"+"):
            raise ProbeError(head[1:].decode(errors="replace").strip() or _CUT)
        return head[1:].strip()
