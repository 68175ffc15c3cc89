"""A sampling profiler for the broker: where the process spends its CPU time, as folded stacks.

A timer of the process's CPU time (setitimer, ITIMER_PROF) interrupts it every few milliseconds of work, and
the Python stack of that moment is counted. C code has no frames of its own: its time counts for the Python
function that called it.
"""

from __future__ import annotations

import collections
import contextlib
import signal
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import CodeType, FrameType

# Kernels keep this timer in ticks of 1 to 10 ms; a shorter interval gives no more samples.
INTERVAL_S = 0.005
# Deeper stacks are cut off at their outer end.
_MOST_FRAMES = 64

_Stack = tuple[tuple["CodeType", str], ...]


class Sampler:
    """Counts the stacks of the main thread, innermost frame first. Only one can run in a process."""

    def __init__(self) -> None:
        self._counts: collections.Counter[_Stack] = collections.Counter()

    @property
    def samples(self) -> int:
        """How many stacks were counted so far."""
        return self._counts.total()

    def start(self) -> None:
        """Take samples from now on. Call from the main thread."""
        signal.signal(signal.SIGPROF, self._sample)
        # A system call that a sample interrupts goes on by itself.
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        """Take no more samples."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not SIG_DFL, which would end the process with a signal that is still on its way.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def folded(self) -> list[str]:
        """Lines of `outermost;...;innermost count`, the most frequent stack first, as flame graph tools
        read them.
        """
        named: collections.Counter[str] = collections.Counter()
        for stack, count in self._counts.items():
            named[";".join(f"{module}.{code.co_qualname}" for code, module in reversed(stack))] += count
        return [f"{names} {count}" for names, count in named.most_common()]

    def _sample(self, signum: int, frame: FrameType | None) -> None:
        stack: list[tuple[CodeType, str]] = []
        while frame is not None and len(stack) < _MOST_FRAMES:
            stack.append((frame.f_code, frame.f_globals.get("__name__", "?")))
            frame = frame.f_back
        self._counts[tuple(stack)] += 1


@contextlib.contextmanager
def profiled(path: Path) -> Iterator[None]:
    """Sample the block, and write folded stacks to the file at its end, however it ends. Raises
    ClickException at once where the file cannot be written.
    """
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write the profile to {path}: {error.strerror}") from error
    with file:
        sampler = Sampler()
        sampler.start()
        try:
            yield
        finally:
            sampler.stop()
            file.writelines(f"{line}\n" for line in sampler.folded())
