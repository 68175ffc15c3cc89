"""Standard error that stops nobody: a thread writes what the others print.

A pipe that nobody reads, as a test runner may leave it, or a terminal on hold takes some lines and then makes
its writer wait, which would be the event loop with all its clients. Lines wait here instead. Those that find
no place are dropped and counted, until all that wait are written; then a line of the log says how many.
"""

from __future__ import annotations

import atexit
import collections
import io
import logging
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

log = logging.getLogger(__name__)

# Limits what waits: some thousand lines, as many as a log collector misses while it is restarted.
_MOST_BYTES: Final = 1024 * 1024
# At the end, a reader that takes nothing for so long is not waited for.
_STUCK_S: Final = 0.2


def unblock() -> None:
    """Let a thread write what this process prints to standard error from now on. Does nothing if that is
    closed or no file.
    """
    before = sys.stderr
    if before is None:
        return
    try:
        fd = before.fileno()
    except ValueError:
        return
    stream = Stream(fd)
    lines = sys.stderr = io.TextIOWrapper(stream, before.encoding, before.errors, line_buffering=True)

    def end() -> None:
        # Threads don't run to the very end of the process. The last line may have no end.
        lines.flush()
        if stream.drain():
            sys.stderr = before

    atexit.register(end)


class Stream(io.RawIOBase):
    """Takes lines for a descriptor, and never waits."""

    def __init__(self, fd: int, most_bytes: int = _MOST_BYTES) -> None:
        """`most_bytes` may wait."""
        self._fd = fd
        self._most_bytes = most_bytes
        self._waiting: collections.deque[bytes] = collections.deque()
        self._waiting_bytes = 0
        self._taken = 0
        self._missing = 0
        self._is_full = False
        self._is_idle = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="standard error", daemon=True).start()

    def fileno(self) -> int:
        """The descriptor."""
        return self._fd

    def isatty(self) -> bool:
        """Whether the descriptor is a terminal."""
        return os.isatty(self._fd)

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: ReadableBuffer) -> int:
        """Let the thread write the data, or drop them if there is no place."""
        piece = bytes(data)
        with self._changed:
            self._is_full = self._is_full or self._waiting_bytes + len(piece) > self._most_bytes
            if self._is_full:
                self._missing += _lines(piece)
            else:
                self._waiting.append(piece)
                self._waiting_bytes += len(piece)
                self._is_idle = False
                self._changed.notify_all()
        return len(piece)

    def drain(self) -> bool:
        """Wait until everything is written. Returns False if nothing can be written for a while."""
        with self._changed:
            while not self._is_idle:
                taken = self._taken
                if not self._changed.wait_for(
                    lambda: self._is_idle or self._taken != taken,  # noqa: B023  # called at once
                    _STUCK_S,
                ):
                    return False
        return True

    def _run(self) -> NoReturn:
        while True:
            piece = self._take()
            try:
                _write(self._fd, piece)
            except OSError:
                # A full disk, or a reader that has gone.
                with self._changed:
                    self._missing += _lines(piece)
            else:
                self._report()

    def _take(self) -> bytes:
        """The next piece, once there is one."""
        with self._changed:
            while not self._waiting:
                self._is_full = False
                self._is_idle = True
                self._changed.notify_all()
                self._changed.wait()
            self._taken += 1
            self._changed.notify_all()
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            return piece

    def _report(self) -> None:
        """Say how many lines are missing, after the last line before them."""
        with self._changed:
            if self._waiting or not self._missing:
                return
            missing, self._missing = self._missing, 0
            self._is_full = False
        # Not under the lock: one that logs holds the lock of its handler when it writes here.
        log.error("%d lines of this log are missing: nobody read them in time", missing)


def _lines(piece: bytes) -> int:
    """How many lines a piece counts as."""
    return max(piece.count(b"\n"), 1)


def _write(fd: int, piece: bytes) -> None:
    """Write all of it, also to a descriptor that another process has made non-blocking. Raises OSError."""
    left = memoryview(piece)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:
            select.select([], [fd], [])
