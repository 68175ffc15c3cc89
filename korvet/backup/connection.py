"""One blocking connection to a server (RESP2), which can also receive a snapshot as a replica does."""

import contextlib
import io
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from korvet.backup.errors import BackupError
from korvet.records.kernel import pack_command
from korvet.storage.link.address import RedisAddress

# Longest silence of a server. While a server prepares a snapshot, it sends a line feed every second.
_TIMEOUT_S: Final = 60.0
_CONNECT_TIMEOUT_S: Final = 10.0
_PIECE_BYTES: Final = 1 << 20
_MARK_BYTES: Final = 40
"""Length of the random mark that ends a snapshot of unknown size."""


class ServerError(BackupError):
    """An error reply; the message is the server's."""


class Connection:
    """A connection with its credentials and its database. Every method may raise BackupError."""

    def __init__(self, address: RedisAddress) -> None:
        self.address = address
        self._open()

    def _open(self) -> None:
        try:
            self._socket = _connect(self.address)
        except OSError as error:
            raise self._failed(f"cannot be reached: {error}") from error
        self._input = io.BufferedReader(socket.SocketIO(self._socket, "rb"), _PIECE_BYTES)
        try:
            if self.address.password is not None:
                user = (self.address.username,) if self.address.username else ()
                self.call("AUTH", *user, self.address.password)
            if self.address.database:
                self.call("SELECT", self.address.database)
        except ServerError as error:
            self.close()
            raise self._failed(f"refuses the connection: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a snapshot in progress ends."""
        self._input.close()
        self._socket.close()

    def shut_down(self) -> None:
        """End a call of another thread: it raises BackupError. `close` remains to be called."""
        with contextlib.suppress(OSError):  # the connection has ended already
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
        try:
            self._socket.sendall(b"".join(pack_command(*command) for command in commands))
            return [self._reply() for _ in commands]
        except (OSError, ValueError) as error:
            raise self._failed(f"gives no answer: {error}") from error

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
            reply = self.call("PSYNC", "?", -1)
        except ServerError as error:
            raise self._failed(
                f"gives no snapshot: {error}. Its user needs the permissions +psync and +replconf"
            ) from error
        words = reply.decode(errors="replace").split()
        if len(words) != 3 or words[0] != "FULLRESYNC" or not words[2].isdecimal():
            raise self._failed(f"gives no snapshot: its reply is {reply[:100]!r}")
        return words[1], int(words[2])

    def snapshot(self) -> Iterator[bytes]:
        """Yields the snapshot, an RDB file, in pieces; raises BackupError if it ends before its end."""
        try:
            head = self._head()
            if head.startswith(b"$EOF:"):
                yield from self._until_mark(head[5:].strip())
            else:
                yield from self._counted(int(head[1:]))
        except (OSError, ValueError) as error:
            raise self._failed(f"has not sent the whole snapshot: {error}") from error

    def _head(self) -> bytes:
        """The line before a snapshot. If the snapshot goes to a disk, the line comes when it is complete."""
        try:
            head = self._input.readline()
            while head == b"\n":
                head = self._input.readline()
        except OSError as error:
            raise self._failed(f"gives no snapshot: {error}") from error
        if not head:
            raise self._failed("gives no snapshot: the connection was closed")
        if not head.startswith(b"$"):
            raise self._failed(f"gives no snapshot: {head[:200].decode(errors='replace').strip()!r}")
        return head

    def _counted(self, left: int) -> Iterator[bytes]:
        while left:
            piece = self._input.read1(min(left, _PIECE_BYTES))
            if not piece:
                raise ConnectionError("the connection was closed")
            left -= len(piece)
            yield piece

    def _until_mark(self, mark: bytes) -> Iterator[bytes]:
        if len(mark) != _MARK_BYTES:
            raise ValueError("the mark of its end is malformed")
        held = b""
        while not held.endswith(mark):
            piece = self._input.read1(_PIECE_BYTES)
            if not piece:
                raise ConnectionError("the connection was closed")
            held += piece
            # The end may be the mark, or its beginning.
            yield held[:-_MARK_BYTES]
            held = held[-_MARK_BYTES:]

    def _reply(self) -> Any:
        line = self._input.readline()
        while line == b"\n":  # a sign of life before the reply to PSYNC
            line = self._input.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection was closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b"*":
            return None if rest == b"-1" else [self._reply() for _ in range(int(rest))]
        raise ValueError(f"{line[:100]!r} is no reply")

    def _bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        found = self._input.read(size + 2)
        if len(found) != size + 2:
            raise ConnectionError("the connection was closed")
        return found[:-2]

    def _failed(self, reason: str) -> BackupError:
        return BackupError(f"the server at {self.address} {reason}")


def _connect(address: RedisAddress) -> socket.socket:
    if address.socket_path is not None:
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.settimeout(_CONNECT_TIMEOUT_S)
            plain.connect(address.socket_path)
        except BaseException:
            plain.close()
            raise
    else:
        plain = socket.create_connection((address.host, address.port), _CONNECT_TIMEOUT_S)
    plain.settimeout(_TIMEOUT_S)
    if not address.tls:
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=address.host)
