"""A TCP proxy between Kafka clients and a broker that is shown each frame before it passes it on."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

# Is called with a frame, without its length. Returns True to pass it on, False to drop it, and None to close
# the connections to the client and to the broker.
Take: TypeAlias = Callable[[bytes], bool | None]
_SIZE = struct.Struct(">i")


class FrameProxy:
    """Listens on `port` and passes frames on to `target_port`, which may be set later, until `close`."""

    def __init__(self, takes: Callable[[], tuple[Take, Take]]) -> None:
        """takes: called for each connection. Returns what takes frames of the client, and of the broker; each
        is called in a thread of its own.
        """
        self.target_port = 0
        self._takes = takes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target_port))
                except OSError:
                    client.close()
                    continue
                of_client, of_server = self._takes()
                for way in (
                    partial(_pass, client, server, of_client),
                    partial(_pass, server, client, of_server),
                ):
                    threading.Thread(target=way, daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, take: Take) -> None:
    try:
        while True:
            (size,) = _SIZE.unpack(_exactly(source, _SIZE.size))
            frame = _exactly(source, size)
            passes = take(frame)
            if passes is None:
                break
            if passes:
                target.sendall(_SIZE.pack(size) + frame)
    except (OSError, EOFError):
        pass
    finally:
        for each in (source, target):
            # Wakes the thread of the other direction, too.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = source.recv(size - len(found))
        if not piece:
            raise EOFError
        found += piece
    return bytes(found)
