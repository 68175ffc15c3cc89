"""Fetch sessions (KIP-227): a consumer names its partitions once and then only what changes, and is told only
of those with news.

A full fetch (epoch 0) opens a session, and incremental ones go on with it, each with the next epoch. Sessions
belong to the broker, not to a connection: the broker keeps a limited number of them and refuses further ones
(the client then sends full fetches), unless one was not used for long or is smaller than the new one. No I/O
here, and no clock.
"""

from __future__ import annotations

import heapq
import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from kio.schema.errors import ErrorCode

from korvet.api.fetching.part import TopicKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.api.fetching.part import FetchedPart

FINAL_EPOCH: Final = -1
"""A fetch without a session; one that is named is closed."""
INITIAL_EPOCH: Final = 0
"""A full fetch that wants a session; one that is named is closed."""
NO_SESSION: Final = 0
EVICTION_MS: Final = 120_000
"""A session that was not used for so long gives way to any other, and one that has lived so long to a larger
one. Kafka's min.incremental.fetch.session.eviction.ms, which is no setting there either."""
_INT32_MAX: Final = 2**31 - 1
MOST_PARTITIONS: Final = 500_000
"""Of all sessions together: each takes some 300 bytes, and clients may make up their names."""
# Ranks of sessions that are gone or have another size are kept until they are so many more than sessions.
_STALE_RANKS: Final = 64

PartKey: TypeAlias = tuple[TopicKey, int]
"""A partition in a session: its topic as requests name it, and its index."""

by_turn: Final = attrgetter("turn")
"""The order in which a session's partitions are read."""


class SessionError(Exception):
    """A fetch that no session goes on with; the client begins a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Reader(Protocol):
    """What reads a session's partitions."""

    def session_closed(self) -> None:
        """The session is no more."""


class FetchSession:
    """The partitions that a client fetches, in the order in which they are read, with what it was told.

    Those that gave records move behind the others, so that all get their turn where a response cannot hold
    everything.
    """

    __slots__ = (
        "_before",
        "_turns",
        "by_id",
        "counted_size",
        "created_at_ms",
        "epoch",
        "id",
        "parts",
        "ranked_size",
        "reader",
        "used_at_ms",
    )

    def __init__(self, session_id: int, now_ms: float, *, by_id: bool) -> None:
        self.id = session_id
        self.by_id = by_id
        """Whether its requests name topics by id (version 13 and above)."""
        self.epoch = 1
        """That of the next request."""
        self.parts: dict[PartKey, FetchedPart] = {}
        self.created_at_ms = self.used_at_ms = now_ms
        self.counted_size = 0
        """The partitions that count against MOST_PARTITIONS: those after its last request."""
        self.ranked_size = -1
        """Its size among those that give way to larger ones; -1 while it is not among them."""
        self.reader: Reader | None = None
        """What reads its partitions."""
        self._turns = 0
        # What `tell` has changed: part, high watermark, log start, turn.
        self._before: list[tuple[FetchedPart, int, int, int]] = []

    def add(self, part: FetchedPart) -> None:
        """A partition that the session does not have."""
        self._turns += 1
        part.turn = self._turns
        self.parts[part.topic, part.index] = part

    def forget(self, key: PartKey) -> FetchedPart | None:
        """A partition that the client fetches no more; None where it was not there."""
        return self.parts.pop(key, None)

    def tell(self, parts: Iterable[FetchedPart]) -> None:
        """The client is told what was found in these."""
        self._before = before = []
        others = len(self.parts) > 1
        for part in parts:
            before.append((part, part.told_high_watermark, part.told_log_start, part.turn))
            part.told()
            if part.size_bytes and others:
                del self.parts[part.topic, part.index]
                self.add(part)

    def renew(self) -> None:
        """Leave the parts to reads that are under way for a request that nobody waits for any more."""
        self.parts = {key: part.copy() for key, part in self.parts.items()}

    def untell(self) -> list[FetchedPart]:
        """What `tell` was last called for does not reach the client, which has to wait (KIP-219): those
        partitions are as they were.
        """
        before, self._before = self._before, []
        for part, high_watermark, log_start, turn in before:
            part.told_high_watermark, part.told_log_start, part.turn = high_watermark, log_start, turn
        self.parts = dict(sorted(self.parts.items(), key=lambda item: item[1].turn))
        return [part for part, *_ in before]


