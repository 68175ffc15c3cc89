"""Free space on the data folder's disk.

A server that flushes every write ends when its disk is full. So writes are refused before.
"""

import os
from pathlib import Path
from typing import Final

# Writes are taken again above a reserve by this part of it, so that one record does not change it all.
_HYSTERESIS: Final = 0.125


class Room:
    """Whether a disk has less free space than is to be reserved; asked again and again."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self.reserve_bytes = reserve_bytes
        self.free_bytes = 0
        """As of the last look."""
        self.is_short = False

    def look(self) -> bool:
        """Whether `is_short` has changed (statvfs)."""
        if not self.reserve_bytes:
            return False
        state = os.statvfs(self._folder)
        self.free_bytes = state.f_bavail * state.f_frsize
        needed_bytes = self.reserve_bytes * (1 + _HYSTERESIS if self.is_short else 1)
        was_short, self.is_short = self.is_short, self.free_bytes < needed_bytes
        return self.is_short is not was_short
