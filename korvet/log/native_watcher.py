"""Noticing the entries that native clients add to streams whose logs have listeners."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from korvet.offsets.packing import entry_id, id_parts
from korvet.records.kernel import pack_arguments
from korvet.redis.calls import parse_replies
from korvet.redis.errors import RedisFault, StorageError
from korvet.redis.futures import resolve
from korvet.redis.slots import REDIRECTIONS
from korvet.supervisor import keep

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from korvet.log.state import LogState
    from korvet.log.values import Bounds
    from korvet.redis.calls import Caller
    from korvet.redis.server import Links, Server

log = logging.getLogger(__name__)

# Streams of one XREAD: they cost Redis about 0.1 ms, in which it does nothing else.
_STREAMS_AT_ONCE: Final = 500
_NO_ENTRY: Final = b"0-0"
# Error codes that one key of a command causes.
_ONE_KEYS_FAULTS: Final = REDIRECTIONS | {"WRONGTYPE"}
# The reply of XREAD without newer entries.
_NOTHING: Final = b"*-1\r\n"
_UNKNOWN: Final = -1
_NEVER: Final = float("-inf")


class WatchedLog:
    """A log with listeners, and its part of an XREAD."""

    __slots__ = ("log_end", "packed_id", "packed_stream", "read_bounds", "seen", "state")

    def __init__(self, state: LogState, read_bounds: Callable[[], Awaitable[Bounds]]) -> None:
        """`read_bounds` reads both ends of the log, which wakes its listeners."""
        self.state = state
        self.read_bounds = read_bounds
        self.packed_stream = pack_arguments(state.stream)
        self.packed_id = b""
        self.log_end = _UNKNOWN
        """The log end of which `packed_id` was made."""
        self.seen = _NO_ENTRY
        """The last entry ID as found, which may be after that of the log end."""

    def pack_id(self) -> None:
        """Pack the ID after which entries are new."""
        self.log_end = self.state.ends.log_end
        last = self.log_end - 1
        known = entry_id(last, self.state.bias).encode() if last >= 0 else _NO_ENTRY
        self.packed_id = pack_arguments(max(known, self.seen, key=id_parts))


class WatchedBatch:
    """Logs of one server that share a question: one XREAD, or one for each slot in a cluster, where the keys
    of a command have to share a slot.
    """

    __slots__ = ("_commands", "_heads", "_members", "replies", "server")

    def __init__(self, members: Sequence[WatchedLog]) -> None:
        self.server = members[0].state.links.server
        by_links: dict[Links, list[WatchedLog]] = {}
        for one in members:
            by_links.setdefault(one.state.links, []).append(one)
        self._members = list(by_links.values())
        self._heads = [_head(some) for some in self._members]
        self._commands = b""
        self.replies = len(self._members)

    def commands(self) -> bytes:
        """`replies` packed commands XREAD COUNT 1. They are the same bytes as last time if no log has grown
        since.
        """
        changed = [one for some in self._members for one in some if one.log_end != one.state.ends.log_end]
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
        return any(some[0].state.links.server is not self.server for some in self._members)

    def singly(self) -> list[tuple[Caller, bytes]]:
        """For each log a command, and the link for it."""
        return [
            (one.state.links.read, _head([one]) + one.packed_id) for some in self._members for one in some
        ]


def _head(members: Sequence[WatchedLog]) -> bytes:
    """XREAD without the IDs."""
    command = b"*%d\r\n" % (4 + 2 * len(members)) + pack_arguments("XREAD", "COUNT", 1, "STREAMS")
    return command + b"".join([one.packed_stream for one in members])


class NativeWatcher:
    """Asks Redis every `interval_ms` for newer entries in all logs that have listeners.

    XREAD does not block here: a client that blocks on many streams costs Redis more than the repeated
    question. Nothing runs while no log has listeners, and an unchanged question is sent as the same bytes.
    """

    def __init__(self, interval_ms: int) -> None:
        self.interval_s = interval_ms / 1000
        self._watched: dict[bytes, WatchedLog] = {}
        # None if logs have come or gone since the batches were made.
        self._batches: list[WatchedBatch] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        # When the last look began that reached all logs.
        self._looked_at_s = _NEVER

    @property
    def is_current(self) -> bool:
        """Whether the ends of all watched logs were compared with Redis within the last two intervals."""
        return time.monotonic() <= self._looked_at_s + 2 * self.interval_s

    def watch(self, state: LogState, read_bounds: Callable[[], Awaitable[Bounds]]) -> None:
        """Begin to watch a log; see WatchedLog. PartitionLog.listen calls this."""
        self._watched[state.stream] = WatchedLog(state, read_bounds)
        self._batches = None
        self._wanted.set()
        if self._task is None:
            self._task = keep("watch for native entries", self._run)

    def unwatch(self, state: LogState) -> None:
        """Cease to watch a log. It is no error if it is not watched."""
        known = self._watched.get(state.stream)
        if known is not None and known.state is state:
            del self._watched[state.stream]
            self._batches = None
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
            await self._look()

    async def _look(self) -> None:
        began_s = time.monotonic()
        reached_all = True
        # One batch after the other, so that Redis serves other clients in between.
        for batch in self._batched():
            try:
                newer = await self._ask(batch)
            except StorageError as error:
                reached_all = False
                if not isinstance(error, RedisFault) or error.code not in _ONE_KEYS_FAULTS:
                    # The other servers may answer.
                    log.debug("native entries cannot be looked for: %s", error)
                    continue
                # One key of another type or server fails the whole command: ask one by one, which is rare.
                newer = await self._ask_singly(batch)
            if newer:
                noticed = await asyncio.gather(*(self._notice(stream) for stream, _ in newer))
                reached_all = reached_all and all(noticed)
        if reached_all:
            self._looked_at_s = began_s

    def _batched(self) -> list[WatchedBatch]:
        batches = self._batches
        if batches is None or any(batch.has_moved() for batch in batches):
            by_server: dict[Server, list[WatchedLog]] = {}
            for one in self._watched.values():
                by_server.setdefault(one.state.links.server, []).append(one)
            batches = self._batches = [
                WatchedBatch(watched[start : start + _STREAMS_AT_ONCE])
                for watched in by_server.values()
                for start in range(0, len(watched), _STREAMS_AT_ONCE)
            ]
        return batches

    async def _ask(self, batch: WatchedBatch) -> list[Any]:
        link = batch.server.read
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()

        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                resolve(answers, reply)
            elif bytes(reply) == _NOTHING * batch.replies:
                resolve(answers, [])
            else:
                resolve(answers, _newer(parse_replies(reply, batch.replies)))

        link.send(batch.commands(), arrived, batch.replies)
        return await answers

    async def _ask_singly(self, batch: WatchedBatch) -> list[Any]:
        calls = (caller.call_packed(command) for caller, command in batch.singly())
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

    async def _notice(self, stream: bytes) -> bool:
        """Read the ends of a log that has newer entries. Returns False if they cannot be read: then the other
        logs are looked at all the same.
        """
        watched = self._watched.get(stream)
        if watched is None:
            return True
        try:
            bounds = await watched.read_bounds()
        except StorageError as error:
            log.debug("%s is not read: %s", watched.state.name, error)
            return False
        # The last ID, not the one found: entries that no offset names stay newer than the log end for ever.
        watched.seen = bounds.last_id
        watched.log_end = _UNKNOWN
        return True


def _newer(replies: list[Any]) -> list[Any] | RedisFault:
    """All streams with newer entries, or the first error."""
    newer: list[Any] = []
    for reply in replies:
        if isinstance(reply, RedisFault):
            return reply
        newer += reply or []
    return newer
