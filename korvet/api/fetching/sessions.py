"""Fetch sessions (KIP-227): a consumer names its partitions once and then only changes. Responses contain
only partitions with news.

A full fetch (epoch 0) opens a session, and incremental fetches continue it, each with the next epoch.
Sessions belong to the broker, not to a connection. The broker keeps a limited number of them. When there is
no room, a session that was not used for long, or is smaller than the new one, is evicted; else no session
opens, and the client sends full fetches. No I/O here, and no clock.
"""

from __future__ import annotations

import heapq
import secrets
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.metrics.counted import Counted, counter, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from korvet.api.fetching.partition import FetchedPartition
    from korvet.api.fetching.state import FetchState
    from korvet.protocol.fetch_request import PartitionKey

EVICTION_MS: Final = 120_000
"""After this time without use a session is evicted for any other session, and at this age for a larger one.
Kafka's min.incremental.fetch.session.eviction.ms, which Kafka does not let one set either."""
_INT32_MAX: Final = 2**31 - 1
MOST_PARTITIONS: Final = 500_000
"""Partitions of all sessions together: each takes some 300 bytes, and clients may invent their names."""
# Stale ranks, of sessions that are closed or have changed their size, are kept up to this number more than
# there are sessions.
_STALE_RANKS: Final = 64

by_lru_sequence: Final = attrgetter("lru_sequence")
"""The order in which a session's partitions are read."""


class SessionError(Exception):
    """A fetch that continues no session. The client starts a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FetchSession:
    """The partitions that a client fetches, in the order in which they are read, and what the client knows.

    Partitions that returned records move to the end. So each gets its turn when a response cannot hold all.
    """

    __slots__ = (
        "_before",
        "_last_sequence",
        "by_id",
        "counted_size",
        "created_at_ms",
        "epoch",
        "id",
        "open_partitions",
        "partitions",
        "ranked_size",
        "reader",
        "used_at_ms",
    )

    def __init__(self, session_id: int, now_ms: float, *, by_id: bool) -> None:
        self.id = session_id
        self.by_id = by_id
        """Whether its requests name topics by ID (version 13 and above)."""
        self.epoch = 1
        """The epoch of the next request."""
        self.partitions: dict[PartitionKey, FetchedPartition] = {}
        self.open_partitions: dict[FetchedPartition, None] = {}
        """Partitions that may have something to read or to advertise."""
        self.created_at_ms = self.used_at_ms = now_ms
        self.counted_size = 0
        """The partitions after the last request, which count against MOST_PARTITIONS."""
        self.ranked_size = -1
        """The size by which the session can be evicted for a larger one; -1 if it is too young for that."""
        self.reader: FetchState | None = None
        """What reads the partitions; None before the first incremental fetch, and once the session is closed.
        """
        self._last_sequence = 0
        # What the last `advertise` changed: partition, high watermark, log start, LRU sequence.
        self._before: list[tuple[FetchedPartition, int, int, int]] = []

    def add(self, partition: FetchedPartition) -> None:
        """Add a partition at the end."""
        self._last_sequence += 1
        partition.lru_sequence = self._last_sequence
        self.partitions[partition.topic, partition.index] = partition
        self.open_partitions[partition] = None

    def forget(self, key: PartitionKey) -> FetchedPartition | None:
        """Remove a partition, which the client fetches no more. Returns None if the session lacks it."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.open_partitions.pop(partition, None)
            partition.unlisten()
        return partition

    def update(
        self,
        requested: Iterable[FetchedPartition],
        forgotten: Iterable[PartitionKey],
    ) -> None:
        """Apply the changes of an incremental fetch: named partitions and forgotten ones."""
        for each in requested:
            partition = self.partitions.get((each.topic, each.index))
            if partition is None:
                self.add(each)
            else:
                partition.offset, partition.max_bytes = each.offset, each.max_bytes
                partition.leader_epoch = each.leader_epoch
                self.open_partitions[partition] = None
        for key in forgotten:
            self.forget(key)

    def open_all(self) -> None:
        """Look at every partition in the next fetch."""
        self.open_partitions = dict.fromkeys(self.partitions.values())

    def advertise(self, partitions: Iterable[FetchedPartition]) -> None:
        """The client gets what was found in these partitions."""
        self._before = before = []
        others = len(self.partitions) > 1
        for partition in partitions:
            before.append(
                (
                    partition,
                    partition.advertised_high_watermark,
                    partition.advertised_log_start,
                    partition.lru_sequence,
                )
            )
            partition.mark_advertised()
            if partition.size_bytes and others:
                del self.partitions[partition.topic, partition.index]
                self.add(partition)

    def revert_advertised(self) -> None:
        """Undo the last `advertise`: the response was withheld because the client is throttled (KIP-219)."""
        before, self._before = self._before, []
        for partition, high_watermark, log_start, lru_sequence in before:
            partition.advertised_high_watermark = high_watermark
            partition.advertised_log_start = log_start
            partition.lru_sequence = lru_sequence
            self.open_partitions[partition] = None
        self.partitions = dict(sorted(self.partitions.items(), key=lambda item: item[1].lru_sequence))

    def renew(self) -> None:
        """Replace the partitions by copies: reads under way write what they find to the old ones."""
        self.partitions = {key: partition.copy() for key, partition in self.partitions.items()}
        self.open_all()


