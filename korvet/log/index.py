"""The sparse index of one partition's stream, which lacks what native clients add until it is brought up."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from korvet.redis.errors import StorageError, StorageFault
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.state import LogState
    from korvet.redis.commands import Commands

log = logging.getLogger(__name__)

# Entries that one call of an indexing function looks at: a few ms of Redis's time.
_COUNTED_AT_ONCE: Final = 1024
# How long native clients may change a stream faster than it can be counted before the call fails.
_COUNTING_TIMEOUT_S: Final = 60.0


class IndexedStream:
    """Calls functions that need the index of a stream to be complete and correct."""

    __slots__ = ("_bias", "_commands", "_keys", "_lock", "name")

    def __init__(self, commands: Commands, keys: Sequence[bytes], bias: int, name: str) -> None:
        """`keys`: stream, index and meta hash. `name`: of the stream, for messages."""
        self._commands = commands
        self._keys = keys
        self._bias = bias
        self._lock = asyncio.Lock()
        self.name = name

    async def fold(self) -> None:
        """Bring the index up to what native clients added. Raises StorageError. Function korvet_fold."""
        async with self._lock:
            await self._repeat("korvet_fold")

    async def call(self, function: str, *args: bytes | str | int, read: bool = True) -> list[Any]:
        """Call a function that needs a complete and correct index. If the reply is that the index is neither,
        repair it and call again. Raises StorageError.
        """
        deadline_s = asyncio.get_running_loop().time() + _COUNTING_TIMEOUT_S
        while True:
            reply: list[Any] = await self.fcall(function, self._bias, *args, read=read)
            if reply[0] not in {b"fold", b"recount"}:
                return reply
            self._check_deadline(deadline_s)
            async with self._lock:
                await self._repeat("korvet_fold" if reply[0] == b"fold" else "korvet_recount")

    async def fcall(self, function: str, *args: bytes | str | int, read: bool = False) -> Any:
        """Call a function on stream, index and meta hash. Raises StorageError."""
        return await self._commands.fcall(function, self._keys, *args, read=read)

    async def _repeat(self, function: str) -> None:
        deadline_s = asyncio.get_running_loop().time() + _COUNTING_TIMEOUT_S
        while await self.fcall(function, self._bias, _COUNTED_AT_ONCE) == 0:
            self._check_deadline(deadline_s)

    def _check_deadline(self, deadline_s: float) -> None:
        if asyncio.get_running_loop().time() > deadline_s:
            raise StorageFault(f"{self.name} changes faster than it can be counted")


class LogIndex(IndexedStream):
    """Keeps the index of one log complete, and calls the functions that need it so."""

    __slots__ = ("_folding", "_state")

    def __init__(self, state: LogState, commands: Commands) -> None:
        super().__init__(commands, state.keys[:3], state.bias, state.name)
        self._state = state
        self._folding: asyncio.Task[None] | None = None

    def fold_soon(self) -> None:
        """Begin to `fold`, unless that is under way."""
        if self._folding is None or self._folding.done():
            self._folding = once("index", self._fold_quietly())

    def close(self) -> None:
        """End a `fold_soon` that is under way."""
        if self._folding is not None:
            self._folding.cancel()

    async def fcall(self, function: str, *args: bytes | str | int, read: bool = False) -> Any:
        """Call a function on stream, index and meta hash of the log. Raises StorageError."""
        self._state.check_open()
        return await super().fcall(function, *args, read=read)

    async def _fold_quietly(self) -> None:
        try:
            await self.fold()
        except StorageError as error:
            log.info("%s: the index still lacks native entries: %s", self.name, error)
