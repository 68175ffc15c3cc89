"""Makes the data folder private: checks owners, tightens modes, refuses links.

A user who can write to the folder, or to a file that the server reads, can run code as the server's user
(`server.conf`); a user who can read it can read every record. Once the folder belongs to this user and is
closed to all others, no other user can change its contents.
"""

import contextlib
import logging
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.sockets import SOCKET_NAME

logger = logging.getLogger(__name__)

UMASK: Final = 0o077
"""The umask of the server: only the owner may use its files."""

# Files that the server or its owner opens by name. Other files in the folder don't matter.
_OURS: Final = frozenset(
    {
        "korvet.lock",
        "server.lock",
        "server.conf",
        "server.json",
        "server.log",
        "server.log.1",
        "appendonly.aof",
        "appendonlydir",
        "dump.rdb",
        SOCKET_NAME,
    }
)


def make_private(folder: Path) -> None:
    """Check the data folder and the server's files in it, and close both to other users.

    Raises EmbeddedServerError for links, for files of another user, and if modes can't be changed. The
    message contains a remedy.
    """
    changed = _close(folder, folder)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise EmbeddedServerError(
            f"the data folder {folder} cannot be written to by this user: `chmod u+rwx {folder}`"
        )
    for path in _contents(folder):
        # A server that still runs may replace its files during this loop.
        with contextlib.suppress(FileNotFoundError):
            changed += _close(path, folder)
    if changed:
        logger.warning(
            "other users could use the data folder %s: %d modes were changed, so that only its owner can",
            folder,
            changed,
        )


def open_private(path: Path, flags: int) -> int:
    """Open a file of the folder, with mode 0600 if it is new.

    Doesn't follow links. Returns the descriptor.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_private(path: Path, content: bytes) -> None:
    """Replace the contents of a file of the folder."""
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
        file.write(content)


def append_private(path: Path) -> IO[bytes]:
    """Open a file of the folder for appending."""
    return os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def _contents(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name not in _OURS:
            continue
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from sorted(path.iterdir())


def _close(path: Path, folder: Path) -> int:
    """Close a file or folder to other users. Returns 1 if its mode had to be changed, else 0."""
    state = path.lstat()
    is_socket = path.name == SOCKET_NAME and path != folder
    if stat.S_ISLNK(state.st_mode) and not is_socket:
        raise EmbeddedServerError(_link_message(path, folder))
    if state.st_uid != os.geteuid():
        raise EmbeddedServerError(_owner_message(path, folder, state.st_uid))
    if is_socket:
        return 0  # every start creates it; if its path is too long, it is a link that korvet made
    if not stat.S_ISREG(state.st_mode) and not stat.S_ISDIR(state.st_mode):
        raise EmbeddedServerError(f"{path} is neither a file nor a folder: remove it")
    if not state.st_mode & UMASK:
        return 0
    try:
        path.chmod(stat.S_IMODE(state.st_mode) & ~UMASK)
    except OSError as error:
        raise EmbeddedServerError(_mode_message(path, error.strerror or str(error))) from error
    if path.lstat().st_mode & UMASK:
        raise EmbeddedServerError(_mode_message(path, "its file system keeps no modes"))
    return 1


def _link_message(path: Path, folder: Path) -> str:
    target = path.resolve()
    if path == folder:
        return f"the data folder {path} is a symbolic link, which is not followed: set data_dir to {target}"
    return (
        f"{path} is a symbolic link, which is not followed: "
        f"move {target} to its place, or remove the link if you did not create it"
    )


def _owner_message(path: Path, folder: Path, owner: int) -> str:
    us = _user(os.geteuid())
    return (
        f"{path} belongs to user {_user(owner)}, and korvet runs as user {us}: run korvet as {_user(owner)}, "
        f"or run `chown -R {us} {folder}` if you trust its contents, "
        f"or set data_dir to another folder, for example a new one in a folder that belongs to {us}"
    )


def _mode_message(path: Path, reason: str) -> str:
    return (
        f"other users can use {path}, and its mode cannot be changed ({reason}): "
        "set data_dir to a folder on another file system"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
