"""Fetch (key 1), versions 4-18.

v4 adds isolation levels, v5 the log start, v7 sessions (KIP-227; declined by answering session id 0, which
every client accepts), v9 leader epochs, v11 racks, v12 flexible, v13 topic ids, v15 to v18 matter to replicas
only. A fetch waits for `min_bytes` until `max_wait`: appends through this broker wake it, entries of native
writers are looked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.deadlines import Deadline
from korvet.api.durations import milliseconds
from korvet.api.errors import error_code_of
from korvet.api.fetch_response import (
    READ_COMMITTED,
    SESSIONS_SINCE,
    TOPIC_IDS_SINCE,
    FetchedPart,
    encode_response,
)
from korvet.api.list_offsets import check_leader_epoch
from korvet.protocol.registry import Respond, submit_api
from korvet.security.acls import Operation, ResourceType
from korvet.storage.committed import Committed, cached_committed, read_committed
from korvet.storage.errors import OffsetOutOfRange, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.context import RequestContext
    from korvet.storage.log import Fetched, PartitionLog

# Older versions may belong to clients that do not know the codec (KIP-110).
_ZSTD_SINCE: Final = 10
_FINAL_EPOCH: Final = -1
_INITIAL_EPOCH: Final = 0
# Kafka's fetch.max.bytes of a broker: what one response holds at the most, whatever the client asks for.
_MAX_BYTES: Final = 55 * 1024 * 1024


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        context.make(
            "FetchableTopicResponse",
            topic=getattr(topic, "topic", ""),
            topic_id=getattr(topic, "topic_id", None),
            partitions=tuple(
                context.make(
                    "PartitionData",
                    partition_index=asked.partition,
                    error_code=error,
                    high_watermark=-1,
                    last_stable_offset=-1,
                    log_start_offset=-1,
                    aborted_transactions=None,
                    preferred_read_replica=-1,
                    records=b"",
                )
                for asked in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return context.make("FetchResponse", error_code=ErrorCode.none, session_id=0, responses=topics)


@submit_api(1, "Fetch", (4, 18), refuse=refuse)
def fetch(context: RequestContext, request: Any, respond: Respond) -> None:
    """Read the partitions, waiting where there is too little."""
    kept: _Fetch | None = context.client.kept
    if kept is not None:
        if kept.request is request and kept.begin(respond):
            return
        kept.release()
        context.client.kept = None
    if context.api_version >= SESSIONS_SINCE and request.session_epoch not in (_FINAL_EPOCH, _INITIAL_EPOCH):
        # A session that this broker never gave: the client begins again with a full fetch.
        unknown = ErrorCode.fetch_session_id_not_found
        respond(encode_response(context.api_version, [], unknown, request.isolation_level))
        return
    fresh = context.client.kept = _Fetch(context, request)
    fresh.begin(respond)


def within(request: Any, most_bytes: int) -> Any:
    """The request, asking for no more than so many bytes."""
    if request.max_bytes <= most_bytes:
        return request
    return replace(request, max_bytes=most_bytes, min_bytes=min(request.min_bytes, most_bytes))


def nothing(context: RequestContext, request: Any) -> list[bytes]:
    """The response body for a client that has to wait: no partitions at all, as Kafka answers (KIP-219)."""
    return encode_response(context.api_version, [], ErrorCode.none, request.isolation_level)


def _locate(context: RequestContext, topic: Any, asked: Any) -> FetchedPart:
    part = FetchedPart(asked.partition, asked.fetch_offset, asked.partition_max_bytes)
    topics = context.services.topics
    if context.api_version >= TOPIC_IDS_SINCE:
        found = None if topic.topic_id is None else topics.by_id(topic.topic_id)
        unknown = ErrorCode.unknown_topic_id
    else:
        found = topics.get(topic.topic)
        unknown = ErrorCode.unknown_topic_or_partition
    access = context.client.access
    if access is not None:
        name = found.name if found is not None else getattr(topic, "topic", None)
        if name is not None and not access.allows(Operation.READ, ResourceType.TOPIC, name):
            part.error = ErrorCode.topic_authorization_failed
            return part
    if found is None:
        topics.missed()
        part.error = unknown
        return part
    part.log = topics.log(found.name, part.index)
    if part.log is None:
        part.error = ErrorCode.unknown_topic_or_partition
    else:
        part.error = check_leader_epoch(getattr(asked, "current_leader_epoch", -1), part.log)
    return part


class _Fetch(Deadline):
    """A request's partitions, located, and the request at work.

    A consumer that has reached the end repeats its request, so this is kept with the connection, which has
    one fetch at work at a time: a repeated one goes on listening to the same logs and gives the same idle
    answer.
    """

    __slots__ = (
        "_access",
        "_access_version",
        "_at_work",
        "_context",
        "_deadlines",
        "_ends_at",
        "_failed",
        "_has_read",
        "_idle_answer",
        "_is_committed",
        "_listening",
        "_looks",
        "_parts",
        "_reading",
        "_respond",
        "_takes_zstd",
        "_topics",
        "_unread",
        "_wait_s",
        "_woken",
        "request",
    )

    def __init__(self, context: RequestContext, request: Any) -> None:
        self.request = request
        self._context = context
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._topics: list[tuple[Any, list[FetchedPart]]] = []
        self._parts: list[FetchedPart] = []
        for topic in request.topics:
            parts = [_locate(context, topic, asked) for asked in topic.partitions]
            self._topics.append((topic, parts))
            self._parts.extend(parts)
        # A repeated request locates again once ACLs have changed.
        self._access = context.client.access
        self._access_version = -1 if self._access is None else self._access.version
        self._failed = any(part.error is not ErrorCode.none for part in self._parts)
        wait_ms = milliseconds(request.max_wait)
        super().__init__(wait_ms)
        self._wait_s = wait_ms / 1000
        self._deadlines = context.services.deadlines
        # What is known of a log's end is kept up to date only while somebody listens, so a fetch that can't
        # wait long enough to be told has to look.
        short = wait_ms <= context.services.config.native_poll_interval_ms
        self._takes_zstd = context.api_version >= _ZSTD_SINCE
        self._looks = self._failed or short or request.min_bytes <= 0 or not self._parts
        self._idle_answer: list[bytes] = []
        self._respond: Respond | None = None
        self._ends_at = 0.0
        self._reading = 0
        self._has_read = False
        self._unread: list[FetchedPart] = []
        self._at_work = False
        self._woken = False
        self._listening = False

    def begin(self, respond: Respond) -> bool:
        """Read what is there; answer or wait. False when the partitions have to be located again."""
        access = self._access
        if self._respond is not None and (
            self._failed or (access is not None and access.version != self._access_version)
        ):
            return False
        at_end = not self._looks
        for part in self._parts:
            log = part.log
            if log is None:
                continue
            if log.closed and self._respond is not None:
                return False
            if not self._is_at_end(part, log):
                at_end = False
        self._respond = respond
        self._at_work = True
        self._woken = False
        self._ends_at = self._deadlines.now() + self._wait_s
        if self._has_read:
            self._has_read = False
            for part in self._parts:
                part.reset()
        if at_end:
            self._wait()
        else:
            self._read(self._parts if self._looks else self._grown())
        return True

    def release(self) -> None:
        """The client is gone, or asks for something else: nobody waits any more."""
        self._at_work = False
        self._deadlines.disarm(self)
        if self._listening:
            self._listening = False
            self._context.client.forget(self.release)
            for part in self._parts:
                if part.log is not None:
                    part.log.unlisten(self._wake)

    def _read(self, parts: list[FetchedPart], taken_bytes: int = 0) -> None:
        """Read all in one go, within the response's limit; the first one even if it is too large.

        What the tail cache has is there at once. Of the others each read may take all of the partition's
        limit, and what is left of that goes to those that found no room.
        """
        left = min(self.request.max_bytes, _MAX_BYTES) - taken_bytes
        started = taken_bytes > 0
        self._has_read = True
        self._unread = []
        # One for this call itself, as a read may end before the next one begins.
        self._reading = 1
        for part in parts:
            if part.log is None or part.error is not ErrorCode.none:
                continue
            if started and left <= 0:
                self._unread.append(part)
                continue
            limit = max(min(part.max_bytes, left), 1)
            if self._take_cached(part, part.log, limit, left if started else None):
                left -= part.size_bytes
                started = True
                continue
            left -= limit
            started = True
            self._reading += 1
            taker = _taker(self, part)
            if self._is_committed:
                read_committed(part.log, part.offset, limit, taker, zstd=self._takes_zstd)
            else:
                part.log.read(part.offset, limit, taker, zstd=self._takes_zstd)
        self.read_done()

    def _take_cached(self, part: FetchedPart, log: PartitionLog, limit: int, room_bytes: int | None) -> bool:
        """Whether no more is needed than is known here."""
        if self._is_committed:
            committed = cached_committed(log, part.offset, limit, room_bytes, zstd=self._takes_zstd)
            if committed is None:
                return False
            _take_committed(part, committed)
        else:
            batches = log.cached(part.offset, limit, room_bytes, zstd=self._takes_zstd)
            if batches is None:
                return False
            part.take(batches, log.log_end, log.log_start, log.known_stable_end)
        if not part.batches and self._reading > 1 and not self._is_at_end(part, log):
            # Too large for the room left, some of which reads under way may give back.
            self._unread.append(part)
        return True

    def _is_at_end(self, part: FetchedPart, log: PartitionLog) -> bool:
        """Whether there is nothing for this reader to read there yet."""
        if not self._is_committed:
            return part.offset == log.log_end
        stable_end = log.known_stable_end
        return stable_end is not None and stable_end <= part.offset <= log.log_end

    def read_done(self) -> None:
        """One read is over; the last one decides."""
        self._reading -= 1
        if self._reading or not self._at_work:
            return
        size = sum(part.size_bytes for part in self._parts)
        failed = any(part.error is not ErrorCode.none for part in self._parts)
        if self._unread and not failed and size < min(self.request.max_bytes, _MAX_BYTES):
            self._read(self._unread, size)
            return
        enough = not self._parts or size >= self.request.min_bytes
        if failed or enough or self._deadlines.now() >= self._ends_at:
            self._finish()
        else:
            self._wait()

    def _wait(self) -> None:
        """Until a log grows, the time is over or the client is gone."""
        if self._woken:
            self._woken = False
            self._read(self._grown())
            return
        self._deadlines.arm(self, self._ends_at)
        if not self._listening:
            self._listening = True
            self._context.client.on_disconnect(self.release)
            for part in self._parts:
                if part.log is not None:
                    part.log.listen(self._wake)

    def _wake(self) -> None:
        """A log has grown, or is closed."""
        if self._reading:
            self._woken = True
        elif self._at_work and (grown := self._grown()):
            self._read(grown)

    def _grown(self) -> list[FetchedPart]:
        """Partitions whose log does not end where they are to be read from, or is closed."""
        return [
            part
            for part in self._parts
            if (log := part.log) is not None and (not self._is_at_end(part, log) or log.closed)
        ]

    def time_over(self) -> None:
        """Answer with what there is."""
        if not self._reading:
            self._finish()

    def _finish(self) -> None:
        self._at_work = False
        self._deadlines.disarm(self)
        assert self._respond is not None
        self._respond(self._found() if self._has_read else self._nothing_new())

    def _found(self) -> list[bytes]:
        """The response body for what was read."""
        for part in self._parts:
            if part.log is not None and part.high_watermark < 0 and part.error is ErrorCode.none:
                part.take([], part.log.log_end, part.log.log_start, part.log.known_stable_end)
        return self._encode()

    def _nothing_new(self) -> list[bytes]:
        """The response body when every log ends where it was asked for; mostly that of the time before."""
        for part in self._parts:
            log = part.log
            assert log is not None
            stable_end = log.log_end if log.known_stable_end is None else log.known_stable_end
            known = part.high_watermark, part.log_start, part.stable_end
            if known != (log.log_end, log.log_start, stable_end):
                part.take([], log.log_end, log.log_start, stable_end)
                self._idle_answer = []
        if not self._idle_answer:
            self._idle_answer = self._encode()
        return self._idle_answer

    def _encode(self) -> list[bytes]:
        version, isolation_level = self._context.api_version, self.request.isolation_level
        return encode_response(version, self._topics, ErrorCode.none, isolation_level)


def _taker(pending: _Fetch, part: FetchedPart) -> Callable[[Fetched | Committed | StorageError], None]:
    """What takes over the outcome of a partition's read."""

    def take(outcome: Fetched | Committed | StorageError) -> None:
        if isinstance(outcome, StorageError):
            part.error = error_code_of(outcome)
            if isinstance(outcome, OffsetOutOfRange):
                part.high_watermark, part.log_start = outcome.log_end, outcome.log_start
        elif isinstance(outcome, Committed):
            _take_committed(part, outcome)
        else:
            assert part.log is not None
            part.take([outcome.data], outcome.log_end, outcome.log_start, part.log.known_stable_end)
        pending.read_done()

    return take


def _take_committed(part: FetchedPart, outcome: Committed) -> None:
    part.take(outcome.batches, outcome.log_end, outcome.log_start, outcome.stable_end)
    part.aborted = outcome.aborted
