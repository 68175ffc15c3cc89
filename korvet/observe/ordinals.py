"""Reads record ordinals from Redis: how many records were ever appended before a position.

An offset of korvet is no count: most offsets have no record. Records that are gone count as if they had been
at the log start, so ordinals never decrease while positions stay, and the difference of two ordinals is the
exact number of records between two positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from korvet.log.index import IndexedStream
from korvet.records.kernel import pack_command
from korvet.redis.functions import named

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from korvet.cluster.topic import Topic
    from korvet.redis.commands import Commands
    from korvet.redis.server import Server

_FUNCTION: Final = "korvet_ordinals"
_NO_EDITION: Final = -1
# Elements of a reply before those of the offsets.
_ENDS: Final = 6


class Known(NamedTuple):
    """An offset whose ordinal is known."""

    offset: int
    ordinal: int


class OrdinalPosition(NamedTuple):
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


class LogOrdinals:
    """Asks for the ordinals of one log. Any broker may ask."""

    __slots__ = ("_call", "_commands", "_keys", "partition", "topic")

    def __init__(self, commands: Commands, topic: Topic, partition: int) -> None:
        self._commands = commands
        self.topic = topic
        self.partition = partition
        self._keys = commands.keyspace.partition_keys(topic.name, partition)[:3]
        self._call = pack_command("FCALL", named(_FUNCTION), 3, *self._keys, topic.bias, _NO_EDITION)

    @property
    def server(self) -> Server:
        """The server that holds the log now."""
        return self._commands.links(self._keys[0]).server

    def ask(self) -> asyncio.Future[list[Any]]:
        """Ask for the ends. The future gives the argument for `ends_of`, or raises StorageError. Function
        korvet_ordinals.
        """
        return self._commands.links(self._keys[0]).read_functions.call_packed(self._call)

    async def ends_of(self, reply: list[Any]) -> Ends:
        """Returns the ends in a reply to `ask`. Repairs the index if it is incomplete, and asks again. Raises
        StorageError.
        """
        if reply[0] != b"ok":
            reply = await self._stream().call(_FUNCTION, _NO_EDITION)
        return Ends(*reply[1:_ENDS])

    async def positions(
        self, offsets: Sequence[tuple[int, Known | None]], edition: int
    ) -> tuple[Ends, list[OrdinalPosition]]:
        """Returns the ends and the positions of `offsets`. Raises StorageError.

        With each offset comes one up to it whose ordinal is known in this `edition` (None: unknown): only the
        records from there on are counted if that is nearer than a point of the index.
        """
        arguments: list[int | str] = [edition]
        for offset, known in offsets:
            arguments += (offset, "", "") if known is None else (offset, known.offset, known.ordinal)
        reply = await self._stream().call(_FUNCTION, *arguments)
        found = reply[_ENDS:]
        positions = [
            OrdinalPosition(offset, ordinal, int(next_ms) if next_ms else None)
            for (offset, _), ordinal, next_ms in zip(offsets, found[::2], found[1::2], strict=True)
        ]
        return Ends(*reply[1:_ENDS]), positions

    def _stream(self) -> IndexedStream:
        name = f"{self.topic.name}-{self.partition}"
        return IndexedStream(self._commands, self._keys, self.topic.bias, name)
