"""The compiled kernel, where there is one for this Python."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType


def _found() -> ModuleType | None:
    try:
        found = import_module("korvet.spark.kernel")
    except ModuleNotFoundError as missing:
        if missing.name != "cython":
            raise
        return None  # the source alone, which then can't run
    return found if found.ACCELERATED else None


kernel = _found()
