"""Stopwatches of tests: other programs on the machine do not count, sleep does."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.stopwatch import Stopwatch

BUSY = "print(flush=True)\nwhile True: pass"


def test_sleep_counts() -> None:
    watch = Stopwatch()
    threading.Event().wait(0.2)
    assert watch.elapsed_s > 0.15


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system counts no waits for cores")
def test_other_programs_on_the_core_do_not_count() -> None:
    cores = os.sched_getaffinity(0)
    # Children inherit the core.
    os.sched_setaffinity(0, {min(cores)})
    rivals = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(3)]
    try:
        for each in rivals:
            assert each.stdout is not None
            each.stdout.readline()
        watch, began_s, ends_s = Stopwatch(), time.monotonic(), time.thread_time() + 0.2
        while time.thread_time() < ends_s:
            pass
        assert 0.15 < watch.elapsed_s < (time.monotonic() - began_s) / 2
    finally:
        os.sched_setaffinity(0, cores)
        for each in rivals:
            each.kill()
            each.communicate()
