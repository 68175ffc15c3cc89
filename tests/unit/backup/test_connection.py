"""The connection of a backup, with a server that is played by the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from korvet.backup.connection import RedisConnection
from korvet.backup.errors import BackupError
from korvet.redis.address import parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Replies = Sequence[bytes]

OK = b"+OK\r\n"
HISTORY, OTHER_HISTORY = "0" * 40, "1" * 40


def info(offset: int) -> bytes:
    """The reply to INFO replication."""
    text = b"# Replication\r\nmaster_replid:%b\r\nmaster_repl_offset:%d\r\n" % (HISTORY.encode(), offset)
    return b"$%d\r\n%b\r\n" % (len(text), text)


def full_resync(offset: int, history: str = HISTORY) -> bytes:
    """The reply to PSYNC."""
    return b"+FULLRESYNC %b %d\r\n" % (history.encode(), offset)


@contextlib.contextmanager
def serving(folder: Path, *connections: Replies) -> Iterator[RedisConnection]:
    """Yields a connection to a server that expects these connections, and sends a reply to each command."""
    path = folder / "socket"

    def serve() -> None:
        for replies in connections:
            client, _ = listener.accept()
            with client:
                # redis-py tells its name and its version first.
                for reply in (OK, OK, *replies):
                    client.recv(4096)
                    client.sendall(reply)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        with RedisConnection(parse_url(f"unix://{path}")[0]) as connection:
            yield connection
        server.join(20)
        assert not server.is_alive()


def test_a_snapshot_that_waits_for_another_fork_is_awaited(tmp_path: Path) -> None:
    """The server sends a line feed every second until its rewrite of the append-only file has ended."""
    with serving(tmp_path, [info(17), OK, OK, b"\n" * 5_000 + full_resync(17)]) as connection:
        assert connection.begin_snapshot() == (HISTORY, 17)


def test_a_snapshot_that_began_before_the_call_is_not_taken(tmp_path: Path) -> None:
    """It lacks the writes between its beginning and the call."""
    earlier = [info(17), OK, OK, full_resync(16) + b"\n\n$7\r\nearlier"]
    later = [OK, OK, full_resync(18) + b"\n$5\r\nlater"]
    with serving(tmp_path, earlier, later) as connection:
        assert connection.begin_snapshot() == (HISTORY, 18)
        assert b"".join(connection.snapshot()) == b"later"


def test_the_offsets_of_two_histories_are_not_compared(tmp_path: Path) -> None:
    """A history that began after the call has only later snapshots."""
    with serving(tmp_path, [info(17), OK, OK, full_resync(1, OTHER_HISTORY)]) as connection:
        assert connection.begin_snapshot() == (OTHER_HISTORY, 1)


def test_a_lost_connection_is_not_replaced(tmp_path: Path) -> None:
    """A new one would write into the first database, although another was selected."""
    with serving(tmp_path, [OK]) as connection:
        assert connection.call("SELECT", 3) == b"OK"
        with pytest.raises(BackupError, match="gives no answer"):
            connection.call("SET", "a", "b")
        with pytest.raises(BackupError, match=r"gives no answer: .*(closed|Broken pipe)"):
            connection.call("SET", "a", "b")