class FetchSessions:
    """The broker's sessions, least recently used first: no more than `slots`, which have no more than
    MOST_PARTITIONS together.
    """

    def __init__(self, slots: int, draw: Callable[[int], int] = secrets.randbelow) -> None:
        """draw(n): any number below n, for ids that nobody else has or guesses."""
        self._slots = slots
        self._draw = draw
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        # (size, id) of sessions that have lived long enough, the smallest first; some of them stale.
        self._ranks: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, parts: Iterable[FetchedPart], now_ms: float, *, by_id: bool) -> FetchSession | None:
        """A new session over what a full fetch has asked for and was told; None where there is no room."""
        parts = {(part.topic, part.index): part for part in parts}.values()
        if len(self._sessions) >= self._slots and not self._evict(len(parts), now_ms):
            return None
        if not self._has_room(len(parts), now_ms):
            return None
        session = FetchSession(self._new_id(), now_ms, by_id=by_id)
        for part in parts:
            session.add(part)
            part.told()
        self._sessions[session.id] = session
        self._count(session)
        return session

    def find(self, session_id: int, epoch: int, *, by_id: bool) -> FetchSession:
        """The session that an incremental fetch goes on with. Raises SessionError."""
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise SessionError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id is not by_id:
            raise SessionError(ErrorCode.fetch_session_topic_id_error)
        return session

    def go_on(self, session: FetchSession, now_ms: float) -> bool:
        """A request has changed what the session fetches; the next one has the next epoch. False if no
        partition is left, or if there is no room for those that were added: then the session is closed.
        """
        session.used_at_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        size = len(session.parts)
        added = size - session.counted_size
        if not size or (added > 0 and not self._has_room(added, now_ms)):
            self.close(session.id)
            return False
        self._count(session)
        session.epoch = next_epoch(session.epoch)
        if session.ranked_size != size and now_ms - session.created_at_ms > EVICTION_MS:
            session.ranked_size = size
            self._rank(session)
        return True

    def close(self, session_id: int) -> None:
        """The session is no more. No fault where there is none of that id."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._partitions -= session.counted_size
        if session.reader is not None:
            reader, session.reader = session.reader, None
            reader.session_closed()

    def _new_id(self) -> int:
        while True:
            drawn = 1 + self._draw(_INT32_MAX)
            if drawn not in self._sessions:
                return drawn

    def _count(self, session: FetchSession) -> None:
        self._partitions += len(session.parts) - session.counted_size
        session.counted_size = len(session.parts)

    def _has_room(self, size: int, now_ms: float) -> bool:
        """Whether so many more partitions have room. Sessions that were not used for long give way."""
        while self._partitions + size > MOST_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_at_ms <= EVICTION_MS:
                return False
            self.close(oldest.id)
        return True

    def _evict(self, size: int, now_ms: float) -> bool:
        """Make room for a session of that many partitions, if another one has to give way to it."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_at_ms > EVICTION_MS:
            self.close(oldest.id)
            return True
        while self._ranks:
            smallest, session_id = self._ranks[0]
            session = self._sessions.get(session_id)
            if session is not None and session.ranked_size == smallest:
                if smallest >= size:
                    return False
                self.close(session_id)
                return True
            heapq.heappop(self._ranks)
        return False

    def _rank(self, session: FetchSession) -> None:
        heapq.heappush(self._ranks, (session.ranked_size, session.id))
        if len(self._ranks) > 2 * len(self._sessions) + _STALE_RANKS:
            self._ranks = [
                (one.ranked_size, one.id) for one in self._sessions.values() if one.ranked_size >= 0
            ]
            heapq.heapify(self._ranks)


def next_epoch(epoch: int) -> int:
    """The epoch after that one: they begin again at 1."""
    return 1 if epoch == _INT32_MAX else epoch + 1
