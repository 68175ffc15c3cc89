"""How long one client waits while another one asks for much, and how much memory the server takes."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.wire import RawConnection

if TYPE_CHECKING:
    from tests.support.servers import KorvetServer

_EVERY_S = 0.02


class Bystander:
    """A client that asks for little every 20 ms, as a context; `longest_s` is the longest that it waited."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = RawConnection(host, port, 120)
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._over = threading.Event()
        self.longest_s = 0.0

    def _ask(self) -> None:
        while True:
            began = time.perf_counter()
            works = self._connection.works()
            self.longest_s = max(self.longest_s, time.perf_counter() - began if works else float("inf"))
            if not works or self._over.wait(_EVERY_S):
                return

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.socket.close()


def peak_bytes(server: KorvetServer) -> int:
    """The most memory that the broker process has had at a time (VmHWM; Linux)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
