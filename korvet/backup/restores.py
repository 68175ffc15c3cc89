"""The restores of a backup, noted in its folder: each of them has leader epochs of its own."""

import fcntl
import logging
import os
import time
from pathlib import Path
from typing import Final

from korvet.embedded.privacy import open_private

log = logging.getLogger(__name__)

NOTES: Final = "restores"
"""A file of the backup, with a line for each restore that has begun."""


def note(backup: Path) -> int:
    """Note one more restore. Returns the number of restores before it, or 0 with a warning if the folder
    cannot be written.
    """
    path = backup / NOTES
    try:
        with os.fdopen(open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "r+b") as notes:
            fcntl.flock(notes, fcntl.LOCK_EX)
            earlier = len(notes.readlines())
            notes.write(time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime()).encode())
            notes.flush()
            os.fsync(notes.fileno())
    except OSError as error:
        log.warning(
            "the restore cannot be noted in %s (%s): another one of this backup may repeat its leader epochs",
            path,
            error.strerror,
        )
        return 0
    return earlier
