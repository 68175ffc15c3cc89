"""The data folder: its owner, whether its server still runs, and the path of its socket.

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
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from korvet.embedded import append_only
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.privacy import SOCKET_NAME, make_private, open_private

# Limits the path of a Unix socket: sun_path has 108 bytes on Linux and 104 on macOS, including the final NUL.
LONGEST_SOCKET_PATH = 103
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


def socket_path(folder: Path) -> Path:
    """Returns the path of the server's Unix socket: in the folder, or a short private path if that is too
    long.
    """
    inside = folder / SOCKET_NAME
    if len(os.fsencode(inside)) <= LONGEST_SOCKET_PATH:
        return inside
    # The name identifies the folder itself, so that all spellings of its path give the same socket.
    identity = folder.stat()
    name = f"{identity.st_dev:x}-{identity.st_ino:x}.sock"
    for parent in (Path(tempfile.gettempdir()), Path("/tmp")):
        path = parent / f"korvet-{os.geteuid()}" / name
        if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
            _check_socket_folder(path.parent)
            return path
    raise EmbeddedServerError(f"no path short enough for a Unix socket was found for {folder}")


def socket_of(folder: Path | str) -> Path | None:
    """Returns the socket path of a data folder, whether or not a server runs; None if the folder doesn't
    exist.
    """
    path = Path(folder).absolute()
    return socket_path(path) if path.is_dir() else None


def url_of(socket: Path) -> str:
    """Returns the `unix://` URL of a socket, whatever characters its path contains."""
    return f"unix://{quote(os.fsencode(socket))}"


def link_socket(folder: Path, socket: Path) -> None:
    """Create a link in the folder to a socket elsewhere, for programs that know only the folder."""
    inside = folder / SOCKET_NAME
    if socket != inside:
        inside.unlink(missing_ok=True)
        inside.symlink_to(socket)


def _check_socket_folder(folder: Path) -> None:
    """Create our private folder in a place where everyone may write. Refuses one of another user."""
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if folder.is_symlink() or state.st_uid != os.geteuid() or state.st_mode & 0o077:
        raise EmbeddedServerError(f"{folder} is not a private folder of this user; remove it")
