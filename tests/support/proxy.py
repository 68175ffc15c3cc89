"""A TCP proxy that cuts connections: it resets them at once, or after some bytes in either direction, or
silently passes nothing on.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field

# SO_LINGER on with 0 seconds: close() sends RST, as a crashed peer or a firewall would.
_RESET = struct.pack("ii", 1, 0)
_CHUNK_BYTES = 65_536


@dataclass(eq=False, slots=True)
class _Pair:
    """A client's connection and its twin to the server."""

    client: socket.socket
    server: socket.socket
    # Bytes that may still pass in each direction before the cut; None: all.
    allowance: dict[socket.socket, int | None] = field(default_factory=dict)

    def other(self, side: socket.socket) -> socket.socket:
        return self.server if side is self.client else self.client


class CuttingProxy:
    """Listens on a port of its own and passes everything on to the target, until it cuts."""

    def __init__(self, target_port: int = 0) -> None:
        self.target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._pairs: dict[socket.socket, _Pair] = {}
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._cut_after: tuple[int | None, int | None] = (None, None)
        self._frozen: list[_Pair] = []
        self._refusing = False
        self.connections = 0
        self.cuts = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every open connection."""
        with self._lock:
            for pair in set(self._pairs.values()):
                self._drop(pair)

    def cut_after(self, from_client_bytes: int | None = None, from_server_bytes: int | None = None) -> None:
        """Reset each new connection after `after_bytes` have passed; the rest of the last chunk is lost."""
        with self._lock:
            self._cut_after = (from_client_bytes, from_server_bytes)

    def freeze(self) -> None:
        """Every open connection stays open and passes nothing on: a half-open connection."""
        with self._lock:
            for pair in set(self._pairs.values()):
                self._frozen.append(pair)
                self._forget(pair)

    def refuse(self, *, refusing: bool) -> None:
        """Whether new connections are reset at once."""
        self._refusing = refusing

    def close(self) -> None:
        self._closing.set()
        self._thread.join(5)
        self.cut()
        for pair in self._frozen:
            pair.client.close()
            pair.server.close()
        self._selector.close()
        self._listener.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            for key, _ in self._selector.select(0.05):
                side = key.fileobj
                assert isinstance(side, socket.socket)
                if side is self._listener:
                    self._accept()
                else:
                    self._pass_on(side)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._refusing:
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self.target_port), 5)
        except OSError:
            client.close()
            return
        with self._lock:
            pair = _Pair(client, server)
            pair.allowance = dict(zip((client, server), self._cut_after, strict=True))
            self.connections += 1
            for side in (client, server):
                self._pairs[side] = pair
                self._selector.register(side, selectors.EVENT_READ)

    def _pass_on(self, side: socket.socket) -> None:
        with self._lock:
            pair = self._pairs.get(side)
            if pair is None:
                return
            try:
                content = side.recv(_CHUNK_BYTES)
                allowed = pair.allowance[side]
                if allowed is not None:
                    pair.allowance[side] = allowed - len(content)
                    content = content[:allowed]
                pair.other(side).sendall(content)
            except OSError:
                content = b""
            if not content or pair.allowance[side] == 0 or (pair.allowance[side] or 0) < 0:
                self._drop(pair)

    def _drop(self, pair: _Pair) -> None:
        self.cuts += 1
        self._forget(pair)
        for side in (pair.client, pair.server):
            with contextlib.suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            side.close()

    def _forget(self, pair: _Pair) -> None:
        for side in (pair.client, pair.server):
            del self._pairs[side]
            self._selector.unregister(side)
