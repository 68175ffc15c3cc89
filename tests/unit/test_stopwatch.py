"""Stopwatches of tests: other programs on the machine do not count, sleep does."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.support.stopwatch import Pace, Stopwatch

BUSY = "print(flush=True)\nwhile True: pass"


def test_sleep_counts() -> None:
    watch = Stopwatch()
    threading.Event().wait(0.2)
    assert watch.elapsed_s > 0.15


def test_a_slow_core_counts_less() -> None:
    slow, usual = Pace(), Pace()
    watches = [Stopwatch(pace=slow), Stopwatch(pace=usual), Stopwatch()]
    threading.Event().wait(0.2)
    slow.needed_s += [10.0, 20.0]
    usual.needed_s += [0.0, 0.0]
    slowed_s, usual_s, elapsed_s = [watch.elapsed_s for watch in watches]
    assert slowed_s < usual_s / 1_000
    assert 0.15 < usual_s <= elapsed_s


def test_a_pace_is_measured() -> None:
    pace = Pace()
    pace.start()
    until(lambda: len(pace.needed_s) > 3, 10, "some computations")
    pace.close()
    assert all(pace.needed_s)


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
