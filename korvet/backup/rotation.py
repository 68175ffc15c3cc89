"""A folder of backups that are named by their time, of which the newest are kept."""

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from korvet.backup import manifest
from korvet.backup.errors import BackupError
from korvet.backup.files import PARTIAL, sync_folder
from korvet.backup.manifest import Manifest

UNVERIFIED: Final = ".unverified"
_NAME: Final = re.compile(r"\d{8}T\d{6}Z")


def next_backup(parent: Path, now_s: float) -> Path:
    """Returns the name of a new backup until it is verified. Deletes what killed runs have left of unfinished
    ones. Raises BackupError, also if there is a backup of this second.
    """
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in parent.iterdir():
            if path.suffix == PARTIAL and _NAME.fullmatch(path.stem.removesuffix(UNVERIFIED)):
                _delete_unless_written(path)
    except OSError as error:
        raise BackupError(f"{parent} cannot be used: {error}") from error
    verified = parent / time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    if verified.exists():
        raise BackupError(f"{verified} exists: backups are named by the second, so try again in the next one")
    return verified.with_name(f"{verified.name}{UNVERIFIED}")


def accept(unverified: Path) -> Path:
    """Rename a backup that was verified, so that rotations count it. Returns its name. Raises BackupError."""
    verified = unverified.with_name(unverified.name.removesuffix(UNVERIFIED))
    try:
        unverified.rename(verified)
        sync_folder(verified.parent)
    except OSError as error:
        raise BackupError(f"{unverified} cannot be renamed: {error}") from error
    return verified


def rotate(newest: Path, keep: int) -> list[Path]:
    """Delete all but the newest `keep` backups beside `newest` that are of the same keyspace and cluster.

    Returns the names of those deleted. Raises BackupError. Other files and folders stay.
    """
    of = _identity(manifest.read(newest))
    older = [path for path in _backups(newest.parent) if path < newest and _is_of(path, of)]
    surplus = older[: max(0, len(older) - (keep - 1))]
    for path in surplus:
        # A part of a backup must not look like a backup.
        partial = path.with_name(f"{path.name}{PARTIAL}")
        try:
            path.replace(partial)
            sync_folder(path.parent)
            shutil.rmtree(partial)
        except OSError as error:
            raise BackupError(f"{path} cannot be deleted: {error}") from error
    return surplus


def _backups(parent: Path) -> Iterator[Path]:
    """Yields the folders that are named as backups, oldest first."""
    return (path for path in sorted(parent.iterdir()) if _NAME.fullmatch(path.name) and path.is_dir())


def _is_of(path: Path, of: tuple[str, str]) -> bool:
    """Whether a folder is a backup of that keyspace and cluster. A damaged one isn't, so it is kept."""
    try:
        return _identity(manifest.read(path)) == of
    except BackupError:
        return False


def _identity(described: Manifest) -> tuple[str, str]:
    return described.keyspace, described.cluster_id


def _delete_unless_written(partial: Path) -> None:
    fd = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(partial)
    except BlockingIOError:
        return
    finally:
        os.close(fd)
