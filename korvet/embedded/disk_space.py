"""Free space on the data folder's disk.

A server that flushes every write exits when its disk is full, so korvet refuses writes before that.
"""

import os
from pathlib import Path
from typing import Final

# Fraction of the reserve that must be free in addition before writes are accepted again, so that a single
# record doesn't switch back and forth.
_HYSTERESIS: Final = 0.125


class DiskSpace:
    """Compares the free space of a folder's disk with a reserve. Call `check` repeatedly."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self.reserve_bytes = reserve_bytes
        self.free_bytes = 0
        """Free space at the last check."""
        self.is_short = False

    def check(self) -> bool:
        """Read the free space (statvfs). Returns whether `is_short` has changed; without a reserve it never
        does.
        """
        state = os.statvfs(self._folder)
        self.free_bytes = state.f_bavail * state.f_frsize
        needed_bytes = self.reserve_bytes * (1 + _HYSTERESIS if self.is_short else 1)
        was_short, self.is_short = self.is_short, self.free_bytes < needed_bytes
        return self.is_short is not was_short
