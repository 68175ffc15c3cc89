"""The table of commands: what runs each, and whether it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from robustness.simulation.redis.values import Database

    Run = Callable[[Database, list[bytes]], Any]


class Command(NamedTuple):
    """One command: `run(database, arguments)` returns the reply or raises Fault."""

    run: Run
    writes: bool
    least: int
    """The smallest number of arguments, without the name."""


COMMANDS: Final[dict[bytes, Command]] = {}


def command(*names: str, least: int, writes: bool = False) -> Callable[[Run], Run]:
    """Register a function for commands of these names."""

    def register(run: Run) -> Run:
        for name in names:
            COMMANDS[name.encode()] = Command(run, writes, least)
        return run

    return register
