"""What the log of the embedded server says about the server module, which makes appends faster.

An append-only file may hold KORVET.ADD, and then only a server with the module loads it.
"""

from pathlib import Path
from typing import Final

from korvet.embedded.errors import EmbeddedServerError

OFF: Final = "off"
AUTO: Final = "auto"
"""Values of `embedded.module`."""
MODULE_REFUSED: Final = "can't load module"
"""Part of the last lines of the log, in lower case, if the server refuses to load the module."""
MODULE_MISSING: Final = "unknown command 'korvet.add'"
"""Part of these lines if the server runs without the module, and its append-only file needs it."""


def module_needed(folder: Path, log_tail: str) -> EmbeddedServerError:
    """Returns the error for a folder whose append-only file a server without the module has refused."""
    return EmbeddedServerError(
        f"the append-only file in {folder} holds KORVET.ADD, a command of korvet's server module. Start it "
        "with embedded.module=auto and an installation of korvet that has the module, or run "
        f"`korvet rewrite --data-dir {folder}` with such an installation: then every server can load the "
        f"folder{log_tail}"
    )
