"""Fetch (key 1), versions 4-17.

v4 adds isolation levels, v5 the log start, v7 sessions (KIP-227; declined by answering session id 0, which
every client accepts), v9 leader epochs, v11 racks, v12 flexible, v13 topic ids, v15 to v17 matter to replicas
only. A fetch waits for `min_bytes` until `max_wait`: appends through this broker wake it, entries of native
writers are looked for.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.durations import milliseconds
from korvet.api.errors import error_code_of
from korvet.api.list_offsets import check_leader_epoch
from korvet.protocol.headers import unsigned_varint
from korvet.protocol.registry import Respond, submit_api
from korvet.storage.errors import OffsetOutOfRange, StorageError

if TYPE_CHECKING:
    from korvet.api.context import RequestContext
    from korvet.storage.log import Fetched, PartitionLog

_LOG_START_SINCE: Final = 5
_SESSIONS_SINCE: Final = 7
_PREFERRED_REPLICA_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_FINAL_EPOCH: Final = -1
_INITIAL_EPOCH: Final = 0
_READ_COMMITTED: Final = 1
# Kafka's fetch.max.bytes of a broker: what one response holds at the most, whatever the client asks for.
_MAX_BYTES: Final = 55 * 1024 * 1024
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_SESSION: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqq")


class _Part:
    """One partition of a fetch and what was found there."""

    __slots__ = ("data", "error", "high_watermark", "index", "log", "log_start", "max_bytes", "offset")

    def __init__(self, asked: Any) -> None:
        self.index: int = asked.partition
        self.offset: int = asked.fetch_offset
        self.max_bytes: int = asked.partition_max_bytes
        self.log: PartitionLog | None = None
        self.error = ErrorCode.none
        self.data = b""
        self.high_watermark = -1
        self.log_start = -1


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


@submit_api(1, "Fetch", (4, 17), refuse=refuse)
def fetch(context: RequestContext, request: Any, respond: Respond) -> None:
    """Read the partitions, waiting where there is too little."""
    version = context.api_version
    if version >= _SESSIONS_SINCE and request.session_epoch not in (_FINAL_EPOCH, _INITIAL_EPOCH):
        # A session that this broker never gave: the client begins again with a full fetch.
        respond(_encode(version, [], ErrorCode.fetch_session_id_not_found, request))
        return
    _Fetch(context, request, respond).start()


class _Fetch:
    """One request at work. Between reads it listens to the logs that it reached the end of."""

    __slots__ = (
        "_context",
        "_deadline",
        "_listening",
        "_over",
        "_parts",
        "_reading",
        "_request",
        "_respond",
        "_timer",
        "_topics",
        "_woken",
    )

    def __init__(self, context: RequestContext, request: Any, respond: Respond) -> None:
        self._context = context
        self._request = request
        self._respond = respond
        self._topics: list[tuple[Any, list[_Part]]] = []
        self._parts: list[_Part] = []
        self._deadline = 0.0
        self._reading = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listening = False
        self._woken = False
        self._over = False

    def start(self) -> None:
        """Read what is there; answer or wait."""
        loop = asyncio.get_running_loop()
        wait_ms = milliseconds(self._request.max_wait)
        self._deadline = loop.time() + max(wait_ms, 0) / 1000
        for topic in self._request.topics:
            parts = [self._locate(topic, asked) for asked in topic.partitions]
            self._topics.append((topic, parts))
            self._parts.extend(parts)
        # What is known of a log's end is kept up to date only while somebody listens, so a fetch that can't
        # wait long enough to be told has to look.
        short = wait_ms <= self._context.services.config.native_poll_interval_ms
        if short or any(part.error is not ErrorCode.none for part in self._parts):
            self._read(self._parts)
        else:
            behind = [
                part for part in self._parts if part.log is not None and part.offset != part.log.log_end
            ]
            if behind:
                self._read(behind)
            else:
                self._wait()

    def _locate(self, topic: Any, asked: Any) -> _Part:
        part = _Part(asked)
        topics = self._context.services.topics
        if self._context.api_version >= _TOPIC_IDS_SINCE:
            found = None if topic.topic_id is None else topics.by_id(topic.topic_id)
            unknown = ErrorCode.unknown_topic_id
        else:
            found = topics.get(topic.topic)
            unknown = ErrorCode.unknown_topic_or_partition
        if found is None:
            part.error = unknown
            return part
        part.log = topics.log(found.name, part.index)
        if part.log is None:
            part.error = ErrorCode.unknown_topic_or_partition
        else:
            part.error = check_leader_epoch(getattr(asked, "current_leader_epoch", -1))
        return part

    def _read(self, parts: list[_Part]) -> None:
        """Read all in one go, within the response's limit; the first one even if it is too large."""
        left = min(self._request.max_bytes, _MAX_BYTES)
        started = False
        # One for this call itself, as a read may end before the next one begins.
        self._reading = 1
        for part in parts:
            if part.log is None or part.error is not ErrorCode.none or (started and left <= 0):
                continue
            limit = max(min(part.max_bytes, left), 1)
            left -= limit
            started = True
            self._reading += 1
            part.log.read(part.offset, limit, _reader(self, part))
        self.read_done()

    def read_done(self) -> None:
        """One read is over; the last one decides."""
        self._reading -= 1
        if self._reading or self._over:
            return
        size = sum(len(part.data) for part in self._parts)
        failed = any(part.error is not ErrorCode.none for part in self._parts)
        enough = size >= self._request.min_bytes
        if failed or enough or asyncio.get_running_loop().time() >= self._deadline:
            self._finish()
        else:
            self._wait()

    def _wait(self) -> None:
        """Until a log grows, the time is over or the client is gone."""
        if self._woken:
            self._woken = False
            self._read(self._parts)
            return
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self._deadline, self._time_over)
        if not self._listening:
            self._listening = True
            self._context.on_disconnect(self._abandon)
            for part in self._parts:
                if part.log is not None:
                    part.log.listen(self._wake)

    def _wake(self) -> None:
        """A log has grown."""
        if self._over:
            return
        if self._reading:
            self._woken = True
        else:
            self._read(self._parts)

    def _time_over(self) -> None:
        if not self._reading:
            self._finish()

    def _abandon(self) -> None:
        self._over = True
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listening:
            self._listening = False
            self._context.forget(self._abandon)
            for part in self._parts:
                if part.log is not None:
                    part.log.unlisten(self._wake)

    def _finish(self) -> None:
        self._over = True
        self._release()
        for part in self._parts:
            if part.log is not None and part.high_watermark < 0 and part.error is ErrorCode.none:
                part.high_watermark = part.log.log_end
                part.log_start = part.log.log_start
        self._respond(_encode(self._context.api_version, self._topics, ErrorCode.none, self._request))


