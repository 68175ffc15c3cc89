"""The connection of a backup, with a server that is played by the test."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from korvet.backup.connection import Connection
from korvet.storage.link.address import parse_url

if TYPE_CHECKING:
    from pathlib import Path


def test_a_snapshot_that_waits_for_another_fork_is_awaited(tmp_path: Path) -> None:
    """The server sends a line feed every second until its rewrite of the append-only file has ended."""
    path = tmp_path / "socket"
    replies = b"+OK\r\n", b"+OK\r\n", b"\n" * 5_000 + b"+FULLRESYNC %b 17\r\n" % (b"0" * 40)

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            for reply in replies:
                client.recv(4096)
                client.sendall(reply)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        server = threading.Thread(target=serve)
        server.start()
        with Connection(parse_url(f"unix://{path}")[0]) as connection:
            assert connection.begin_snapshot() == ("0" * 40, 17)
        server.join()
