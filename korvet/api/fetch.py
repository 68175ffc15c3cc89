"""Fetch (key 1), versions 4-18.

Waits for `min_bytes` until `max_wait`. Appends through this broker wake it; the broker polls for entries of
native writers. v4 adds isolation levels, v5 the log start, v7 sessions (KIP-227), v9 leader epochs, v11
racks, v12 is flexible, v13 adds topic IDs, v15 to v18 matter only to replicas.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.fetching.part import FetchedPart
from korvet.api.fetching.pending_fetch import Reading, locate, take_ends
from korvet.api.fetching.response import SESSIONS_SINCE, TOPIC_IDS_SINCE, encode_response
from korvet.api.fetching.session_fetch import SessionReading
from korvet.api.fetching.sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, FetchSession, SessionError
from korvet.protocol.registry import ReadQuota, Respond, submit_api

if TYPE_CHECKING:
    from korvet.api.common.context import Client, RequestContext

# A request of more partitions does not stay with its connection: each takes 250 bytes.
_MOST_KEPT: Final = 10_000
# Nor do so many changes stay with their session once they are made.
_MOST_CHANGES_KEPT: Final = 1_000


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


def _limited(request: Any, most_bytes: int) -> Any:
    """The request, asking for at most `most_bytes`."""
    if request.max_bytes <= most_bytes:
        return request
    return replace(request, max_bytes=most_bytes, min_bytes=min(request.min_bytes, most_bytes))


def _emptied(context: RequestContext, body: list[bytes]) -> list[bytes]:
    """The response body without partitions in place of the one that was just made."""
    kept: Reading | None = context.client.kept
    return body if kept is None else kept.withhold()


def _is_full(request: Any) -> bool:
    """Whether the request is outside of a session: an idle consumer sends the same one again."""
    return getattr(request, "session_epoch", FINAL_EPOCH) == FINAL_EPOCH


@submit_api(
    1, "Fetch", (4, 18), refuse=refuse, read_quota=ReadQuota(_limited, _emptied), is_repeated=_is_full
)
def fetch(context: RequestContext, request: Any, respond: Respond) -> None:
    """Read the partitions, waiting where there is too little."""
    kept: Reading | None = context.client.kept
    if kept is not None and kept.request is request and kept.repeat(respond):
        return
    epoch = request.session_epoch if context.api_version >= SESSIONS_SINCE else FINAL_EPOCH
    if epoch not in (FINAL_EPOCH, INITIAL_EPOCH):
        _resume(context, request, epoch, respond)
        return
    if context.api_version >= SESSIONS_SINCE and request.session_id != NO_SESSION:
        context.services.fetch_sessions.close(request.session_id)
    _read_all(context, request, respond, opens=epoch == INITIAL_EPOCH)


def _resume(context: RequestContext, request: Any, epoch: int, respond: Respond) -> None:
    """Continue a session with an incremental fetch."""
    sessions = context.services.fetch_sessions
    by_id = context.api_version >= TOPIC_IDS_SINCE
    try:
        session = sessions.find(request.session_id, epoch, by_id=by_id)
    except SessionError as error:
        _keep(context.client, None)
        respond(encode_response(context.api_version, (), error.code))
        return
    reading = SessionReading.of(session, context, request)
    reading.update(request, by_id=by_id)
    changes = sum([len(topic.partitions) for topic in (*request.topics, *request.forgotten_topics_data)])
    if changes > _MOST_CHANGES_KEPT:
        request = replace(request, topics=(), forgotten_topics_data=())
    if sessions.go_on(session, context.services.deadlines.now() * 1000):
        _keep(context.client, reading)
        reading.begin(context, request, respond)
    else:
        _read_all(context, request, respond, opens=False)


def _read_all(context: RequestContext, request: Any, respond: Respond, *, opens: bool) -> None:
    reading = FullReading(context, request, opens=opens)
    _keep(context.client, reading)
    reading.begin(respond)


def _keep(client: Client, reading: Reading | None) -> None:
    """Keep what goes on with the client's next request, and nothing else."""
    kept: Reading | None = client.kept
    if kept is not reading:
        if kept is not None:
            kept.release()
        client.kept = reading


