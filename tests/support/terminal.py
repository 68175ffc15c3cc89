"""A program in a terminal: a pseudo terminal of a given size, keys, and what was written to it."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
from typing import TYPE_CHECKING, Final

from tests.support.polling import DeadlineMissed, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Makes the terminal that of the program, so that Ctrl-C reaches it, and then runs the program.
_TAKE_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_SEQUENCE: Final = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|[=>])")


class TerminalProgram:
    """A program whose standard streams are a terminal. `close` it."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int = 120, rows: int = 30
    ) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (rows, columns))
        self.modes = termios.tcgetattr(theirs)
        self._theirs = theirs
        # These variables override the terminal's size. GNU readline sets them in the processes of pytest.
        inherited = {name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=inherited | {"TERM": "xterm-256color"},
            start_new_session=True,
        )
        self.written = ""

    def close(self) -> None:
        """End the program if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._ours)
        os.close(self._theirs)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def text(self) -> str:
        """All that was written, without escape sequences."""
        return _SEQUENCE.sub("", self.raw())

    def raw(self) -> str:
        """All that was written."""
        while select.select([self._ours], [], [], 0)[0]:
            self.written += os.read(self._ours, 65_536).decode("utf-8", "replace")
        return self.written

    def shows(self, words: str, timeout_s: float = 20) -> None:
        """Wait until these words are written after the last call."""
        try:
            until(lambda: words in self.text(), timeout_s, f"the terminal shows {words!r}")
        except DeadlineMissed as error:
            error.add_note(self.text()[-4000:])
            raise
        self.written = ""

    def ends(self, timeout_s: float = 60) -> int:
        """Wait until the program has ended; returns its exit status."""

        def ended() -> bool:
            # A program cannot end while it writes to a terminal that nobody reads.
            self.raw()
            return self.process.poll() is not None

        until(ended, timeout_s, "the program ends")
        return self.process.returncode

    def resize(self, columns: int, rows: int) -> None:
        termios.tcsetwinsize(self._ours, (rows, columns))

    def restored(self) -> bool:
        """Whether the modes of the terminal are those before the program."""
        return termios.tcgetattr(self._theirs) == self.modes
