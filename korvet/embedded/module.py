"""Decides whether the embedded server loads korvet's server module, which makes appends faster.

A folder needs the module if its append-only file may hold KORVET.ADD. Any other folder works without it.
"""

import logging
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from korvet.embedded.allocator import server_environment
from korvet.embedded.binary import ServerBinary
from korvet.embedded.errors import EmbeddedServerError
from korvet.embedded.shim import bound
from korvet.storage.module import VERSION, find_module

logger = logging.getLogger(__name__)

OFF: Final = "off"
AUTO: Final = "auto"
"""Values of `embedded.module`."""
NOT_LOADED: Final = ("unknown command 'korvet.add'", "can't load module")
"""Lines of the server's log, in lower case, when it can't load a folder or the module."""
# Longest start of an empty server, on a busy machine.
_TRIAL_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.01
_READY: Final = "ready to accept connections"
_REASON_LINES: Final = 2


def choose_module(setting: str, binary: ServerBinary, folder: Path, needed: int) -> Path | None:
    """Returns the module that a server on the folder has to load; None if it runs without.

    `needed` is the version that the folder's append-only file may need (0: none). Raises EmbeddedServerError
    if the folder needs a module that can't be loaded.
    """
    module = find_module()
    if needed > VERSION:
        raise refusal(folder, f"version {needed} of the module; this korvet has version {VERSION}")
    if setting == OFF:
        reason = "embedded.module is off"
    elif module is None:
        reason = "it is not built, because korvet was installed without a C compiler"
    elif needed == VERSION:
        # The folder was last used with this version. A trial would delay every start.
        return module
    else:
        reason = _trial(binary, module)
        if not reason:
            return module
    if needed:
        raise refusal(folder, f"the module, but {reason}")
    if setting != OFF:
        logger.warning("the embedded server runs without korvet's server module: %s", reason)
    return None


def refusal(folder: Path, missing: str, log_tail: str = "") -> EmbeddedServerError:
    """Returns the error for a folder that needs something that is missing."""
    return EmbeddedServerError(
        f"the append-only file in {folder} may hold KORVET.ADD, a command of korvet's server module, "
        f"and needs {missing}. Use an installation of korvet that has the module, or run "
        f"`korvet rewrite --data-dir {folder}` with such an installation: "
        f"then every server can load the folder{log_tail}"
    )


def _trial(binary: ServerBinary, module: Path) -> str:
    """Start an empty server with the module. Returns why the module can't be loaded; empty if it can."""
    try:
        with tempfile.TemporaryDirectory(prefix="korvet-") as scratch:
            return _try_in(Path(scratch), binary, module)
    except OSError as error:
        return f"{binary} cannot be tried: {error}"


def _try_in(scratch: Path, binary: ServerBinary, module: Path) -> str:
    # The socket's path is relative, so that it is short enough in every scratch folder.
    options = {"port": "0", "unixsocket": "s", "save": "", "dir": scratch, "loadmodule": module}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    log = scratch / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            bound([str(binary.path), *arguments]),
            env=server_environment(binary, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + _TRIAL_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            if _READY in log.read_text(errors="replace").lower():
                return ""
            time.sleep(_POLL_S)
        if process.poll() is None:
            return f"{binary} did not start within {_TRIAL_TIMEOUT_S:g} s"
    finally:
        process.kill()
        process.wait()
    lines = log.read_text(errors="replace").splitlines()[-_REASON_LINES:]
    return f"{binary} does not load it: " + "; ".join(line.rpartition(" # ")[2] for line in lines)
