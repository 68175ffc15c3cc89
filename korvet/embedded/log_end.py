"""The end of a server's log, for messages."""

import os
from typing import Final

_MOST_BYTES: Final = 8192
_MOST_LINES: Final = 15


def end_of(fd: int) -> str:
    """Returns the end of a file, whose position its writers may share: that stays."""
    at = max(os.fstat(fd).st_size - _MOST_BYTES, 0)
    return os.pread(fd, _MOST_BYTES, at).decode(errors="replace")


def last_lines(fd: int) -> str:
    """Returns the last lines of a file, indented; empty without any."""
    return "\n".join(f"    {line}" for line in end_of(fd).splitlines()[-_MOST_LINES:])
