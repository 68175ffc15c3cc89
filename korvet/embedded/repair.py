"""Mending an append-only file that the server refuses: a copy of everything first, then a cut at the damage.

The server's program is its own checker when it is run under that name (valkey-check-aof --fix).
"""

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

from korvet.embedded import folder
from korvet.embedded.binary import ServerBinary, find_server
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.privacy import UMASK

_FILES: Final = "appendonlydir"
_MANIFEST: Final = "appendonly.aof.manifest"
_ANALYZED: Final = re.compile(r"filename=(?P<name>\S+), size=\d+, ok_up_to=\d+,.* diff=(?P<bad>[1-9]\d*)")
# It reads everything once: about 100 MB/s on a slow disk, for a file of a terabyte.
_CHECK_TIMEOUT_S: Final = 10_000.0


class Damage(NamedTuple):
    """What the checker says of a file that is not sound."""

    report: str
    name: str
    """The first damaged file; empty if the report names none."""
    lost_bytes: int
    """What a cut at the damage takes away, to the end of the file."""


class Repair:
    """A data folder that is being mended: nobody else can use it inside `with`.

    Raises EmbeddedServerError: folder in use, no server program, another writer's folder, no files.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._locks = [folder.FolderLock(self.data_dir / name) for name in ("korvet.lock", "server.lock")]
        self._binary: ServerBinary | None = None

    def __enter__(self) -> "Repair":
        if not (self.data_dir / _FILES / _MANIFEST).exists():
            raise EmbeddedServerError(f"{self.data_dir} holds no data of an embedded server")
        self._binary = find_server()
        folder.open_folder(self.data_dir)
        try:
            for lock in self._locks:
                if not lock.acquire():
                    holder = folder.describe_holder(lock.holder())
                    raise EmbeddedServerError(f"the data folder {self.data_dir} is in use by {holder}")
            folder.check_writer(self.data_dir, self._binary)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for lock in self._locks:
            lock.release()

    def find(self) -> Damage | None:
        """What is damaged; None if everything is sound."""
        status, report = self._check()
        if status == 0:
            return None
        found = [each for each in map(_ANALYZED.search, report.splitlines()) if each is not None]
        name, lost = (found[-1]["name"], int(found[-1]["bad"])) if found else ("", 0)
        return Damage(report, name, lost)

    def back_up(self) -> Path:
        """Copy all files of the append-only file beside it; returns the path. Raises EmbeddedServerError."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = self.data_dir / f"{_FILES}.backup-{stamp}"
        try:
            shutil.copytree(self.data_dir / _FILES, target)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(target, ignore_errors=True)
            raise EmbeddedServerError(f"the backup {target} cannot be made: {error}") from error
        return target

    def cut(self) -> None:
        """Cut the damaged file off at the damage. Raises EmbeddedServerError if that does not mend it."""
        status, report = self._check("--fix")
        if status == 0 and self.find() is None:
            return
        raise EmbeddedServerError(
            f"{self.data_dir / _FILES} cannot be mended by a cut, as only its last file may lack an end. "
            f"Put a backup of the folder in its place. The checker says:\n{report}"
        )

    def _check(self, *options: str) -> tuple[int, str]:
        """Run the checker; its status and what it says."""
        assert self._binary is not None
        name = f"{self._binary.kind}-check-aof"
        try:
            ended = subprocess.run(
                [name, *options, str(self.data_dir / _FILES / _MANIFEST)],
                executable=self._binary.path,
                input="y\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CHECK_TIMEOUT_S,
                umask=UMASK,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EmbeddedServerError(f"{self._binary} does not run as {name}: {error}") from error
        return ended.returncode, (ended.stdout + ended.stderr).strip()
