"""Noticing what native clients add to streams that somebody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from korvet.offsets.packing import entry_id
from korvet.storage.errors import StorageError

if TYPE_CHECKING:
    from korvet.storage.log import PartitionLog
    from korvet.storage.store import Store

log = logging.getLogger(__name__)


class NativeWatcher:
    """Asks Redis every `interval_ms`, with one XREAD COUNT 1 over all logs that have listeners, for newer
    entries.

    XREAD does not block here: a blocked client over many streams costs Redis more than asking. Nothing runs
    while nobody waits.
    """

    def __init__(self, store: Store, interval_ms: int) -> None:
        self._store = store
        self._interval_ms = interval_ms
        self._watched: dict[bytes, PartitionLog] = {}
        # Last entry IDs as found, where they may lie behind the log end's.
        self._seen: dict[bytes, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def watch(self, watched: PartitionLog) -> None:
        """Begin to watch a log. PartitionLog.listen does."""
        self._watched[watched.stream] = watched
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, watched: PartitionLog) -> None:
        """Cease to watch a log."""
        if self._watched.get(watched.stream) is watched:
            del self._watched[watched.stream]
            self._seen.pop(watched.stream, None)
        if not self._watched:
            self._wanted.clear()

    async def close(self) -> None:
        """End the watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            await asyncio.sleep(self._interval_ms / 1000)
            try:
                await self._look()
            except StorageError as error:
                log.debug("native entries cannot be looked for: %s", error)

    async def _look(self) -> None:
        watched = list(self._watched.values())
        if not watched:
            return
        streams = [one.stream for one in watched]
        known = [self._known_id(one) for one in watched]
        try:
            newer = await self._store.read.call("XREAD", "COUNT", 1, "STREAMS", *streams, *known)
        except StorageError as error:
            # One key of another type fails them all: ask one by one, which is rare and small.
            if len(watched) == 1 or not str(error).startswith("WRONGTYPE"):
                raise
            await self._look_singly(watched)
            return
        for stream, _ in newer or ():
            await self._notice(stream)

    async def _look_singly(self, watched: list[PartitionLog]) -> None:
        for one in watched:
            try:
                newer = await self._store.read.call(
                    "XREAD", "COUNT", 1, "STREAMS", one.stream, self._known_id(one)
                )
            except StorageError as error:
                log.debug("%r cannot be looked at: %s", one.stream, error)
                continue
            for stream, _ in newer or ():
                await self._notice(stream)

    async def _notice(self, stream: bytes) -> None:
        watched = self._watched.get(stream)
        if watched is None:
            return
        # The last ID, not the one found: entries that no offset names are newer than the log end for ever.
        self._seen[stream] = (await watched.bounds()).last_id

    def _known_id(self, watched: PartitionLog) -> bytes:
        last = watched.log_end - 1
        known = entry_id(last, watched.bias).encode() if last >= 0 else b"0-0"
        seen = self._seen.get(watched.stream)
        return known if seen is None else max(known, seen, key=_id_parts)


def _id_parts(entry: bytes) -> tuple[int, int]:
    ms, _, sequence = entry.partition(b"-")
    return int(ms), int(sequence)
