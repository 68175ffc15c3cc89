"""Waits until replicas have what a server has executed (WAIT, WAITAOF).

WAIT blocks the commands after it, so it has a connection of its own. On that connection a *round* is a small
write and a WAIT for it. Replication offsets count the writes of all connections, so a round proves that
replicas have everything that was answered on any connection before the round began. One round at a time
serves all partitions of the server; a caller that arrives during a round waits for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from korvet.causes import Causes
from korvet.metrics.counted import Counted, histogram
from korvet.records.kernel import pack_command
from korvet.redis.calls import answer, parse_replies
from korvet.redis.errors import (
    HistoryChanged,
    LinkLost,
    NotEnoughReplicas,
    OutOfMemory,
    RedisFault,
    SlotUnavailable,
    StorageError,
    domain_error,
)
from korvet.redis.functions import named
from korvet.redis.link import RedisLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.redis.address import RedisAddress
    from korvet.redis.calls import Payload
    from korvet.redis.histories import History
    from korvet.redis.replication import Replication

log = logging.getLogger(__name__)
causes = Causes(log)

# Longest WAIT. After it the broker looks whether enough replicas are left, and waits on for the same write.
_WAIT_MS: Final = 500
# The error of WAIT and WAITAOF if the server is demoted meanwhile.
_UNBLOCKED: Final = "UNBLOCKED"
# How long a server counts as unable to wait, after which an append may try again.
_REFUSED_S: Final = 1.0
# How long the written key lasts.
_KEY_S: Final = 60
# How long a connection that nobody waits for stays open: perhaps no topic asks for its level any more.
_UNUSED_S: Final = 60.0


class BarrierCounts(Counted):
    """The barriers of all servers: servers come and go in a cluster, and counters must not fall."""

    waits = histogram(
        "korvet_barrier_wait_seconds",
        "How long logs waited for replicas, or disks, to confirm what was appended, in seconds.",
    )


COUNTS: Final = BarrierCounts()
"""Of the process."""


class Level(msgspec.Struct, frozen=True):
    """The copies that a record needs before producers with acks=all are answered, and consumers see it."""

    replicas: int = 0
    """Replicas that must have the record, in addition to the primary."""
    fsync: bool = False
    """Whether the primary and these replicas must have the record in their append-only files on disk."""

    def __bool__(self) -> bool:
        """Whether anything is asked for beyond the primary's memory."""
        return self.replicas > 0 or self.fsync

    def __str__(self) -> str:
        return f"{self.replicas} replica(s)" + (" and append-only files" if self.fsync else "")


class _Waiter(NamedTuple):
    key: bytes
    history: str
    done: Callable[[StorageError | None], None]
    since_s: float
    """When it began to wait (`perf_counter`)."""


