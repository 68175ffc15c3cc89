"""The data folder: its owner, and whether its server still runs.

There are two locks. The kernel holds them, so they end with their holders, even after kill -9:

- `korvet.lock`: held by the broker process that owns the folder;
- `server.lock`: inherited by the server process, so it is held exactly as long as a server (or its rewriting
  child) may still write to the folder, even if the broker that started it is gone.
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from korvet.embedded import append_only
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.privacy import make_private, open_private

OWNER_LOCK = "korvet.lock"
SERVER_LOCK = "server.lock"
RESTORING = "restoring"
"""The folder in which a restore prepares the data. It is gone when the restore is complete."""


class FolderLock:
    """An advisory lock on a file that names its holder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = -1

    def acquire(self) -> bool:
        """Take the lock. Returns False if another process has it."""
        fd = open_private(self.path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError as error:
            os.close(fd)
            raise EmbeddedServerError(f"{self.path} cannot be locked: {error.strerror}") from error
        self.fd = fd
        return True

    def write(self, pid: int) -> None:
        """Write the holder to the file: process ID, host and time. Requires the lock."""
        holder = {
            "pid": pid,
            "host": socket.gethostname(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        # Only people read it, and a full disk must not prevent the start of the server.
        with contextlib.suppress(OSError):
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, json.dumps(holder).encode(), 0)

    def holder(self) -> dict[str, object]:
        """Returns what the holder wrote; empty if it has only just taken the lock."""
        try:
            noted = json.loads(self.path.read_text())
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def release(self) -> None:
        """Close our descriptor of the lock. An inherited descriptor still holds it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_folder(folder: Path) -> None:
    """Create the data folder, or check an existing one. Afterwards only its owner can use it.

    Raises EmbeddedServerError.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        # A file, or a broken link.
        if not folder.is_symlink():
            raise EmbeddedServerError(f"{folder} is not a folder: set data_dir to another one") from None
    except OSError as error:
        raise EmbeddedServerError(f"the data folder {folder} cannot be created: {error.strerror}") from error
    make_private(folder)
    if any(ord(char) < 32 for char in str(folder)):
        raise EmbeddedServerError(f"the data folder {str(folder)!r} has control characters in its name")


def check_restored(folder: Path) -> None:
    """Refuse a folder whose restore has not finished. Requires the owner's lock. Raises
    EmbeddedServerError.
    """
    if not (folder / RESTORING).exists():
        return
    if not append_only.has_data(folder):
        raise EmbeddedServerError(
            f"a restore into {folder} has not finished: run `korvet restore` again, or delete "
            f"{folder / RESTORING} to begin without data"
        )
    # The restore was interrupted after its last step.
    shutil.rmtree(folder / RESTORING, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold both locks in the block, so that no other process uses the folder.

    Raises EmbeddedServerError if one does.
    """
    with contextlib.ExitStack() as stack:
        for name in (OWNER_LOCK, SERVER_LOCK):
            lock = FolderLock(folder / name)
            if not lock.acquire():
                raise EmbeddedServerError(
                    f"the data folder {folder} is in use by {describe_holder(lock.holder())}"
                )
            stack.callback(lock.release)
        yield


def describe_holder(holder: dict[str, object]) -> str:
    """Formats a lock's holder: `process 123 on host since 2026-01-31T12:00:00Z`."""
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host', '?')} since {holder.get('since', '?')}"
