"""Incremental fetches (KIP-227): of a session's partitions only those are looked at that may have news."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.fetching.part import FetchedPart
from korvet.api.fetching.pending_fetch import Reading, locate, take_ends
from korvet.api.fetching.response import encode_response
from korvet.api.fetching.sessions import by_turn
from korvet.api.list_offsets import check_leader_epoch

if TYPE_CHECKING:
    from korvet.api.common.context import Client, RequestContext
    from korvet.api.fetching.sessions import FetchSession
    from korvet.protocol.registry import Respond
    from korvet.security.authorizer import Access
    from korvet.storage.log.partition_log import PartitionLog


class SessionReading(Reading):
    """What reads a session for the connection that uses it.

    It goes on listening to the logs between requests, so that a partition at its end, of which the client
    knows all, costs nothing until its log says that something has changed.
    """

    __slots__ = ("_access", "_access_version", "_client", "_idle_answer", "_open_parts", "_session")

    def __init__(self, context: RequestContext, request: Any, session: FetchSession) -> None:
        super().__init__(context, request)
        self._active = {}
        self._session = session
        self._client: Client | None = None
        self._access: Access | None = None
        self._access_version = -1
        self._idle_answer: list[bytes] = []
        # Those that may have something to read or to tell.
        self._open_parts = dict.fromkeys(session.parts.values())

    @classmethod
    def of(cls, session: FetchSession, context: RequestContext, request: Any) -> SessionReading:
        """The session's reading, with no request at work.

        Where another connection waits still, it is told that the session has gone on without it.
        """
        known = session.reader
        if isinstance(known, SessionReading):
            if not known._at_work and not known._reading:
                return known
            known._give_way()
        reading = session.reader = cls(context, request, session)
        return reading

    def update(self, request: Any, *, by_id: bool) -> None:
        """Take over what the request changes of the session's partitions."""
        parts = self._session.parts
        for topic in request.topics:
            key = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                epoch = getattr(asked, "current_leader_epoch", -1)
                part = parts.get((key, asked.partition))
                if part is None:
                    part = FetchedPart(
                        key, asked.partition, asked.fetch_offset, asked.partition_max_bytes, epoch
                    )
                    self._session.add(part)
                else:
                    part.offset, part.max_bytes = asked.fetch_offset, asked.partition_max_bytes
                    part.leader_epoch = epoch
                self._open_parts[part] = None
        for topic in request.forgotten_topics_data:
            key = topic.topic_id if by_id else topic.topic
            for index in topic.partitions:
                forgotten = self._session.forget((key, index))
                if forgotten is not None:
                    self._open_parts.pop(forgotten, None)
                    _unlisten(forgotten)

    def begin(self, context: RequestContext, request: Any, respond: Respond) -> None:
        """Read what is there; answer or wait."""
        if request is not self.request or context is not self._context:
            committed = self._is_committed
            if context.api_version != self._context.api_version:
                self._idle_answer = []
            self._ask(context, request)
            if self._is_committed is not committed:
                self._look_at_all()
        self._belong_to(context.client)
        self._start(respond)

    def _start(self, respond: Respond) -> None:
        self._begin(respond)
        if not self._open_parts and not self._is_short:
            self._wait()
            return
        looked_at = self._session.parts.values() if self._is_short else self._open_parts
        active = self._active = dict.fromkeys(sorted(looked_at, key=by_turn))
        failed = False
        grown = []
        for part in active:
            log = self._locate(part)
            if log is None:
                failed = True
            elif self._is_short or not self._is_at_end(part, log):
                grown.append(part)
        if grown or failed:
            self._read(grown)
        else:
            self._wait()

    def release(self) -> None:
        """The client is gone, or asks for something else. Another one may go on with the session."""
        self._at_work = False
        self._respond = None
        self._deadlines.disarm(self)
        if self._held_bytes and not self._reading:
            self._give_up_memory()
        if self._client is not None:
            self._client.forget(self.release)
            self._client = None
        for part in self._session.parts.values():
            _unlisten(part)
        self._look_at_all()

    def _finish(self) -> None:
        super()._finish()
        if self._session.reader is not self:
            self.release()

    def session_closed(self) -> None:
        """The session is no more; who waits is answered still."""
        if not self._at_work:
            self.release()

    def withhold(self) -> list[bytes]:
        """See Reading; the session goes on as if the client had not been told anything."""
        self._open_parts.update(dict.fromkeys(self._session.untell()))
        return self._nothing()

    def _give_way(self) -> None:
        """The session goes on elsewhere, and leaves its partitions to reads that are under way here."""
        respond, waits = self._respond, self._at_work
        version, client = self._context.api_version, self._client
        self.release()
        self._session.renew()
        if client is not None and client.kept is self:
            client.kept = None
        if waits and respond is not None:
            code = ErrorCode.invalid_fetch_session_epoch
            respond(encode_response(version, (), code, session_id=self._session.id))

    def _look_at_all(self) -> None:
        self._open_parts = dict.fromkeys(self._session.parts.values())

    def _belong_to(self, client: Client) -> None:
        """Read for that connection, with its rights."""
        if client is not self._client:
            if self._client is not None:
                self._client.forget(self.release)
                self._client.kept = None
            self._client = client
            client.on_disconnect(self.release)
        access = client.access
        version = -1 if access is None else access.version
        if access is not self._access or version != self._access_version:
            self._access, self._access_version = access, version
            for part in self._session.parts.values():
                part.log = None
            self._look_at_all()

    def _locate(self, part: FetchedPart) -> PartitionLog | None:
        """The partition's log; None where it has an error."""
        log = part.log
        if log is None or log.closed:
            locate(self._context, part)
        elif part.leader_epoch not in (-1, log.leader_epoch):
            part.error = check_leader_epoch(part.leader_epoch, log)
        return part.log if part.error is ErrorCode.none else None

    def _listen(self) -> None:
        for part in self._active:
            log = part.log
            if part.heard is log or log is None:
                continue
            _unlisten(part)
            part.heard, part.listener = log, partial(self._hear, part)
            log.listen(part.listener)

    def _hear(self, part: FetchedPart) -> None:
        """The partition's log has changed."""
        self._open_parts[part] = None
        if self._at_work:
            assert isinstance(self._active, dict)
            self._active[part] = None
            self._wake()

    def _answer(self) -> list[bytes]:
        session = self._session
        if not self._active:
            return self._nothing()
        news = []
        for part in self._active:
            log = part.log
            if log is not None and part.high_watermark < 0 and part.error is ErrorCode.none:
                take_ends(part, log)
            if part.is_news:
                news.append(part)
        if news:
            version = self._context.api_version
            body = encode_response(version, news, is_committed=self._is_committed, session_id=session.id)
        else:
            body = self._nothing()
        session.tell(news)
        for part in self._active:
            self._settle(part)
        self._active = {}
        return body

    def _nothing(self) -> list[bytes]:
        """The response body without partitions."""
        if not self._idle_answer:
            self._idle_answer = encode_response(self._context.api_version, (), session_id=self._session.id)
        return self._idle_answer

    def _settle(self, part: FetchedPart) -> None:
        """The client was told; is there any need to look at the partition again, unless its log calls?"""
        log = part.log
        if part.error is not ErrorCode.none:
            _unlisten(part)
        elif log is not None and not part.size_bytes and part.heard is log and self._is_done(part, log):
            self._open_parts.pop(part, None)
        part.hand_over()

    def _is_done(self, part: FetchedPart, log: PartitionLog) -> bool:
        """Whether all of the log is read and told."""
        return (
            part.offset == log.log_end == part.told_high_watermark
            and part.told_log_start == log.log_start
            and (not self._is_committed or log.last_stable_offset_is_current)
        )


def _unlisten(part: FetchedPart) -> None:
    if part.heard is not None and part.listener is not None:
        part.heard.unlisten(part.listener)
    part.heard = part.listener = None