class Barrier:
    """The rounds of one server and one level. The connection is opened on first use."""

    __slots__ = ("_gathered", "_link", "_owner", "_round", "_used_s", "_written", "level", "refusal")

    def __init__(self, owner: Barriers, level: Level) -> None:
        self.level = level
        self.refusal: NotEnoughReplicas | None = None
        """Why the server could not wait a moment ago, whatever its replicas; None if it could."""
        self._owner = owner
        self._link: RedisLink | None = None
        self._gathered: list[_Waiter] = []
        # Who waits for the round in progress; None between rounds.
        self._round: list[_Waiter] | None = None
        # The key that the newest round has written.
        self._written = b""
        self._used_s = perf_counter()

    def wait(self, key: bytes, history: str, done: Callable[[StorageError | None], None]) -> None:
        """Call done(None) once the replicas have all that was answered before this call, or done(error):
        HistoryChanged, NotEnoughReplicas, LinkLost, SlotUnavailable or another StorageError. It is never
        called before this method returns.

        `key` is a key of the server that may be written; `history` is the id of the server's history when it
        answered.
        """
        self._used_s = perf_counter()
        self._gathered.append(_Waiter(key, history, done, self._used_s))
        if self._round is None:
            self._begin()

    def drop(self, has_gone: Callable[[bytes], bool]) -> None:
        """End the waits for the keys for which `has_gone(key)` is true."""
        waiting = [*(self._round or ()), *self._gathered]
        self._gathered = [waiter for waiter in self._gathered if not has_gone(waiter.key)]
        if self._round is not None:
            self._round = [waiter for waiter in self._round if not has_gone(waiter.key)]
        gone = SlotUnavailable("the key is on another server now")
        for waiter in waiting:
            if has_gone(waiter.key):
                answer(waiter.done, gone)

    def _begin(self) -> None:
        """Begin a round, unless nobody waits. Without a connection the waiters wait for it."""
        if self._link is None:
            self._link = self._owner.begin_link()
            self._link.on_up = self._came_up
        if not self._gathered or not self._link.connected:
            return
        assert self._round is None, "a round is in progress"
        self._round, self._gathered = self._gathered, []
        self._written = self._round[0].key
        self._write(pack_command("SET", self._written, "", "EX", _KEY_S), self._set_failed)

    def _set_failed(self, error: StorageError) -> None:
        """SET was refused, or the connection broke. A server whose memory is full takes the function."""
        if isinstance(error, OutOfMemory):
            call = pack_command("FCALL", named("korvet_write_for_wait"), 1, self._written, _KEY_S)
            self._write(call, self._unsent)
        else:
            self._unsent(error)

    def _write(self, write: bytes, unsent: Callable[[StorageError], None]) -> None:
        self._send([write, self._wait_command()], 2, unsent)

    def _came_up(self) -> None:
        if self._round is None:
            self._begin()

    def _wait_command(self) -> bytes:
        level = self.level
        if level.fsync:
            return pack_command("WAITAOF", 1, level.replicas, _WAIT_MS)
        return pack_command("WAIT", level.replicas, _WAIT_MS)

    def _send(self, payload: Payload, replies: int, unsent: Callable[[StorageError], None]) -> None:
        assert self._link is not None

        def arrived(reply: memoryview | StorageError) -> None:
            if isinstance(reply, StorageError):
                unsent(domain_error(reply))
                return
            self._waited(parse_replies(reply, replies)[-1])

        self._link.send(payload, arrived, replies)

    def _waited(self, found: int | list[int] | StorageError) -> None:
        if isinstance(found, RedisFault) and found.code == _UNBLOCKED:
            self._end(LinkLost(f"the server became a replica while it waited for replicas: {found}"))
            return
        if isinstance(found, StorageError):
            self._end(self._refused(found))
            return
        have = [found] if isinstance(found, int) else found
        want = [1, self.level.replicas] if self.level.fsync else [self.level.replicas]
        causes.ended(self)
        if all(each >= wanted for each, wanted in zip(have, want, strict=True)):
            self._end(None)
            return
        shortage = self._owner.shortage(self.level)
        if shortage is None:
            # Enough replicas follow, and one of them is late: WAIT counts the acknowledgements of the same
            # write again.
            self._send(self._wait_command(), 1, self._unsent)
        else:
            self._end(shortage)

    def _unsent(self, error: StorageError) -> None:
        """The write was refused, or the connection broke. If only the key of the write is on another server,
        those who wait for other keys wait for the next round.
        """
        if isinstance(error, SlotUnavailable):
            waiting = self._round or ()
            self._round = [waiter for waiter in waiting if waiter.key == self._written]
            self._gathered[:0] = [waiter for waiter in waiting if waiter.key != self._written]
        self._end(error)

    def _refused(self, fault: StorageError) -> StorageError:
        """The error of WAIT or WAITAOF, which the server does not know or cannot do."""
        self.refusal = NotEnoughReplicas(f"the server cannot wait for {self.level}: {fault}")
        causes.warn(fault, "Redis at %s: %s", self._owner.address, self.refusal, work=self)
        asyncio.get_running_loop().call_later(_REFUSED_S, self._forget_refusal)
        return self.refusal

    def _forget_refusal(self) -> None:
        self.refusal = None

    def _end(self, error: StorageError | None) -> None:
        """End the round. A caller that waits again when it is answered takes part in the next round."""
        assert self._link is not None
        assert self._round is not None, "no round is in progress"
        now_s = perf_counter()
        for waiter in self._round:
            COUNTS.waits.observe(now_s - waiter.since_s)
            answer(waiter.done, error or self._mismatch(waiter))
        self._round = None
        self._begin()

    def _mismatch(self, waiter: _Waiter) -> StorageError | None:
        """Why a round in the server's history proves nothing for a waiter; None if it does."""
        if self._owner.history.has_id(waiter.history):
            return None
        return HistoryChanged("another server has taken over since the append")

    @property
    def is_unused(self) -> bool:
        """Whether nobody has waited for some time."""
        waits = self._round is not None or bool(self._gathered)
        return not waits and perf_counter() - self._used_s > _UNUSED_S

    async def close(self) -> None:
        """Close the connection; waiters get no answer."""
        self._gathered.clear()
        if self._link is not None:
            self._owner.links.remove(self._link)
            await self._link.close()


