"""The path of the Unix socket of a data folder's server. Commands that only connect to it import nothing else
of the embedded server.
"""

import os
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import quote

from korvet.embedded.errors import EmbeddedServerError

SOCKET_NAME: Final = "server.sock"
# Limits the path of a Unix socket: sun_path has 108 bytes on Linux and 104 on macOS, including the final NUL.
LONGEST_SOCKET_PATH: Final = 103


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
