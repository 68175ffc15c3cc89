"""The server module: where its compiled form is, and its version. The broker also works without it."""

from pathlib import Path
from typing import Final

VERSION: Final = 2
"""Version of the module. A command that changes its meaning gets another name."""
_COMPILED: Final = Path(__file__).with_name("korvet_module.so")


def find_module() -> Path | None:
    """Returns the compiled module; None if the installation found no C compiler."""
    return _COMPILED if _COMPILED.is_file() else None
