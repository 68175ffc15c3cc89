"""Signals of commands that must delete their temporary files."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """In the block, SIGTERM raises SystemExit with the status of a process that SIGTERM has ended. Call it on
    the main thread.
    """
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
