"""One blocking connection to a server, which can also receive a snapshot as a replica does."""

import contextlib
import io
import socket
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from korvet.backup.errors import BackupError
from korvet.records.kernel import pack_command
from korvet.redis.address import RedisAddress
from korvet.redis.client import client_of

# Longest silence of a server. While a server prepares a snapshot, it sends a line feed every second.
_TIMEOUT_S: Final = 60.0
_PIECE_BYTES: Final = 1 << 20
_MARK_BYTES: Final = 40
"""Length of the random mark that ends a snapshot of unknown size."""


class ServerError(BackupError):
    """An error reply; the message is the server's."""


class RedisConnection:
    """A connection with its credentials and its database. Every method may raise BackupError."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._link: Any = client_of(address, _TIMEOUT_S).connection_pool.make_connection()
        self._open()

    def _open(self) -> None:
        try:
            self._link.connect()
        except (AuthenticationError, ResponseError) as error:
            raise self._failed(f"refuses the connection: {error}") from error
        except RedisError as error:
            raise self._failed(f"cannot be reached: {error}") from error

    @property
    def _socket(self) -> socket.socket:
        """The open socket. redis-py has no public name for it."""
        found: socket.socket | None = self._link._sock
        if found is None:
            raise self._failed("gives no answer: the connection was closed")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a snapshot in progress ends."""
        self._link.disconnect()

    def shut_down(self) -> None:
        """End a call of another thread: it raises BackupError. `close` remains to be called."""
        with contextlib.suppress(OSError, BackupError):  # the connection has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def call(self, *command: bytes | str | int) -> Any:
        """Send one command. Returns its reply: bytes, int, list or None. Raises ServerError."""
        (reply,) = self.pipeline([command])
        if isinstance(reply, ServerError):
            raise reply
        return reply

    def pipeline(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        """Send several commands at once. Returns their replies; an error reply is a ServerError in its
        place.
        """
        # redis-py packs several times slower, and a restore sends everything.
        packed = b"".join(pack_command(*command) for command in commands)
        try:
            # After a loss, redis-py would open another connection, in the first database and without a name.
            self._socket.sendall(packed)
            return [self._reply() for _ in commands]
        except (OSError, RedisError) as error:
            raise self._failed(f"gives no answer: {error}") from error

    def _reply(self) -> Any:
        try:
            return self._link.read_response()
        except (AuthenticationError, ResponseError) as error:
            return ServerError(str(error))

    def info(self, section: str) -> dict[str, str]:
        """The fields of one section of INFO."""
        lines = self.call("INFO", section).decode(errors="replace").splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def begin_snapshot(self) -> tuple[str, int]:
        """Ask for a snapshot of everything. Returns the ID of the server's history and the replication offset
        to which the snapshot extends. Redis commands INFO, REPLCONF, PSYNC.

        The snapshot holds every write that was answered before this call. The call may last until the end of
        another snapshot.
        """
        before = self.info("replication")
        while (begun := self.begin_snapshot_since(before)) is None:
            self._head()
            self.close()
            self._open()
        return begun

    def begin_snapshot_since(self, before: Mapping[str, str]) -> tuple[str, int] | None:
        """As begin_snapshot, for a snapshot with every write up to a moment: `before` is INFO replication of
        that moment. Returns None if the server sends an older snapshot.
        """
        history, offset = self._request_snapshot()
        # With `repl-diskless-sync no`, a server may send the snapshot that it writes for another client.
        # It counts all writes while it has such a client, so a lower offset shows that some are missing.
        if history == before["master_replid"] and offset < int(before["master_repl_offset"]):
            return None
        return history, offset

    def _request_snapshot(self) -> tuple[str, int]:
        try:
            self.call("REPLCONF", "capa", "eof")
            # The server then sends no commands after the snapshot, and keeps none for us.
            self.call("REPLCONF", "rdb-only", 1)
            reply = self._synchronize()
        except ServerError as error:
            raise self._failed(
                f"gives no snapshot: {error}. Its user needs the permissions +psync and +replconf"
            ) from error
        words = reply.decode(errors="replace").split()
        if len(words) != 3 or words[0] != "+FULLRESYNC" or not words[2].isdecimal():
            raise self._failed(f"gives no snapshot: its reply is {reply[:100]!r}")
        return words[1], int(words[2])

    def _synchronize(self) -> bytes:
        """Send PSYNC. Returns the line of its reply, after which redis-py could not read the snapshot."""
        self._input = io.BufferedReader(socket.SocketIO(self._socket, "rb"), _PIECE_BYTES)
        try:
            self._link.send_command("PSYNC", "?", -1)
        except RedisError as error:
            raise self._failed(f"gives no answer: {error}") from error
        line = self._line()
        if line.startswith(b"-"):
            raise ServerError(line[1:].decode(errors="replace").strip())
        return line

    def snapshot(self) -> Iterator[bytes]:
        """Yields the snapshot, an RDB file, in pieces; raises BackupError if it ends before its end."""
        try:
            head = self._head()
            if head.startswith(b"$EOF:"):
                yield from _until_mark(self._input, head[5:].strip())
            else:
                yield from _counted(self._input, int(head[1:]))
        except (OSError, ValueError) as error:
            raise self._failed(f"has not sent the whole snapshot: {error}") from error

    def _head(self) -> bytes:
        """The line before a snapshot. If the snapshot goes to a disk, the line comes when it is complete."""
        head = self._line()
        if not head.startswith(b"$"):
            raise self._failed(f"gives no snapshot: {head[:200].decode(errors='replace').strip()!r}")
        return head

    def _line(self) -> bytes:
        """The next line that is not empty: the server sends empty ones as signs of life."""
        try:
            line = self._input.readline()
            while line == b"\n":
                line = self._input.readline()
        except OSError as error:
            raise self._failed(f"gives no snapshot: {error}") from error
        if not line:
            raise self._failed("gives no snapshot: the connection was closed")
        return line

    def _failed(self, reason: str) -> BackupError:
        return BackupError(f"the server at {self.address} {reason}")


def _counted(pieces: "io.BufferedReader[socket.SocketIO]", left: int) -> Iterator[bytes]:
    while left:
        piece = pieces.read1(min(left, _PIECE_BYTES))
        if not piece:
            raise ConnectionError("the connection was closed")
        left -= len(piece)
        yield piece


def _until_mark(pieces: "io.BufferedReader[socket.SocketIO]", mark: bytes) -> Iterator[bytes]:
    if len(mark) != _MARK_BYTES:
        raise ValueError("the mark of its end is malformed")
    held = b""
    while not held.endswith(mark):
        piece = pieces.read1(_PIECE_BYTES)
        if not piece:
            raise ConnectionError("the connection was closed")
        held += piece
        # The end may be the mark, or its beginning.
        yield held[:-_MARK_BYTES]
        held = held[-_MARK_BYTES:]
