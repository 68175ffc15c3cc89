"""Fixtures of these tests: `korvet serve --ephemeral` as other programs start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.support.polling import until
from tests.support.processes import alive, children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

WAIT_S = 120
COMMAND = [sys.executable, "-m", "korvet", "serve", "--ephemeral"]


def bare_environment(scratch: Path, **more: str) -> dict[str, str]:
    """An environment without settings, in which every temporary file lies in `scratch`."""
    settings = ("KORVET_", "PYTHONUNBUFFERED")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    return {**kept, "HOME": str(scratch), "TMPDIR": str(scratch), **more}


def descendants(pid: int) -> set[int]:
    """Process IDs of all children, grandchildren and so on."""
    found = set(children(pid))
    return found.union(*(descendants(child) for child in found))


def until_ended(pids: set[int]) -> None:
    """Wait until none of the processes runs."""
    until(lambda: not any(map(alive, pids)), WAIT_S, f"all of {sorted(pids)} have ended")


class Ephemeral(NamedTuple):
    """A started `korvet serve --ephemeral`, and what it wrote."""

    process: subprocess.Popen[bytes]
    line: Mapping[str, Any]
    pids: set[int]

    @property
    def bootstrap(self) -> str:
        return str(self.line["bootstrap_servers"])

    @property
    def redis(self) -> str:
        return str(self.line["redis"])


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The working folder, home and folder for temporary files of what is started; in the end it is empty."""
    made = tmp_path / "scratch"
    made.mkdir()
    return made


@pytest.fixture
def serve(scratch: Path, tmp_path: Path) -> Iterator[Callable[..., Ephemeral]]:
    """Starts `korvet serve --ephemeral` with options and variables, and waits for its line."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str, **environ: str) -> Ephemeral:
        log = tmp_path / f"log-{len(started)}"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*COMMAND, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=scratch,
                env=bare_environment(scratch, **environ),
            )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        return Ephemeral(process, json.loads(line), {process.pid} | descendants(process.pid))

    yield start
    for process in started:
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.read() == b"", "only the line is on standard output"
        process.stdout.close()
        process.wait(WAIT_S)
    assert list(scratch.rglob("*")) == []
