"""Room on a short disk: the append-only file shrinks only when the server rewrites it, even if most of its
content was deleted, and by itself the server rewrites it only after it has grown.
"""

from pathlib import Path
from typing import Final

from korvet.embedded.disk_space import DiskSpace
from korvet.embedded.probe import Probe

_INTERVAL_S: Final = 10.0
# How many times larger than the data in memory the file must be. A file that was just rewritten is smaller.
_EXCESS: Final = 4


class Room:
    """Lets a server rewrite its file while its disk is short, if that frees space. Call `make` repeatedly."""

    def __init__(self, socket: Path, disk: DiskSpace) -> None:
        self._socket = socket
        self._disk = disk
        self._next_s = 0.0
        self._rewritten_bytes: int | None = None
        """The data in memory at the last rewrite; None if the disk has had room since."""

    def make(self, now_s: float) -> bool:
        """Returns whether a rewrite was begun. Raises ProbeError."""
        self._disk.check()
        if not self._disk.is_short:
            self._rewritten_bytes = None
            return False
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _INTERVAL_S
        with Probe(self._socket) as probe:
            file = probe.info("persistence")
            # Absent after CONFIG SET appendonly no.
            file_bytes, base_bytes = (int(file.get(f"aof_{size}_size", 0)) for size in ("current", "base"))
            data_bytes = int(probe.info("memory")["used_memory_dataset"])
            if not self._frees_space(file_bytes, base_bytes, data_bytes):
                return False
            probe.rewrite()
        self._rewritten_bytes = data_bytes
        return True

    def _frees_space(self, file_bytes: int, base_bytes: int, data_bytes: int) -> bool:
        """Whether the file is much larger than the data, and half of the free space is enough for a new one.

        After a rewrite (`base_bytes`: its size), the data must have halved, or the file doubled.
        """
        before = self._rewritten_bytes
        if before is not None and 2 * data_bytes > before and file_bytes < 2 * base_bytes:
            return False
        return file_bytes > _EXCESS * data_bytes and _EXCESS * data_bytes < self._disk.free_bytes // 2
