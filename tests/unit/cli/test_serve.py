"""`korvet serve` and its embedded server, which the tests play."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

from korvet.cli import serve
from tests.support.polling import until_async

DEADLINE_S = 20.0


class Loading:
    """A server that has exited, and reads its files for long when it is started again."""

    disk_space = SimpleNamespace(check=lambda: False, is_short=False)

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.ended = threading.Event()

    def exit_status(self) -> int:
        return -9

    def launch(self) -> None:
        """Begin to read."""

    def wait_ready(self) -> None:
        self.waits.set()
        self.ended.wait(DEADLINE_S)

    def terminate(self) -> None:
        self.ended.set()


def test_a_stop_does_not_wait_for_a_server_that_reads_its_files() -> None:
    server: Any = Loading()

    async def work() -> None:
        watching = asyncio.create_task(serve._watch(server))

        async def waits() -> bool:
            return bool(server.waits.is_set())

        await until_async(waits, DEADLINE_S, "the server is started again")
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    began_s = time.monotonic()
    # The end of the loop waits for the threads that it has begun.
    asyncio.run(work())
    assert server.ended.is_set()
    assert time.monotonic() - began_s < DEADLINE_S
