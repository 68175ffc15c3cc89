"""The demonstration's child processes: a broker with its embedded server, and the report."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# The first start replays nothing and takes about a second; a busy machine may need longer.
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 15.0
_POLL_S = 0.05
_READY = re.compile(r"korvet is ready on (\S+:\d+)")
_LOG_TAIL_CHARACTERS = 2_000


def korvet_command(*arguments: str) -> list[str]:
    """A `korvet` command line that runs in this environment."""
    return [sys.executable, "-m", "korvet", *arguments]


@contextmanager
def broker(data_dir: Path, log: Path) -> Iterator[str]:
    """Run `korvet serve` on a free port; yields its HOST:PORT. Raises click.ClickException when it fails.

    It ends, and its embedded server with it, when the context does.
    """
    command = korvet_command("serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir))
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield _wait_ready(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline:
        found = _READY.search(log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    tail = log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
    raise click.ClickException(f"the broker did not start:\n{tail}")


def report(data_dir: Path, out: Path, note: Callable[[str], None]) -> str:
    """Run `korvet report` on the broker's data; its last line. Raises click.ClickException when it fails."""
    command = korvet_command("report", "--data-dir", str(data_dir), "--out", str(out))
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            note(lines[-1])
    if process.returncode != 0 or not lines:
        raise click.ClickException("the report failed:\n" + "\n".join(lines[-20:]))
    return lines[-1]
