"""Connections between a process and one that it has started, without a listening socket.

The standard input of the started process is one end of a socket pair. For each connection, the other process
makes a further pair, keeps one end of it, and sends the other end through the first pair (SCM_RIGHTS). So
nobody else can connect, and no file is left in a folder if the processes are killed.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

ON_STANDARD_INPUT = "-"
"""The value of `admin.socket` for a process that is given its connections."""


class Handover:
    """Makes connections, in the process that has started the other one."""

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
    """Accepts connections, in the process that was started. It stands for a listening socket."""

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