class Primary(Protocol):
    """The server whose barriers these are."""

    @property
    def address(self) -> RedisAddress:
        """Where its links lead to."""

    history: History
    """In which records are appended."""
    replication: Replication | None

    def lead(self, link: RedisLink) -> None:
        """Let a link lead to where records are appended: in another history it is not used."""


class Barriers:
    """The barriers of one server, one for each level that topics ask for."""

    __slots__ = ("_by_level", "_server", "links")

    def __init__(self, server: Primary) -> None:
        self._server = server
        self._by_level: dict[Level, Barrier] = {}
        self.links: list[RedisLink] = []
        """The connections of all barriers, which lead to where those of the server lead to."""

    @property
    def address(self) -> RedisAddress:
        """The server's address."""
        return self._server.address

    @property
    def history(self) -> History:
        """The history in which records are appended now."""
        return self._server.history

    def begin_link(self) -> RedisLink:
        """A new connection for a barrier."""
        link = RedisLink.begin(self._server.address, "korvet-barrier")
        self._server.lead(link)
        self.links.append(link)
        return link

    def wait(
        self, level: Level, key: bytes, history: str, done: Callable[[StorageError | None], None]
    ) -> None:
        """See Barrier.wait."""
        found = self._by_level.get(level)
        if found is None:
            found = self._by_level[level] = Barrier(self, level)
        found.wait(key, history, done)

    def drop(self, has_gone: Callable[[bytes], bool]) -> None:
        """The server does not hold the keys any more for which `has_gone(key)` is true: end the waits for
        them with SlotUnavailable.
        """
        for barrier in list(self._by_level.values()):
            barrier.drop(has_gone)

    def refusal(self, level: Level) -> NotEnoughReplicas | None:
        """Why the server cannot give this level now; None if it can, or if that is unknown."""
        known = self._by_level.get(level)
        return (known and known.refusal) or self.shortage(level)

    def shortage(self, level: Level) -> NotEnoughReplicas | None:
        """Whether fewer replicas follow the server than a level asks for, as far as is known."""
        replication = self._server.replication
        if replication is None or replication.in_sync >= level.replicas:
            return None
        return NotEnoughReplicas(
            f"Redis at {self.address} has {replication.in_sync} replica(s) in sync of {level.replicas} that "
            "min.insync.replicas asks for besides the primary"
        )

    async def close_unused(self) -> None:
        """Close the connections that nobody has waited for lately."""
        for level, barrier in list(self._by_level.items()):
            # A wait may have begun while the connection of another level was closed.
            if barrier.is_unused:
                del self._by_level[level]
                await barrier.close()

    async def close(self) -> None:
        """Close all connections; waiters get no answer."""
        while self._by_level:
            _, barrier = self._by_level.popitem()
            await barrier.close()
