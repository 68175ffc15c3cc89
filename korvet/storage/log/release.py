"""The wait of one log for replicas: records are released to readers, and to producers with acks=all, once
they have the copies that the topic asks for.

Each growth of the log asks the server's barrier. While an answer is due, nothing is asked; the next question
then covers all growth since. Records that were appended while a server was the primary are never released by
the replicas of another one: the barrier compares the histories.

In a cluster, the topic itself may be on another server. Before the first records are released, the replicas
of that server must have the topic: a failover there would otherwise take the partition away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from korvet.records.kernel import pack_command
from korvet.storage.errors import (
    HistoryChanged,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    StorageError,
)
from korvet.storage.link.barrier import Level
from korvet.storage.link.calls import answer, parse_reply
from korvet.storage.link.replicas import await_replicas

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.link.server import Links
    from korvet.storage.log.listeners import Listeners
    from korvet.storage.log.transactions import TransactionIndex
    from korvet.storage.topic import Topic

UNKNOWN_END: Final = -1
"""The released end before the first answer of the barrier."""
# Pause before the barrier is asked again after an error.
_RETRY_S: Final = 0.1


def level_of(topic: Topic, default: Level) -> Level:
    """What a topic's records need: its own configs, else the broker's."""
    copies, fsync = topic.min_insync_replicas, topic.acks_all_fsync
    return Level(
        default.replicas if copies is None else copies - 1, default.fsync if fsync is None else fsync
    )


def _unsafe(refusal: StorageError) -> NotEnoughReplicasAfterAppend:
    """The error for records that a closed log does not release any more."""
    return NotEnoughReplicasAfterAppend(f"the records are on too few servers as yet: {refusal}")


class _Log(Protocol):
    """The log whose records are released; LogState implements it."""

    name: str
    stream: bytes
    meta: bytes
    links: Links
    catalogue: Links
    listeners: Listeners
    barrier_key: bytes
    catalogue_key: bytes
    catalogue_barrier_key: bytes
    bounds_call: bytes
    loaded: bool
    log_end: int
    refusal: StorageError | None
    transactions: TransactionIndex

    def forget(self) -> None:
        """Both ends have to be read again."""

    def take_bounds(self, reply: list[Any]) -> object:
        """Take over both ends."""

    def announce(self) -> None:
        """The released end has grown."""


class _Asked:
    """The log end that a question to the barrier is about, and the last stable offset at that time."""

    __slots__ = ("end", "stable")

    def __init__(self, end: int, stable: int) -> None:
        self.end = end
        self.stable = stable


class Waiter(NamedTuple):
    """Waits until the records before `end` are released, and for no longer than until `deadline_s`."""

    end: int
    deadline_s: float
    done: Callable[[StorageError | None], None]


class Release:
    """The released end of one log, and the callers that wait for it."""

    __slots__ = (
        "_asked",
        "_is_catalogued",
        "_log",
        "_retry",
        "_timer",
        "_waiters",
        "end",
        "found_end",
        "level",
        "stable",
    )

    def __init__(self, log: _Log, level: Level, end: int, stable: int) -> None:
        self.level = level
        self.end = end
        """The offset before which all records are released; UNKNOWN_END before the first answer."""
        self.stable = stable
        """The last stable offset if only released markers count, as far as is known; UNKNOWN_END at first."""
        self.found_end = UNKNOWN_END
        """The log end that this leader found. Readers of the last leader may have seen all records before it,
        though `end` starts with that leader's note, which may be older.
        """
        self._log = log
        # Whether replicas are known to have the topic with this partition: records were released before.
        self._is_catalogued = False
        # What was asked last; None if no answer is due. Answers to earlier questions are not wanted any more.
        self._asked: _Asked | None = None
        # In the order of their ends.
        self._waiters: deque[Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._retry: asyncio.TimerHandle | None = None

    @property
    def missing_replicas(self) -> NotEnoughReplicas | None:
        """Why records cannot be released now; None if nothing speaks against it."""
        log = self._log
        refusal = log.links.server.barriers.refusal(self.level)
        if refusal is None and log.loaded and not self._is_catalogued:
            refusal = log.catalogue.server.barriers.refusal(self.level)
        return refusal

    # What the log shows.

    def grown(self) -> None:
        """The log end has grown."""
        if self._asked is None and self._retry is None:
            self._ask()

    def keep_stable(self) -> None:
        """The last stable offset is about to be read again: it counts if all that it is of is released."""
        transactions = self._log.transactions
        if transactions.proven_end <= self.end:
            self.stable = max(self.stable, transactions.last_stable_offset)

    def loaded(self, end: int) -> None:
        """Both ends were read for the first time, or for the first time since another server took over."""
        self._asked = None
        stable = self._log.transactions.last_stable_offset
        self.stable = min(self.stable, stable)
        if not end:
            self.end = 0
        elif self.end != UNKNOWN_END:
            self.end, self.found_end = min(self.end, end), min(self.found_end, end)
        else:
            self.found_end = end
            asked = self._asked = _Asked(end, stable)
            command = pack_command("HGET", self._log.meta, "watermark")
            self._log.links.read.send(command, partial(self._noted, asked))
        self.grown()

    def _noted(self, asked: _Asked, reply: memoryview | StorageError) -> None:
        """Readers of the last leader have seen the records before this offset (Watermarks)."""
        if asked is not self._asked:
            return
        self._asked = None
        noted = None if isinstance(reply, StorageError) else parse_reply(reply)
        if noted is not None:
            self._is_catalogued = True
            self.end = min(int(noted), asked.end)
            self.stable = min(self.end, asked.stable)
            self._answer_released()
            self._log.listeners.wake()
        self.grown()

    def moved(self) -> None:
        """Another server holds the log now, which may lack what was not released."""
        self._asked = None
        self._fail(
            HistoryChanged(f"{self._log.name}: another server took over before replicas had the records")
        )

    def hand_over(self, successor: Release | None) -> None:
        """The topic asks for another level from now on, or for none: the waiters wait for that level."""
        self._stop()
        waiters, self._waiters = self._waiters, deque()
        if successor is None:
            for waiter in waiters:
                answer(waiter.done, None)
        else:
            successor.found_end = self.found_end
            for waiter in waiters:
                successor.add(waiter)
            successor.grown()

    def close(self, refusal: StorageError) -> None:
        """The log is closed."""
        self._stop()
        self._fail(_unsafe(refusal))

    def _stop(self) -> None:
        self._asked = None
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None

    # The barrier.

    def _ask(self) -> None:
        log = self._log
        if not log.loaded or log.log_end <= self.end or log.refusal is not None:
            return
        if self._is_catalogued or log.catalogue.server is log.links.server:
            self._await(log.links, log.stream, log.barrier_key, self._answered)
        else:
            self._await(log.catalogue, log.catalogue_key, log.catalogue_barrier_key, self._catalogued)

    def _await(
        self,
        links: Links,
        held: bytes,
        barrier_key: bytes,
        answered: Callable[[_Asked, StorageError | None], None],
    ) -> None:
        log = self._log
        asked = self._asked = _Asked(log.log_end, log.transactions.last_stable_offset)
        history = links.server.write.history
        await_replicas(links, self.level, held, barrier_key, history, partial(answered, asked))

    def _catalogued(self, asked: _Asked, error: StorageError | None) -> None:
        """The replicas have the topic, or may lack it."""
        if asked is not self._asked:
            return
        self._asked = None
        if error is None:
            self._is_catalogued = True
            self._ask()
        else:
            self._failed(error)

    def _answered(self, asked: _Asked, error: StorageError | None) -> None:
        """The replicas have the records, or may lack them."""
        if asked is not self._asked:
            return
        self._asked = None
        log = self._log
        if error is None:
            self._is_catalogued = True
            self.end = max(self.end, asked.end)
            self.stable = max(self.stable, asked.stable)
            self._ask()
            self._answer_released()
            log.announce()
        elif isinstance(error, HistoryChanged):
            log.forget()
            self._read_ends()
        else:
            self._failed(error)

    def _failed(self, error: StorageError) -> None:
        if isinstance(error, NotEnoughReplicas):
            self._fail(NotEnoughReplicasAfterAppend(str(error)))
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._ask_again)

    def _ask_again(self) -> None:
        self._retry = None
        if self._log.loaded:
            self.grown()
        else:
            self._read_ends()

    def _read_ends(self) -> None:
        """Read both ends of the log, which another server holds now; until that succeeds."""
        asked = self._asked = _Asked(UNKNOWN_END, UNKNOWN_END)
        self._log.links.read_functions.send(self._log.bounds_call, partial(self._ends_arrived, asked))

    def _ends_arrived(self, asked: _Asked, reply: memoryview | StorageError) -> None:
        if asked is not self._asked:
            return
        self._asked = None
        if isinstance(reply, StorageError):
            self._failed(reply)
        else:
            self._log.take_bounds(parse_reply(reply))

    # The waiters.

    def wait(self, end: int, timeout_ms: int, done: Callable[[StorageError | None], None]) -> None:
        """See PartitionLog.await_released."""
        if end <= self.end:
            done(None)
            return
        loop, refusal = asyncio.get_running_loop(), self._log.refusal
        if refusal is not None:
            # Redis has answered an append that was in flight when the log was closed.
            loop.call_soon(done, _unsafe(refusal))
            return
        self.add(Waiter(end, loop.time() + timeout_ms / 1000, done))

    def add(self, waiter: Waiter) -> None:
        """Let a waiter wait whose end is not released. Mostly its end is the last one."""
        waiters = self._waiters
        at = len(waiters)
        while at and waiters[at - 1].end > waiter.end:
            at -= 1
        waiters.insert(at, waiter)
        self._expire_at(waiter.deadline_s)

    def _expire_at(self, deadline_s: float) -> None:
        """Look for expired waits at that time, unless an earlier look is due."""
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._expire)

    def _answer_released(self) -> None:
        # Looked up each time: an answer may close the log, which answers the others.
        while self._waiters and self._waiters[0].end <= self.end:
            answer(self._waiters.popleft().done, None)

    def _fail(self, error: StorageError) -> None:
        waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            answer(waiter.done, error)

    def _expire(self) -> None:
        """End the waits that have lasted too long."""
        self._timer = None
        if not self._waiters:
            return
        now_s = asyncio.get_running_loop().time()
        expired = [waiter for waiter in self._waiters if waiter.deadline_s <= now_s]
        self._waiters = deque(waiter for waiter in self._waiters if waiter.deadline_s > now_s)
        if self._waiters:
            self._expire_at(min(waiter.deadline_s for waiter in self._waiters))
        error = NotEnoughReplicasAfterAppend(
            f"{self._log.name}: the replicas did not have the records in time"
        )
        for waiter in expired:
            answer(waiter.done, error)
