"""The terminal: its keys, one at a time, and its screen, restored at the end."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import sys
import termios
import tty
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text


class Terminal:
    """Reads keys and shows lines, from `opened`."""

    def __init__(self, live: Live, console: Console, keys: int | None) -> None:
        self._live = live
        self._console = console
        self._keys = keys
        # A character may arrive in two reads.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in cells."""
        return self._console.size.width, self._console.size.height

    def show(self, lines: list[Text]) -> None:
        """Replace what is on the screen."""
        for line in lines:
            line.no_wrap = True
        self._live.update(Group(*lines), refresh=True)

    def read(self, timeout_s: float) -> str | None:
        """Returns what was typed, after at most this time; None at the end of the input."""
        if self._keys is None:
            select.select([], [], [], timeout_s)
            return ""
        ready, _, _ = select.select([self._keys], [], [], timeout_s)
        if not ready:
            return ""
        content = os.read(self._keys, 1024)
        return self._decoder.decode(content) if content else None


@contextlib.contextmanager
def opened() -> Iterator[Terminal]:
    """Take the terminal of standard output, and the keys of standard input if that is one, too."""
    console = Console(highlight=False)
    keys = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if keys is None else termios.tcgetattr(keys)
    try:
        if keys is not None:
            # Ctrl-C still sends its signal.
            tty.setcbreak(keys)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield Terminal(live, console, keys)
    finally:
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
