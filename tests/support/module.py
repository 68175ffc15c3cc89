"""Which servers of the tests load korvet's server module.

Valkey loads it and Redis doesn't, so that a full run covers both. KORVET_TEST_MODULE=all loads it into
both, KORVET_TEST_MODULE=none into neither.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from korvet.redis.module import find_module

VARIABLE: Final = "KORVET_TEST_MODULE"
CHOICES: Final = ("default", "all", "none")
UNBUILT: Final = "the server module is not built: the installation found no C compiler"


def choice() -> str:
    """The value of KORVET_TEST_MODULE."""
    chosen = os.environ.get(VARIABLE) or CHOICES[0]
    if chosen not in CHOICES:
        raise pytest.UsageError(f"{VARIABLE} is {chosen!r}, not one of {', '.join(CHOICES)}")
    return chosen


def loads_module(program: str) -> bool:
    """Whether a test server of this program loads the module."""
    chosen = choice()
    if chosen == "none" or (chosen == "default" and Path(program).name == "redis-server"):
        return False
    return module_built()


def module_built() -> bool:
    """Whether the module is there. Fails if the environment requires it (KORVET_REQUIRE_EXT)."""
    built = find_module() is not None
    if not built and os.environ.get("KORVET_REQUIRE_EXT", "") not in {"", "0"}:
        pytest.fail(UNBUILT)
    return built


def module_options(program: str) -> list[str]:
    """The options with which a test server of this program loads the module, or none."""
    return ["--loadmodule", str(find_module())] if loads_module(program) else []


def require_module(program: str) -> None:
    """Skip the test if a server of this program does not load the module."""
    if not module_built():
        pytest.skip(UNBUILT)
    if not loads_module(program):
        pytest.skip(f"servers of {Path(program).name} don't load the module in this run ({VARIABLE})")


def summary() -> str:
    """A line for the head of a test run."""
    return UNBUILT if find_module() is None else f"server module: {VARIABLE}={choice()}"
