"""A sampling profiler of the broker's CPU time, which writes folded stacks.

A timer of the process's CPU time (setitimer, ITIMER_PROF) interrupts it every few milliseconds of work, and
the handler counts the current Python stack. C code has no frames: its time counts for the Python function
that called it.
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

# Sampling interval. Linux keeps this timer in ticks of 1 to 10 ms, so a shorter one gives no more samples.
INTERVAL_S = 0.005
# Limits the frames of a stack; outer frames are cut off.
_MOST_FRAMES = 64

_Stack = tuple[tuple["CodeType", str], ...]


class Sampler:
    """Counts the stacks of the main thread, innermost frame first. A process can run only one."""

    def __init__(self) -> None:
        self._counts: collections.Counter[_Stack] = collections.Counter()

    @property
    def samples(self) -> int:
        """The number of samples so far."""
        return self._counts.total()

    def start(self) -> None:
        """Start sampling. Call from the main thread."""
        signal.signal(signal.SIGPROF, self._sample)
        # System calls that a sample interrupts restart by themselves.
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def stop(self) -> None:
        """Stop sampling."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        # Not SIG_DFL: a pending signal would then end the process.
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def folded(self) -> list[str]:
        """Returns lines `outermost;...;innermost count`, the most frequent stack first, for flame graph
        tools.
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
    """Sample the block, and write folded stacks to the file when it ends, also by an exception.

    Raises ClickException before the block runs if the file can't be written.
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
