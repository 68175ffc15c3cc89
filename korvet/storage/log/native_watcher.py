"""Noticing what native clients add to streams that somebody waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.packing import entry_id, id_parts
from korvet.records.kernel import pack_arguments
from korvet.storage.errors import LinkLost, RedisFault, StorageError
from korvet.storage.link.calls import parse_replies
from korvet.storage.link.futures import resolve
from korvet.storage.link.slots import REDIRECTIONS
from korvet.supervisor import keep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.storage.link.calls import Caller
    from korvet.storage.link.server import Links, Server
    from korvet.storage.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

# Streams of one XREAD: they cost Redis about 0.1 ms, in which it does nothing else.
_STREAMS_AT_ONCE: Final = 500
_NO_ENTRY: Final = b"0-0"
_ONE_KEYS_FAULTS: Final = REDIRECTIONS | {"WRONGTYPE"}
# What XREAD replies where there is no newer entry.
_NOTHING: Final = b"*-1\r\n"
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
        self.packed_id = pack_arguments(max(known, self.seen, key=id_parts))


class _Group:
    """Logs of one server that are asked about at once: by one XREAD, or in a cluster, where the keys of a
    command have to share a slot, by one for each slot.
    """

    __slots__ = ("_commands", "_heads", "_members", "replies", "server")

    def __init__(self, members: Sequence[_Watched]) -> None:
        self.server = members[0].log.links.server
        by_links: dict[Links, list[_Watched]] = {}
        for one in members:
            by_links.setdefault(one.log.links, []).append(one)
        self._members = list(by_links.values())
        self._heads = [_head(some) for some in self._members]
        self._commands = b""
        self.replies = len(self._members)

    def commands(self) -> bytes:
        """XREAD COUNT 1, packed, as often as `replies` says; those of the last time where no log has grown
        since.
        """
        changed = [one for some in self._members for one in some if one.log_end != one.log.log_end]
        for one in changed:
            one.pack_id()
        if changed or not self._commands:
            parts = []
            for head, some in zip(self._heads, self._members, strict=True):
                parts.append(head)
                parts += [one.packed_id for one in some]
            self._commands = b"".join(parts)
        return self._commands

    def has_moved(self) -> bool:
        """Whether another server holds some of the logs now."""
        return any(some[0].log.links.server is not self.server for some in self._members)

    def singly(self) -> list[tuple[Caller, bytes]]:
        """A command for each of its logs, and how to send it."""
        return [(one.log.links.read, _head([one]) + one.packed_id) for some in self._members for one in some]


def _head(members: Sequence[_Watched]) -> bytes:
    """XREAD without the IDs."""
    command = b"*%d\r\n" % (4 + 2 * len(members)) + pack_arguments("XREAD", "COUNT", 1, "STREAMS")
    return command + b"".join([one.packed_stream for one in members])


class NativeWatcher:
    """Asks Redis every `interval_ms` for newer entries in all logs that have listeners.

    XREAD does not block here: a blocked client over many streams costs Redis more than asking. Nothing runs
    while nobody waits, and what was asked once is asked again in the same bytes.
    """

    def __init__(self, interval_ms: int) -> None:
        self.interval_s = interval_ms / 1000
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
            self._task = keep("watch for native entries", self._run)

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
            await asyncio.sleep(self.interval_s)
            try:
                await self._look()
            except StorageError as error:
                log.debug("native entries cannot be looked for: %s", error)

    async def _look(self) -> None:
        # One group after the other, so that Redis does others' work in between.
        for group in self._grouped():
            try:
                newer = await self._ask(group)
            except LinkLost as error:
                # The other servers may well answer.
                log.debug("native entries cannot be looked for: %s", error)
                continue
            except RedisFault as fault:
                # One key of another type or server fails them all: ask one by one, which is rare.
                if fault.code not in _ONE_KEYS_FAULTS:
                    raise
                newer = await self._ask_singly(group)
            if newer:
                await asyncio.gather(*(self._notice(stream) for stream, _ in newer))

    def _grouped(self) -> list[_Group]:
        groups = self._groups
        if groups is None or any(group.has_moved() for group in groups):
            by_server: dict[Server, list[_Watched]] = {}
            for one in self._watched.values():
                by_server.setdefault(one.log.links.server, []).append(one)
            groups = self._groups = [
                _Group(watched[start : start + _STREAMS_AT_ONCE])
                for watched in by_server.values()
                for start in range(0, len(watched), _STREAMS_AT_ONCE)
            ]
        return groups

    async def _ask(self, group: _Group) -> list[Any]:
        link = group.server.read
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                resolve(answers, reply)
            elif bytes(reply) == _NOTHING * group.replies:
                resolve(answers, [])
            else:
                resolve(answers, _newer(parse_replies(reply, group.replies)))

        link.send(group.commands(), arrived, group.replies)
        return await answers

    async def _ask_singly(self, group: _Group) -> list[Any]:
        calls = (caller.call_packed(command) for caller, command in group.singly())
        answers = await asyncio.gather(*calls, return_exceptions=True)
        newer: list[Any] = []
        for answer in answers:
            if isinstance(answer, StorageError):
                log.debug("a stream cannot be looked at: %s", answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                newer += answer or []
        return newer

    async def _notice(self, stream: bytes) -> None:
        watched = self._watched.get(stream)
        if watched is None:
            return
        # The last ID, not the one found: entries that no offset names are newer than the log end for ever.
        watched.seen = (await watched.log.bounds()).last_id
        watched.log_end = _UNKNOWN


def _newer(replies: list[Any]) -> list[Any] | RedisFault:
    """All streams with newer entries, or the first error."""
    newer: list[Any] = []
    for reply in replies:
        if isinstance(reply, RedisFault):
            return reply
        newer += reply or []
    return newer
