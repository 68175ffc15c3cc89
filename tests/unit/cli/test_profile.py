"""The sampling profiler: its counts, and the lines that it writes."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import click
import pytest

from korvet.cli.profile import Sampler, profiled

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20.0
LINE = re.compile(r"[^ ;]+(;[^ ;]+)* \d+")


def spin(sampler: Sampler, samples: int) -> None:
    """Use CPU time until `count` samples are taken."""
    deadline = time.monotonic() + DEADLINE_S
    while sampler.samples < samples:
        assert time.monotonic() < deadline, f"{sampler.samples} samples"


def test_busy_functions_are_found_with_their_callers() -> None:
    sampler = Sampler()
    sampler.start()
    try:
        spin(sampler, 10)
    finally:
        sampler.stop()
    counted = dict(line.rsplit(" ", 1) for line in sampler.folded())
    here = [int(count) for stack, count in counted.items() if f"{__name__}.spin" in stack.split(";")]
    caller = f"{__name__}.test_busy_functions_are_found_with_their_callers;{__name__}.spin"
    assert any(caller in stack for stack in counted)
    assert sum(map(int, counted.values())) == sampler.samples >= 10
    assert sum(here) >= 9
    assert [int(line.rsplit(" ", 1)[1]) for line in sampler.folded()] == sorted(
        map(int, counted.values()), reverse=True
    )


def test_nothing_is_counted_after_the_end() -> None:
    sampler = Sampler()
    sampler.start()
    spin(sampler, 1)
    sampler.stop()
    signal.raise_signal(signal.SIGPROF)
    taken = sampler.samples
    ends = time.process_time() + 0.05
    while time.process_time() < ends:
        pass
    assert sampler.samples == taken
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_the_file_is_written_when_the_block_ends_with_an_error(tmp_path: Path) -> None:
    path = tmp_path / "profile"

    def work() -> None:
        ends = time.process_time() + 0.1
        while time.process_time() < ends:
            pass
        raise KeyError

    with pytest.raises(KeyError), profiled(path):
        work()
    lines = path.read_text().splitlines()
    assert lines
    assert all(LINE.fullmatch(line) for line in lines)


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with (
        pytest.raises(click.ClickException, match="cannot write the profile"),
        profiled(tmp_path / "no" / "f"),
    ):
        pytest.fail("the block was entered")
