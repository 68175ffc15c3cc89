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
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.log.ends import UNKNOWN_END
from korvet.redis.barrier import Level
from korvet.redis.calls import answer, parse_reply
from korvet.redis.errors import (
    HistoryChanged,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    StorageError,
)
from korvet.redis.replicas import await_replicas

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.cluster.topic import Topic
    from korvet.log.ends import KnownEnds
    from korvet.redis.calls import OnReply
    from korvet.redis.replicas import Held

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


class _Asked(NamedTuple):
    """The log end that a question to the barrier is about, and the last stable offset at that time."""

    end: int
    stable: int


class Waiter(NamedTuple):
    """Waits until the records before `end` are released, and for no longer than until `deadline_s`."""

    end: int
    deadline_s: float
    done: Callable[[StorageError | None], None]


class Release:
    """The wait for the copies of one log's records, and the callers that wait for it."""

    __slots__ = (
        "_announce",
        "_asked",
        "_catalogue",
        "_forget",
        "_held",
        "_is_catalogued",
        "_known",
        "_read_bounds",
        "_read_noted",
        "_refusal",
        "_retry",
        "_timer",
        "_waiters",
        "found_end",
        "level",
    )

    def __init__(
        self,
        known: KnownEnds,
        level: Level,
        held: Held,
        catalogue: Held,
        *,
        forget: Callable[[], None],
        read_bounds: Callable[[Callable[[object], None], Callable[[StorageError], None]], None],
        read_noted: Callable[[OnReply], None],
        announce: Callable[[], None],
    ) -> None:
        """`held`: the stream; `catalogue`: the topic's catalogue. `forget` is called after another server has
        taken over, `announce` after records were released. `read_bounds(done, failed)` reads both
        ends; `read_noted(done)` the high watermark that the last leader has noted (Watermarks).
        """
        self.level = level
        self.found_end = UNKNOWN_END
        """The log end that this leader found. Readers of the last leader may have seen all records before it,
        though the released end starts with that leader's note, which may be older.
        """
        self._known = known
        self._held = held
        self._catalogue = catalogue
        self._forget = forget
        self._read_bounds = read_bounds
        self._read_noted = read_noted
        self._announce = announce
        # Why the log is closed.
        self._refusal: StorageError | None = None
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
        refusal = self._held.shortage(self.level)
        if refusal is None and self._known.loaded and not self._is_catalogued:
            refusal = self._catalogue.shortage(self.level)
        return refusal

    @property
    def _name(self) -> str:
        """The log, for messages."""
        return self._held.key.decode()

    # What the log shows.

    def grown(self) -> None:
        """The log end has grown."""
        if self._asked is None and self._retry is None:
            self._ask()

    def loaded(self) -> None:
        """Both ends were read for the first time, or for the first time since another server took over."""
        known, end = self._known, self._known.ends.log_end
        assert known.loaded, "the ends are not read yet"
        self._asked = None
        if known.has_watermark:
            self.found_end = min(self.found_end, end)
        else:
            self.found_end = end
            asked = self._asked = _Asked(end, known.stable)
            self._read_noted(partial(self._noted, asked))
        self.grown()

    def _noted(self, asked: _Asked, reply: memoryview | StorageError) -> None:
        """Readers of the last leader have seen the records before this offset."""
        if asked is not self._asked:
            return
        self._asked = None
        noted = None if isinstance(reply, StorageError) else parse_reply(reply)
        if noted is not None:
            self._is_catalogued = True
            end = min(int(noted), asked.end)
            assert end >= 0, f"a high watermark of {end} was noted"
            self._known.release(end, min(end, asked.stable))
            self._answer_released()
            self._announce()
        self.grown()

    def moved(self) -> None:
        """Another server holds the log now, which may lack what was not released."""
        self._asked = None
        self._fail(HistoryChanged(f"{self._name}: another server took over before replicas had the records"))

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
        self._refusal = refusal
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
        known = self._known
        if not known.loaded or known.ends.log_end <= known.released or self._refusal is not None:
            return
        if self._is_catalogued or self._catalogue.links.server is self._held.links.server:
            self._await(self._held, self._answered)
        else:
            self._await(self._catalogue, self._catalogued)

    def _await(self, held: Held, answered: Callable[[_Asked, StorageError | None], None]) -> None:
        known = self._known
        assert known.released < known.ends.log_end, f"asked for {known.ends}, released: {known.released}"
        asked = self._asked = _Asked(known.ends.log_end, known.stable)
        await_replicas(held, self.level, held.history, partial(answered, asked))

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
        if error is None:
            self._is_catalogued = True
            self._known.release(asked.end, asked.stable)
            self._ask()
            self._answer_released()
            self._announce()
        elif isinstance(error, HistoryChanged):
            self._forget()
            self._read_ends()
        else:
            self._failed(error)

    def _failed(self, error: StorageError) -> None:
        if isinstance(error, NotEnoughReplicas):
            self._fail(NotEnoughReplicasAfterAppend(str(error)))
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._ask_again)

    def _ask_again(self) -> None:
        self._retry = None
        if self._known.loaded:
            self.grown()
        else:
            self._read_ends()

    def _read_ends(self) -> None:
        """Read both ends of the log, which another server holds now; until that succeeds."""
        asked = self._asked = _Asked(UNKNOWN_END, UNKNOWN_END)
        # After a successful read, the log calls `loaded`.
        self._read_bounds(lambda _: None, partial(self._ends_unread, asked))

    def _ends_unread(self, asked: _Asked, error: StorageError) -> None:
        if asked is self._asked:
            self._asked = None
            self._failed(error)

    # The waiters.

    def wait(self, end: int, timeout_ms: int, done: Callable[[StorageError | None], None]) -> None:
        """See PartitionLog.await_released."""
        known = self._known
        assert not known.loaded or end <= known.ends.log_end, f"offset {end} was not appended to {known.ends}"
        if end <= known.released:
            done(None)
            return
        loop, refusal = asyncio.get_running_loop(), self._refusal
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
        while self._waiters and self._waiters[0].end <= self._known.released:
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
        error = NotEnoughReplicasAfterAppend(f"{self._name}: the replicas did not have the records in time")
        for waiter in expired:
            answer(waiter.done, error)
