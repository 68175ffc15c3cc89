"""`korvet serve` and its embedded server, which the tests play."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from korvet.cli import serve
from korvet.config.address import Address
from korvet.config.settings import Config
from tests.support.polling import until_async

DEADLINE_S = 20.0


class Loading:
    """A server that has exited, and reads its files for long when it is started again."""

    disk_space = SimpleNamespace(check=lambda: False, is_short=False)

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.ended = threading.Event()

    def described_end(self) -> str:
        return "was ended by SIGKILL"

    def launch(self) -> None:
        """Begin to read."""

    def wait_ready(self) -> None:
        self.waits.set()
        self.ended.wait(DEADLINE_S)

    def terminate(self) -> None:
        self.ended.set()


async def test_a_stop_does_not_wait_for_a_server_that_reads_its_files() -> None:
    server: Any = Loading()
    # The end of the loop waits for the threads that it has begun.
    watching = asyncio.create_task(serve._watch(server))
    await until_async(server.waits.is_set, DEADLINE_S, "the server is started again")
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert server.ended.is_set()


def test_a_standard_output_that_takes_nothing_does_not_end_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        serve._announce(Config(redis="redis://h"), None)(Address("127.0.0.1", 9092), "")
        monkeypatch.undo()
        # What is still in the buffer can't be written either.
        with contextlib.suppress(OSError):
            full.close()
    assert [record.getMessage() for record in caplog.records] == [
        "korvet is ready on 127.0.0.1:9092 (redis://h), but standard output takes no text: "
        "No space left on device"
    ]


@pytest.mark.parametrize(
    ("arguments", "warns"), [(["--data-dir", "folder"], True), (["--redis", "redis://host"], False)]
)
def test_a_data_folder_that_is_not_used_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, arguments: list[str], warns: bool
) -> None:
    """Settings of the embedded server do not turn off the Redis of the environment or the file."""
    served: list[Config] = []
    monkeypatch.setattr(serve, "_serve", lambda settings, profile: served.append(settings))
    monkeypatch.setattr(serve.logs, "configure", lambda *settings: None)
    variables = {"KORVET_REDIS": "redis://:hush@variable", "KORVET_CONFIG": None}
    assert CliRunner(env=variables).invoke(serve.serve, arguments).exit_code == 0
    assert bool(served[0].redis)
    expected = "--data-dir is not used: the data are in redis://:***@variable"
    assert (expected in caplog.messages) is warns