class FetchSessions(Counted):
    """The broker's sessions, the least recently used first: up to `slots` sessions, with up to
    MOST_PARTITIONS partitions together.
    """

    @property
    @shown(
        "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
        "Partitions of all fetch sessions.",
    )
    def partitions(self) -> int:
        """The partitions of all sessions together."""
        return self._partitions

    evicted = counter(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
        "Fetch sessions that were closed to make room for others.",
    )

    def __init__(self, slots: int, draw: Callable[[int], int] = secrets.randbelow) -> None:
        """draw(n): a random number below n, for session IDs that cannot be guessed."""
        super().__init__()
        self._slots = slots
        self._draw = draw
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        # A heap of (size, id) of sessions that are old enough to be evicted for a larger one. Some are stale.
        self._ranks: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, partitions: Collection[FetchedPartition], now_ms: float, *, by_id: bool
    ) -> FetchSession | None:
        """Open a session for the partitions of a full fetch, no two of one key, as the response advertises
        them. Returns None if there is no room.
        """
        if len(self._sessions) >= self._slots and not self._evict(len(partitions), now_ms):
            return None
        if not self._has_room(len(partitions), now_ms):
            return None
        session = FetchSession(self._new_id(), now_ms, by_id=by_id)
        for partition in partitions:
            session.add(partition)
            partition.mark_advertised()
        self._sessions[session.id] = session
        self._count(session)
        return session

    def find(self, session_id: int, epoch: int, *, by_id: bool) -> FetchSession:
        """The session that an incremental fetch continues. Raises SessionError."""
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise SessionError(ErrorCode.invalid_fetch_session_epoch)
        if session.by_id is not by_id:
            raise SessionError(ErrorCode.fetch_session_topic_id_error)
        return session

    def advance(self, session: FetchSession, now_ms: float) -> bool:
        """Count the session's partitions after a request's changes, and expect the next epoch. Returns False
        if no partition is left, or no room for added ones: then the session is closed.
        """
        session.used_at_ms = now_ms
        self._sessions[session.id] = self._sessions.pop(session.id)
        size = len(session.partitions)
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
        """Close the session, if there is one of that ID."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self._partitions -= session.counted_size
        if session.reader is not None:
            reader, session.reader = session.reader, None
            reader.close()

    def _new_id(self) -> int:
        while True:
            drawn = 1 + self._draw(_INT32_MAX)
            if drawn not in self._sessions:
                return drawn

    def _count(self, session: FetchSession) -> None:
        self._partitions += len(session.partitions) - session.counted_size
        session.counted_size = len(session.partitions)

    def _has_room(self, size: int, now_ms: float) -> bool:
        """Whether there is room for `size` more partitions. Evicts sessions that were not used for long."""
        while self._partitions + size > MOST_PARTITIONS:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_at_ms <= EVICTION_MS:
                return False
            self.evicted += 1
            self.close(oldest.id)
        return True

    def _evict(self, size: int, now_ms: float) -> bool:
        """Evict a session for one of `size` partitions. Returns False if none is old or small enough."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.used_at_ms > EVICTION_MS:
            self.evicted += 1
            self.close(oldest.id)
            return True
        while self._ranks:
            smallest, session_id = self._ranks[0]
            session = self._sessions.get(session_id)
            if session is not None and session.ranked_size == smallest:
                if smallest >= size:
                    return False
                self.evicted += 1
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
    """The epoch after this one. After the largest follows 1."""
    return 1 if epoch == _INT32_MAX else epoch + 1