class FullReading(Reading):
    """A request that names all its partitions.

    A consumer that has reached the end repeats such a request, and the repeated one goes on listening to the
    same logs and gives the same idle answer. One that opens a session hands its partitions over to it.
    """

    __slots__ = (
        "_access",
        "_access_version",
        "_failed",
        "_idle_answer",
        "_listening",
        "_looks",
        "_opens",
        "_parts",
        "_repeatable",
        "_session",
    )

    def __init__(self, context: RequestContext, request: Any, *, opens: bool) -> None:
        """opens: whether a session is wanted."""
        super().__init__(context, request)
        by_id = context.api_version >= TOPIC_IDS_SINCE
        self._parts: list[FetchedPart] = []
        for topic in request.topics:
            key = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                epoch = getattr(asked, "current_leader_epoch", -1)
                part = FetchedPart(key, asked.partition, asked.fetch_offset, asked.partition_max_bytes, epoch)
                locate(context, part)
                self._parts.append(part)
        self._active = self._parts
        # A repeated request locates again once ACLs have changed.
        self._access = context.client.access
        self._access_version = -1 if self._access is None else self._access.version
        self._failed = any(part.error is not ErrorCode.none for part in self._parts)
        self._looks = self._is_short or self._failed or not self._parts
        self._idle_answer: list[bytes] = []
        self._listening = False
        self._opens = opens
        self._session: FetchSession | None = None
        # An incremental fetch that has ended its session must not pass as another one.
        self._repeatable = opens or getattr(request, "session_epoch", FINAL_EPOCH) == FINAL_EPOCH

    def begin(self, respond: Respond) -> None:
        """Read what is there; answer or wait."""
        self._begin(respond)
        if self._looks:
            self._read(self._parts)
        elif grown := self._grown():
            self._read(grown)
        else:
            self._wait()

    def repeat(self, respond: Respond) -> bool:
        """Begin again, unless the partitions have to be located again."""
        access = self._access
        if self._failed or not self._repeatable or self._session is not None:
            return False
        if access is not None and access.version != self._access_version:
            return False
        for part in self._parts:
            if part.log is None or part.log.closed:
                return False
            if self._has_read:
                part.reset()
        self.begin(respond)
        return True

    def _finish(self) -> None:
        super()._finish()
        client = self._context.client
        if len(self._parts) > _MOST_KEPT and client.kept is self:
            _keep(client, None)

    def release(self) -> None:
        """The client is gone, or asks for something else: nobody waits any more."""
        self._at_work = False
        self._respond = None
        self._deadlines.disarm(self)
        if self._held_bytes and not self._reading:
            self._give_up_memory()
        if self._listening:
            self._listening = False
            self._context.client.forget(self.release)
            for part in self._parts:
                if part.log is not None:
                    part.log.unlisten(self._wake)

    def withhold(self) -> list[bytes]:
        """See Reading; no session is opened then either."""
        if self._session is not None:
            self._context.services.fetch_sessions.close(self._session.id)
        return encode_response(self._context.api_version, ())

    def _listen(self) -> None:
        if not self._listening:
            self._listening = True
            self._context.client.on_disconnect(self.release)
            for part in self._parts:
                if part.log is not None:
                    part.log.listen(self._wake)

    def _answer(self) -> list[bytes]:
        if self._has_read or self._opens:
            return self._found()
        return self._nothing_new()

    def _found(self) -> list[bytes]:
        """The response body for what was read."""
        for part in self._parts:
            if part.log is not None and part.high_watermark < 0 and part.error is ErrorCode.none:
                take_ends(part, part.log)
        if not self._opens:
            return self._encode(NO_SESSION)
        services, by_id = self._context.services, self._context.api_version >= TOPIC_IDS_SINCE
        now_ms = services.deadlines.now() * 1000
        session = self._session = services.fetch_sessions.open(self._parts, now_ms, by_id=by_id)
        if session is None:
            return self._encode(NO_SESSION)
        body = self._encode(session.id)
        self.release()
        for part in self._parts:
            part.hand_over()
        return body

    def _nothing_new(self) -> list[bytes]:
        """The response body when every log ends where it was asked for; mostly that of the time before."""
        for part in self._parts:
            log = part.log
            assert log is not None
            known = part.high_watermark, part.log_start, part.last_stable_offset
            if known != (log.log_end, log.log_start, log.last_stable_offset):
                take_ends(part, log)
                self._idle_answer = []
        if not self._idle_answer:
            self._idle_answer = self._encode(NO_SESSION)
        return self._idle_answer

    def _encode(self, session_id: int) -> list[bytes]:
        version = self._context.api_version
        return encode_response(version, self._parts, is_committed=self._is_committed, session_id=session_id)
