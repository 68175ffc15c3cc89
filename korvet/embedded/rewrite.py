"""Makes a data folder plain: rewrites its append-only file, so that a server without korvet's server module
can load it.

At the end every part of the file is searched, because a client may have used the module during the rewrite.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from korvet.embedded import append_only, folder, writer
from korvet.embedded.binary import find_server
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.probe import Probe, ProbeError
from korvet.embedded.server import EmbeddedServer

_COMMAND: Final = b"KORVET.ADD"
# Redis's error while a rewrite runs.
_UNDER_WAY: Final = "rewriting already in progress"
_POLL_S: Final = 0.05
# Longest wait for a reply. The server is busy for a moment when a rewrite begins and when it ends.
_REPLY_TIMEOUT_S: Final = 120.0

Report = Callable[[str, int, int | None], None]
"""Receives the progress: what is done, bytes done, bytes in all (None: unknown)."""


class Rewritten(NamedTuple):
    """The result: sizes of the append-only file in bytes, which are equal if it was plain already."""

    changed: bool
    before_bytes: int
    after_bytes: int


def make_plain(data_dir: Path, report: Report) -> Rewritten:
    """Rewrite the append-only file of a folder that no server uses, unless it is plain already.

    Call it on the main thread. Raises EmbeddedServerError: folder in use, no data, no server program, no
    module, or a rewrite that failed. The data are then as before, and the folder may still need the module.
    """
    data_dir = data_dir.absolute()
    if not append_only.has_data(data_dir):
        raise EmbeddedServerError(f"{data_dir} contains no data of an embedded server")
    folder.open_folder(data_dir)
    before_bytes = _size(data_dir)
    if _is_plain(data_dir, report):
        return Rewritten(False, before_bytes, before_bytes)
    server = EmbeddedServer(data_dir, on_loading=lambda done, total: report("loading", done, total))
    try:
        server.start()
    except OSError as error:
        raise EmbeddedServerError(f"no server can be started on {data_dir}: {error}") from error
    try:
        rewrite_file(server, report)
    finally:
        server.stop()
    if not _is_plain(data_dir, report):
        raise EmbeddedServerError(
            f"a client has appended by the server module to {data_dir} during the rewrite: "
            "stop what uses its socket, and run the command again"
        )
    return Rewritten(True, before_bytes, _size(data_dir))


def _is_plain(data_dir: Path, report: Report) -> bool:
    """Search the append-only file. Returns whether it holds no KORVET.ADD."""
    with folder.locked(data_dir):
        writer.check_writer(data_dir, find_server())
        return not _holds_command(data_dir, report)


def _holds_command(data_dir: Path, report: Report) -> bool:
    total_bytes = _size(data_dir)
    done_bytes = 0

    def add(read_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += read_bytes
        report("reading", done_bytes, total_bytes)

    return any(append_only.holds_command(path, _COMMAND, add) for path in append_only.parts(data_dir))


def rewrite_file(server: EmbeddedServer, report: Report) -> None:
    """Let the server rewrite its file as plain commands, and wait for the end. Raises EmbeddedServerError."""
    try:
        with Probe(server.socket, _REPLY_TIMEOUT_S) as probe:
            _begin(probe)
            while _is_rewriting(state := probe.info("persistence")):
                report("rewriting", _written_bytes(server.data_dir), None)
                time.sleep(_POLL_S)
    except ProbeError as error:
        raise _failed(server, str(error)) from error
    if state["aof_last_bgrewrite_status"] != "ok":
        raise _failed(server, "the server could not write the new file")


def _begin(probe: Probe) -> None:
    """Begin a rewrite, unless the server has begun one by itself because the file has grown."""
    try:
        probe.rewrite()
    except ProbeError as error:
        if _UNDER_WAY not in str(error):
            raise


def _failed(server: EmbeddedServer, reason: str) -> EmbeddedServerError:
    free_bytes = shutil.disk_usage(server.data_dir).free
    return EmbeddedServerError(
        f"the rewrite failed, and the data are as before: {reason}. "
        f"The disk of {server.data_dir} has {free_bytes} bytes left{server.log_tail()}"
    )


def _is_rewriting(state: dict[str, str]) -> bool:
    return state["aof_rewrite_in_progress"] != "0" or state["aof_rewrite_scheduled"] != "0"


def _written_bytes(data_dir: Path) -> int:
    return sum(map(_size_of, append_only.unfinished(data_dir)))


def _size(data_dir: Path) -> int:
    return sum(map(_size_of, append_only.parts(data_dir)))


def _size_of(path: Path) -> int:
    """The size of a file; 0 if it is gone, because the server has just renamed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
