"""Repairs an append-only file that the server refuses: copies everything, then cuts the file off at the
damage.

The server's program is also the checker if it is run under that name (valkey-check-aof --fix).
"""

import contextlib
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

from korvet.embedded import append_only, folder, writer
from korvet.embedded.binary import ServerBinary, find_server
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.privacy import UMASK

_ANALYZED: Final = re.compile(r"filename=(?P<name>\S+), size=\d+, ok_up_to=\d+,.* diff=(?P<bad>[1-9]\d*)")
# Longest run of the checker, which reads everything once: a terabyte at 100 MB/s, a slow disk.
_CHECK_TIMEOUT_S: Final = 10_000.0


class Damage(NamedTuple):
    """The checker's report on a damaged file."""

    report: str
    name: str
    """The first damaged file; empty if the report names none."""
    lost_bytes: int
    """Bytes from the damage to the end of the file, which a cut removes."""


class Repair:
    """A data folder under repair. Inside `with`, no other process can use it.

    Raises EmbeddedServerError: folder in use, no server program, folder of another server, no files.
    """

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.absolute()
        self._files = self.data_dir / append_only.FOLDER
        self._locks = contextlib.ExitStack()
        self._binary: ServerBinary | None = None

    def __enter__(self) -> "Repair":
        if not append_only.has_data(self.data_dir):
            raise EmbeddedServerError(f"{self.data_dir} contains no data of an embedded server")
        self._binary = find_server()
        folder.open_folder(self.data_dir)
        with contextlib.ExitStack() as locks:
            locks.enter_context(folder.locked(self.data_dir))
            writer.check_writer(self.data_dir, self._binary)
            writer.note_writer(self.data_dir, self._binary)
            self._locks = locks.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._locks.close()

    def find(self) -> Damage | None:
        """Run the checker. Returns the damage; None if there is none."""
        status, report = self._check()
        if status == 0:
            return None
        found = [each for each in map(_ANALYZED.search, report.splitlines()) if each is not None]
        name, lost = (found[-1]["name"], int(found[-1]["bad"])) if found else ("", 0)
        return Damage(report, name, lost)

    def back_up(self) -> Path:
        """Copy all files of the append-only file beside it. Returns the path. Raises EmbeddedServerError."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = self.data_dir / f"{append_only.FOLDER}.backup-{stamp}"
        try:
            target.mkdir(mode=0o700)
        except OSError as error:
            raise EmbeddedServerError(f"the backup {target} cannot be created: {error}") from error
        try:
            shutil.copytree(self._files, target, dirs_exist_ok=True)
        except (OSError, shutil.Error) as error:
            shutil.rmtree(target, ignore_errors=True)
            raise EmbeddedServerError(f"the backup {target} cannot be created: {error}") from error
        return target

    def cut(self) -> None:
        """Cut the file off at the damage. Raises EmbeddedServerError if that doesn't repair it."""
        status, report = self._check("--fix")
        if status == 0 and self.find() is None:
            return
        raise EmbeddedServerError(
            f"{self._files} cannot be repaired: only the last file may be cut off. "
            f"Replace the folder by a backup. The checker reports:\n{report}"
        )

    def _check(self, *options: str) -> tuple[int, str]:
        """Run the checker. Returns its exit status and output."""
        assert self._binary is not None
        name = f"{self._binary.kind}-check-aof"
        try:
            ended = subprocess.run(
                [name, *options, str(self._files / append_only.MANIFEST)],
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
