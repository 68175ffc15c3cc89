"""Files and folders that are complete and on the disk before they get their names."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from korvet.backup.errors import BackupError
from korvet.embedded.disk_space import DiskSpace
from korvet.embedded.privacy import open_private

# Free space that a backup leaves on its disk, which may be the disk of the data folder: the embedded server
# refuses writes below half of it (disk.reserve.bytes).
_RESERVE_BYTES: Final = 128 << 20
# Bytes that are written between two checks of the free space.
_CHECK_BYTES: Final = 16 << 20
_PIECE_BYTES: Final = 1 << 20
PARTIAL: Final = ".partial"
"""Suffix of the name of a folder that is not complete."""

Report = Callable[[str, int, int | None], None]
"""Receives the progress: what is done, bytes done, bytes in all (None: unknown)."""


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a folder that becomes `folder` at the end of the block, complete and on the disk.

    `folder` may exist if it is empty and no mount point. If the block fails, its files are deleted. Raises
    BackupError.
    """
    try:
        if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
            raise BackupError(f"{folder} exists already: name another folder")
        if folder.is_mount():
            raise BackupError(f"{folder} is a mount point: name a new folder in it")
        partial = folder.with_name(f"{folder.name}{PARTIAL}")
        partial.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise BackupError(f"{folder} cannot be created: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BackupError(f"another process writes {partial}") from None
        _empty(partial)
        try:
            yield partial
            sync_tree(partial)
            partial.replace(folder)
            sync_folder(folder.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except OSError as error:
        raise BackupError(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        os.close(fd)


def write(path: Path, pieces: Iterable[bytes], report: Callable[[int], None]) -> tuple[int, str]:
    """Write a new file of which only its owner can read anything. Returns its size and its SHA-256.

    Calls `report(bytes so far)`. Raises BackupError before the disk is full.
    """
    space = DiskSpace(path.parent, _RESERVE_BYTES)
    checksum, size, checked = hashlib.sha256(), 0, -_CHECK_BYTES
    try:
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            for piece in pieces:
                if size - checked >= _CHECK_BYTES:
                    checked = size
                    _check(space, path, size)
                file.write(piece)
                checksum.update(piece)
                size += len(piece)
                report(size)
    except OSError as error:
        raise BackupError(f"{path} cannot be written after {size} bytes: {error.strerror}") from error
    return size, checksum.hexdigest()


def read(path: Path) -> Iterator[bytes]:
    """Yields a file in pieces. Raises BackupError."""
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error


def sync_tree(folder: Path) -> None:
    """Return when a folder and everything in it is on the disk (fsync). Raises OSError."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            _sync(path, os.O_RDONLY)
        elif path.is_dir():
            sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Return when the names in a folder are on the disk (fsync). Raises OSError."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _check(space: DiskSpace, path: Path, size: int) -> None:
    space.check()
    if space.is_short:
        raise BackupError(
            f"{path} is not written further after {size} bytes: its disk has {space.free_bytes} bytes left, "
            f"and {space.reserve_bytes} stay free"
        )


def _empty(folder: Path) -> None:
    """Delete what an earlier, interrupted run has left."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
