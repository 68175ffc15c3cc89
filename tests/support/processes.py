"""Child processes: output goes to a file, every wait has a deadline, processes end by process id."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from korvet.embedded import shim
from tests.support.polling import patient

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class Child:
    """One started program. Its output and errors are in `log`."""

    def __init__(self, args: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.args = list(args)
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                self.args,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(env) if env is not None else None,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self.running:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(timeout=10)

    def terminate(self, timeout_s: float = 20) -> int:
        """SIGTERM; returns the exit code. SIGKILL and an error if the process does not end in time."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            text = f"{self.args[:4]} ignored SIGTERM for {timeout_s:g} s:\n{self.output()[-4000:]}"
            raise AssertionError(text) from None


def bound_to_us() -> list[str]:
    """A command prefix that ends the command with this process, even if this process is killed; Linux
    only.
    """
    return shim.bound([])


def alive(pid: int) -> bool:
    """Whether a process of this id runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # the latter: the process ended during the read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def cpu_seconds(pid: int) -> float:
    """User and system CPU time of a process so far."""
    return sum(_times_s(pid)[:2])


def tree_cpu_seconds(pid: int, apart: Collection[int] = ()) -> float:
    """CPU time so far of a process and its descendants, ended ones included, without the processes `apart`; 0
    if the process has gone.
    """
    try:
        total = sum(_times_s(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return total + sum(tree_cpu_seconds(child, apart) for child in children(pid) if child not in apart)


def _times_s(pid: int) -> list[float]:
    """CPU times of a process: user, system, and those of its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]


def children(pid: int) -> list[int]:
    """Process IDs of a process's children."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += map(int, path.read_text().split())
    return found


def run(
    args: Sequence[str],
    timeout_s: float,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end; the result has its output. The caller judges a non-zero exit code.

    `timeout_s` is for an idle machine, see `patient`.
    """
    return subprocess.run(
        list(args),
        input=stdin,
        capture_output=True,
        timeout=patient(timeout_s),
        check=False,
        env=dict(env) if env is not None else None,
        cwd=cwd,
    )
