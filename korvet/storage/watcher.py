"""Noticing what native clients add to streams that somebody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.packing import entry_id
from korvet.storage.errors import StorageError
from korvet.storage.link import pack_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.storage.log import PartitionLog
    from korvet.storage.store import Store

log = logging.getLogger(__name__)

# Streams of one XREAD: they cost Redis about 0.1 ms, in which it does nothing else.
_STREAMS_AT_ONCE: Final = 500
_NO_ENTRY: Final = b"0-0"
_UNKNOWN: Final = -1


class _Watched:
    """A log that somebody waits for, with what is asked about it."""

    __slots__ = ("log", "log_end", "packed_id", "packed_stream", "seen")

    def __init__(self, watched: PartitionLog) -> None:
        self.log = watched
        self.packed_stream = pack_arguments(watched.stream)
        self.packed_id = b""
        self.log_end = _UNKNOWN
        """The log end that `packed_id` was made from."""
        self.seen = _NO_ENTRY
        """Last entry ID as found, where it may lie behind the log end's."""

    def pack_id(self) -> None:
        self.log_end = self.log.log_end
        last = self.log_end - 1
        known = entry_id(last, self.log.bias).encode() if last >= 0 else _NO_ENTRY
        self.packed_id = pack_arguments(max(known, self.seen, key=_id_parts))


class _Group:
    """Logs that are asked about by one command."""

    __slots__ = ("_command", "_head", "_members")

    def __init__(self, members: Sequence[_Watched]) -> None:
        self._members = members
        head = b"*%d\r\n" % (4 + 2 * len(members)) + pack_arguments("XREAD", "COUNT", 1, "STREAMS")
        self._head = head + b"".join([one.packed_stream for one in members])
        self._command = b""

    def command(self) -> bytes:
        """XREAD COUNT 1, packed; the one of the last time where no log has grown since."""
        changed = [one for one in self._members if one.log_end != one.log.log_end]
        for one in changed:
            one.pack_id()
        if changed or not self._command:
            self._command = self._head + b"".join([one.packed_id for one in self._members])
        return self._command

    def singly(self) -> list[_Group]:
        """A group for each of its logs."""
        return [_Group([one]) for one in self._members]


class NativeWatcher:
    """Asks Redis every `interval_ms` for newer entries in all logs that have listeners.

    XREAD does not block here: a blocked client over many streams costs Redis more than asking. Nothing runs
    while nobody waits, and what was asked once is asked again in the same bytes.
    """

    def __init__(self, store: Store, interval_ms: int) -> None:
        self._store = store
        self._interval_ms = interval_ms
        self._watched: dict[bytes, _Watched] = {}
        # None when logs have come or gone since they were made.
        self._groups: list[_Group] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def watch(self, watched: PartitionLog) -> None:
        """Begin to watch a log. PartitionLog.listen does."""
        self._watched[watched.stream] = _Watched(watched)
        self._groups = None
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def unwatch(self, watched: PartitionLog) -> None:
        """Cease to watch a log. No fault where it is not watched."""
        known = self._watched.get(watched.stream)
        if known is not None and known.log is watched:
            del self._watched[watched.stream]
            self._groups = None
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
        # One group after the other, so that Redis does others' work in between.
        for group in self._grouped():
            try:
                newer = await self._ask(group)
            except StorageError as error:
                # One key of another type fails them all: ask one by one, which is rare.
                if not str(error).startswith("WRONGTYPE"):
                    raise
                newer = await self._ask_singly(group)
            if newer:
                await asyncio.gather(*(self._notice(stream) for stream, _ in newer))

    def _grouped(self) -> list[_Group]:
        if self._groups is None:
            watched = list(self._watched.values())
            starts = range(0, len(watched), _STREAMS_AT_ONCE)
            self._groups = [_Group(watched[start : start + _STREAMS_AT_ONCE]) for start in starts]
        return self._groups

    async def _ask(self, group: _Group) -> list[Any]:
        link = self._store.read
        return await link.call_packed(link.send, group.command()) or []

    async def _ask_singly(self, group: _Group) -> list[Any]:
        answers = await asyncio.gather(*map(self._ask, group.singly()), return_exceptions=True)
        newer: list[Any] = []
        for answer in answers:
            if isinstance(answer, StorageError):
                log.debug("a stream cannot be looked at: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                newer += answer
        return newer

    async def _notice(self, stream: bytes) -> None:
        watched = self._watched.get(stream)
        if watched is None:
            return
        # The last ID, not the one found: entries that no offset names are newer than the log end for ever.
        watched.seen = (await watched.log.bounds()).last_id
        watched.log_end = _UNKNOWN


def _id_parts(entry: bytes) -> tuple[int, int]:
    ms, _, sequence = entry.partition(b"-")
    return int(ms), int(sequence)
