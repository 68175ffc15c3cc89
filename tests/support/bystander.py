"""The longest wait of one client while another sends costly requests, and the server's peak memory."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.api.asking import Client, connect
from tests.api.batches import GZIP, batch
from tests.api.test_produce import request_of
from tests.support.admin import create_topic
from tests.support.polling import until
from tests.support.stopwatch import Pace, Stopwatch
from tests.support.wire import RawConnection

if TYPE_CHECKING:
    from tests.support.servers import KorvetServer

_EVERY_S = 0.02
_FETCH_BYTES = 1 << 20
_FETCH = {
    "max_wait": 100,
    "min_bytes": 1,
    "max_bytes": _FETCH_BYTES,
    "session_epoch": -1,
    "session_id": 0,
}


class Bystander:
    """A client with a cheap request every 20 ms, as a context; `longest_s` is its longest wait for the broker
    and its store, in seconds of a core of usual speed.
    """

    def __init__(self, server: KorvetServer) -> None:
        self._pids = pids_of(server)
        self._connection = RawConnection(server.host, server.port, 120)
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._over = threading.Event()
        self.pace = Pace()
        self.longest_s = 0.0

    def _ask(self) -> None:
        while True:
            watch = Stopwatch(*self._pids, pace=self.pace)
            works = self._connection.works()
            self.longest_s = max(self.longest_s, watch.elapsed_s if works else float("inf"))
            if not works or self._over.wait(_EVERY_S):
                return

    def __enter__(self) -> Self:
        self.pace.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._connection.socket.close()
        self.pace.close()


class OtherClient:
    """A client that produces a compressed record and fetches it every 50 ms, as a context; `longest_s` is
    its longest wait for the broker and its store, in seconds of a core of usual speed.
    """

    def __init__(self, server: KorvetServer) -> None:
        self._server = server
        self._pids = pids_of(server)
        self._done = threading.Event()
        self.pace = Pace()
        self._thread = threading.Thread(target=self._work)
        self.longest_s = 0.0
        self.rounds = 0

    def __enter__(self) -> OtherClient:
        create_topic(self._server.bootstrap, "other", 1)
        self.pace.start()
        self._thread.start()
        until(lambda: self.rounds >= 3, 20, "the other client works")
        self.longest_s = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(120)
        self.pace.close()
        assert not self._thread.is_alive()

    def _work(self) -> None:
        with connect(self._server, timeout_s=100) as client:
            while not self._done.wait(0.05):
                self._round(client)
                self.rounds += 1

    def _timed(self, client: Client, name: str, version: int, **fields: Any) -> Any:
        watch = Stopwatch(*self._pids, pace=self.pace)
        answer = client(name, version, **fields)
        self.longest_s = max(self.longest_s, watch.elapsed_s)
        return answer

    def _round(self, client: Client) -> None:
        records = batch([(b"k", b"v" * 1000)], attributes=GZIP, compress=gzip.compress)
        answer = self._timed(client, "Produce", 9, **request_of([("other", 0, records)]))
        (part,) = answer.responses[0].partition_responses
        assert part.error_code == 0
        wanted = {"partition": 0, "fetch_offset": part.base_offset, "partition_max_bytes": _FETCH_BYTES}
        topics = [{"topic": "other", "partitions": [wanted]}]
        found = self._timed(client, "Fetch", 11, **_FETCH, topics=topics)
        assert found.responses[0].partitions[0].records


def pids_of(server: KorvetServer) -> tuple[int, int]:
    """The processes of a broker and its embedded store, for a stopwatch."""
    return server.process.pid, server.store_pid()


def peak_bytes(server: KorvetServer) -> int:
    """The peak memory of the broker process (VmHWM; Linux)."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
