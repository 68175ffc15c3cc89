"""How much a test run runs: the short run, the full one (`--full`), or all tests (`--all`).

| test | runs in |
|---|---|
| marked `long` | `--all` |
| on the second server, marked `each_server` | `--full`, `--all` |
| on the second server | `--all` |
| in a folder of QUICK, or marked `short` | all runs |
| any other | `--full`, `--all` |

Who names folders or files, or selects with -k, -m or --lf, gets the full run of these; with `-m long` all of
them. A test that is named with its ID runs in any case.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.redis_server import server_programs

if TYPE_CHECKING:
    import pytest

# Folders whose tests are all quick. Files in tests/ itself are too.
QUICK: Final = frozenset(
    {"unit", "property", "storage", "coordinator", "api", "fuzz", "robustness", "simulation"}
)
# An expression of -m that selects long tests.
_LONG: Final = re.compile(r"(?<!not )\blong\b")


class Extent(enum.IntEnum):
    """A kind of run. Each one contains the one before it."""

    SHORT = 1
    FULL = 2
    ALL = 3


def settle_extent(config: pytest.Config) -> None:
    """Complete --full by what the other options and arguments ask for."""
    option = config.option
    named = config.args_source is not config.ArgsSource.TESTPATHS
    selects = named or option.keyword or option.markexpr or getattr(option, "lf", False)
    option.full = bool(option.full or selects)


def extent_of_run(config: pytest.Config) -> Extent:
    """Returns the extent that is settled."""
    if config.option.all or _LONG.search(config.option.markexpr):
        return Extent.ALL
    return Extent.FULL if config.option.full else Extent.SHORT


def least_extent(item: pytest.Item) -> Extent:
    """Returns the smallest run that contains a test."""
    if item.get_closest_marker("long"):
        return Extent.ALL
    if _is_on_second_server(item):
        return Extent.FULL if item.get_closest_marker("each_server") else Extent.ALL
    folder = Path(item.nodeid.partition("::")[0]).parts[1:-1]
    is_short = not folder or folder[0] in QUICK or item.get_closest_marker("short")
    return Extent.SHORT if is_short else Extent.FULL


def _is_on_second_server(item: pytest.Item) -> bool:
    """Whether a test is parametrized with another server than the first, as its fixture has parameters."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and value in server_programs()[1:] for value in parameters)


def is_named(item: pytest.Item, arguments: list[str]) -> bool:
    """Whether an argument is the ID of a test, with or without its parameters."""
    path, _, test = item.nodeid.partition("::")
    named = [argument.partition("::") for argument in arguments if "::" in argument]
    return any(
        Path(file).name == Path(path).name and (test == name or test.startswith((f"{name}[", f"{name}::")))
        for file, _, name in named
    )
