"""A small disk that tests fill."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_MB = 1 << 20


class Disk:
    """A file system with a size of its own, in memory."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes
        self._filler = folder / "filler"
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0700", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {error}")

    def free_bytes(self) -> int:
        state = os.statvfs(self.folder)
        return state.f_bavail * state.f_frsize

    def fill(self, keep_bytes: int = 0) -> None:
        """Take every byte that is left except `keep_bytes`, as another program on the disk would."""
        with self._filler.open("ab", buffering=0) as file:
            while (left := self.free_bytes() - keep_bytes) > 0:
                try:
                    file.write(b"\0" * min(left, _MB))
                except OSError:
                    return

    def make_room(self) -> None:
        self._filler.unlink()

    def grow(self) -> None:
        options = f"remount,size={4 * self._size_bytes}"
        subprocess.run(["mount", "-o", options, str(self.folder)], check=True, capture_output=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)
