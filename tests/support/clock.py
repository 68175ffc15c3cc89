"""Wall clocks that tests shift while a process runs (Linux, with a C compiler)."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOURCE = Path(__file__).with_suffix(".c")


class Clock:
    """The clock of the processes that start with its `environ`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = folder / f"{name}.clock"
        self.shift(0)
        library = folder / "clock.so"
        compiler = shutil.which("cc")
        if compiler is not None and not library.exists():
            command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE)]
            subprocess.run(command, check=True)
        self.can_shift = library.exists()
        self.environ: Mapping[str, str] = (
            {"LD_PRELOAD": str(library), "TEST_CLOCK": str(self._file)} if self.can_shift else {}
        )

    def shift(self, seconds: int) -> None:
        """Set the distance to this machine's clock."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))
