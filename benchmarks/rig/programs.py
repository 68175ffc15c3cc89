"""The C load clients of benchmarks/load, compiled into the build folder if a source is newer."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "benchmarks" / "load"
BUILD = ROOT / "build" / "benchmarks"
# Additional wait after a client's own deadline: then it has failed silently.
GRACE_S = 120.0


class LoadFailed(RuntimeError):
    """A load client can't be built, or failed. The message is its output."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The counts of a load client, by their printed names (records, seconds, cpu_s ...)."""

    counts: dict[str, float]

    @property
    def records(self) -> int:
        return int(self.counts["records"])

    @property
    def requests(self) -> int:
        return int(self.counts["requests"])

    @property
    def seconds(self) -> float:
        return self.counts["seconds"]

    @property
    def rate(self) -> float:
        """Records per second."""
        return self.counts["records"] / self.counts["seconds"]

    @property
    def cpu_s(self) -> float:
        return self.counts["cpu_s"]


def compiled(name: str) -> Path:
    """Returns the program of this name, built with $CC or cc. Raises LoadFailed."""
    source, program = SOURCES / f"{name}.c", BUILD / name
    newest = max(path.stat().st_mtime for path in (source, *SOURCES.glob("*.h")))
    if program.exists() and program.stat().st_mtime >= newest:
        return program
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise LoadFailed(f"the load clients need a C compiler: no {compiler[0]} on PATH (or set CC)")
    BUILD.mkdir(parents=True, exist_ok=True)
    partial = program.with_name(f"{name}.{os.getpid()}")
    command = [*compiler, "-O2", "-Wall", "-Wextra", "-o", str(partial), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"{source.name} cannot be compiled:\n{done.stderr}")
    partial.rename(program)
    return program


def start(name: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a load client; `outcome_of` waits for it."""
    command = [str(compiled(name)), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome_of(process: subprocess.Popen[str]) -> Outcome:
    """Wait for a started client. Returns its counts. Raises LoadFailed."""
    try:
        out, err = process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise LoadFailed(f"{process.args!r} did not end within {GRACE_S:g} s") from None
    if process.returncode != 0:
        raise LoadFailed(f"{process.args!r} ended with {process.returncode}: {err.strip()}")
    return Outcome(json.loads(out))


def run(name: str, *arguments: object) -> Outcome:
    """Run a load client to its end. Raises LoadFailed."""
    return outcome_of(start(name, *arguments))


@contextlib.contextmanager
def idling(address: str, connections: int, *options: object) -> Iterator[None]:
    """Hold idle connections (benchmarks/load/idle.c). Raises LoadFailed."""
    command = [str(compiled("idle")), address, str(connections), *map(str, options)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != "ready\n":
            raise LoadFailed(f"{command!r}: {process.stderr.read()}")
        yield
        process.stdin.close()