def _reader(pending: _Fetch, part: _Part) -> Any:
    def done(outcome: Fetched | StorageError) -> None:
        if isinstance(outcome, StorageError):
            part.error = error_code_of(outcome)
            if isinstance(outcome, OffsetOutOfRange):
                part.high_watermark, part.log_start = outcome.log_end, outcome.log_start
        else:
            part.data = outcome.data
            part.high_watermark, part.log_start = outcome.log_end, outcome.log_start
        pending.read_done()

    return done


def _encode(
    version: int, topics: list[tuple[Any, list[_Part]]], error: ErrorCode, request: Any
) -> list[bytes]:
    """The response body (FetchResponse.json) by hand, in segments so that record data is not copied."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    aborted = _array(0 if request.isolation_level == _READ_COMMITTED else -1, flexible)
    segments: list[bytes] = []
    text = [_SESSION.pack(0, error, 0) if version >= _SESSIONS_SINCE else _INT32.pack(0)]
    text.append(_array(len(topics), flexible))
    for topic, parts in topics:
        text.append(_topic_name(version, topic, flexible))
        text.append(_array(len(parts), flexible))
        for part in parts:
            text.append(_PARTITION.pack(part.index, part.error, part.high_watermark, part.high_watermark))
            if version >= _LOG_START_SINCE:
                text.append(_INT64.pack(part.log_start))
            text.append(aborted)
            if version >= _PREFERRED_REPLICA_SINCE:
                text.append(_INT32.pack(-1))
            text.append(_array(len(part.data), flexible))
            if part.data:
                segments.append(b"".join(text))
                segments.append(part.data)
                text = []
            text.append(tags)
        text.append(tags)
    text.append(tags)
    segments.append(b"".join(text))
    return segments


def _topic_name(version: int, topic: Any, flexible: bool) -> bytes:
    if version >= _TOPIC_IDS_SINCE:
        return b"\x00" * 16 if topic.topic_id is None else bytes(topic.topic_id.bytes)
    name: bytes = topic.topic.encode()
    length = unsigned_varint(len(name) + 1) if flexible else len(name).to_bytes(2, "big")
    return length + name


def _array(length: int, flexible: bool) -> bytes:
    """The length of an array or of bytes; -1 is null."""
    return unsigned_varint(length + 1) if flexible else _INT32.pack(length)
