"""Reads record ordinals from Redis: how many records were ever appended before a position.

An offset of korvet is no count: most offsets have no record. Records that are gone count as if they had been
at the log start, so ordinals never decrease while positions stay, and the difference of two ordinals is the
exact number of records between two positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.storage.log.index import IndexedStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.storage.link.commands import Commands
    from korvet.storage.topic import Topic

# Elements of a reply before those of the offsets.
_ENDS: Final = 6


class Known(NamedTuple):
    """An offset whose ordinal is known."""

    offset: int
    ordinal: int


class Position(NamedTuple):
    """An offset, as it was found in its log."""

    offset: int
    ordinal: int
    next_ms: int | None
    """The timestamp (ms) of the first record from the offset on; None if there is none. With
    storage.layout=batch it is that of the first record in the same batch.
    """


class Ends(NamedTuple):
    """Both ends of a log, as offsets and as ordinals."""

    edition: int
    """Ordinals from the log start on stay the same as long as the log has the same edition."""
    log_start: int
    log_end: int
    start_ordinal: int
    end_ordinal: int


async def read_ordinals(
    commands: Commands,
    topic: Topic,
    partition: int,
    offsets: Sequence[tuple[int, Known | None]] = (),
    edition: int = -1,
) -> tuple[Ends, list[Position]]:
    """Returns the ends of a log and the positions of `offsets`. Raises StorageError.

    With each offset comes one up to it whose ordinal is known in this `edition` (None: unknown): only the
    records from there on are counted if that is nearer than a point of the index. Any broker may ask.
    Function korvet_ordinals.
    """
    keys = commands.keyspace.partition_keys(topic.name, partition)[:3]
    stream = IndexedStream(commands, keys, topic.bias, f"{topic.name}-{partition}")
    arguments: list[int | str] = [edition]
    for offset, known in offsets:
        arguments += (offset, "", "") if known is None else (offset, known.offset, known.ordinal)
    reply = await stream.call("korvet_ordinals", *arguments)
    found = reply[_ENDS:]
    positions = [
        Position(offset, ordinal, int(next_ms) if next_ms else None)
        for (offset, _), ordinal, next_ms in zip(offsets, found[::2], found[1::2], strict=True)
    ]
    return Ends(*reply[1:_ENDS]), positions
