"""Connections that a process hands over to another one, which it has started: without a path, so that nobody
else can connect, and nothing is left when they are killed.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

ON_STANDARD_INPUT = "-"
"""The value of `admin.socket` for a process that is given its connections."""


class Handover:
    """The side of the process that connects."""

    def __init__(self) -> None:
        self._own: socket.socket | None = None

    def renew(self) -> socket.socket:
        """Returns what the next process needs as its standard input. The caller closes it."""
        self.close()
        self._own, theirs = socket.socketpair()
        self._own.setblocking(False)
        return theirs

    def connect(self) -> socket.socket:
        """Returns a connection to the process, which may still be starting. Doesn't wait. Raises OSError."""
        if self._own is None:
            raise ConnectionRefusedError("the process was not started")
        connection, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._own, [b"\0"], [theirs.fileno()])
            except OSError:
                connection.close()
                raise
        connection.setblocking(False)
        return connection

    def close(self) -> None:
        """Connect no more."""
        if self._own is not None:
            self._own.close()


class Handed(socket.socket):
    """The side of the process that was started: accepts the connections that it is given."""

    def __init__(self, fd: int) -> None:
        """`fd` stays open. Raises OSError if it is no socket."""
        super().__init__(fileno=os.dup(fd))
        self.setblocking(False)

    def listen(self, backlog: int = 0, /) -> None:
        """Does nothing: the other process connects as soon as it wants."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns a connection; it has no address. Raises EOFError if there will be none any more, and
        OSError.
        """
        data, received, _, _ = socket.recv_fds(self, 1, 1)
        if not data:
            raise EOFError
        if not received:
            # The kernel has dropped the descriptor. The other process sees a closed connection.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        os.set_inheritable(received[0], False)
        return socket.socket(fileno=received[0]), ""
