"""What the consumers of Redis groups have not acknowledged (function korvet_group_backlogs)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from korvet.redis.commands import Commands

_ROW: Final = 4


class Backlog(NamedTuple):
    """A Redis group with consumers or pending entries."""

    group: str
    consumers: int
    pending: int
    """The number of its pending entries."""
    idle_ms: int | None
    """How long ago the oldest pending entry was delivered last; None if none is pending, or nobody has it."""


async def read_backlogs(commands: Commands, stream: bytes) -> list[Backlog]:
    """The Redis groups of a stream that have consumers or pending entries. Raises StorageError."""
    found: list[Backlog] = []
    left_out = 0
    while True:
        left_out, *row = await commands.fcall("korvet_group_backlogs", [stream], left_out, read=True)
        for at in range(0, len(row), _ROW):
            name, consumers, pending, idle_ms = row[at : at + _ROW]
            found.append(
                Backlog(name.decode(errors="replace"), consumers, pending, None if idle_ms < 0 else idle_ms)
            )
        if not left_out:
            return found
