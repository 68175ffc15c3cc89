"""Test processes that are killed at any moment leave no process and no file."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.testing.conftest import WAIT_S, bare_environment

SEED = int(os.environ.get("KORVET_TEST_SEED", "20261129"))
# Uses a broker, says so, and begins again.
PROGRAM = """
from korvet.testing import KorvetBroker

while True:
    with KorvetBroker() as broker:
        broker.create_topic("topic")
        broker.restart(abruptly=True)
        print("used", flush=True)
"""


def processes_of(scratch: Path) -> list[int]:
    """Process IDs of all whose temporary folder is `scratch`, whoever their parents are now."""
    mark = f"TMPDIR={scratch}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
        except OSError:  # it has ended, or belongs to another user
            continue
        if mark in variables:
            found.append(int(path.parent.name))
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long)])
def test_killed_test_processes_leave_nothing(count: int, scratch: Path) -> None:
    moments = random.Random(SEED)
    environ = bare_environment(scratch)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env=environ,
        )

    began_s = time.monotonic()
    with start() as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"used\n"
        duration_s = time.monotonic() - began_s
        # At times no broker runs.
        until(lambda: len(processes_of(scratch)) > 1, WAIT_S, "a broker runs")
        first.kill()
    for _ in range(count):
        with start() as process:
            try:
                process.wait(moments.uniform(0, 1.5 * duration_s))
            except subprocess.TimeoutExpired:
                process.kill()
            else:
                pytest.fail(f"the program ended by itself: {process.returncode}")
        until(lambda: not processes_of(scratch), WAIT_S, "all processes have ended")
        assert list(scratch.iterdir()) == []
