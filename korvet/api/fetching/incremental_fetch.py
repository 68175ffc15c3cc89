"""Incremental fetches (KIP-227): a request names changes of its session, and the response only has news."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.api.fetching.locator import Locator
from korvet.api.fetching.pending_fetch import PendingFetch
from korvet.api.fetching.response import encode_response
from korvet.api.fetching.sessions import by_lru_sequence

if TYPE_CHECKING:
    from korvet.api.common.context import Client
    from korvet.api.common.services import Services
    from korvet.api.fetching.params import FetchParams
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.api.fetching.sessions import FetchSession
    from korvet.api.fetching.state import FetchState
    from korvet.protocol.fetch_request import FetchRequest


def continue_session(
    services: Services, client: Client, session: FetchSession, params: FetchParams
) -> FetchState:
    """What reads the session for this connection.

    If another connection reads the session, that one's request at work is answered with an error. Its reads
    under way keep their partitions, and the session gets copies.
    """
    state, reader = client.handler_state.fetch, session.reader
    if state is not None and state is reader:
        return state
    if reader is not None:
        reader.cancel(ErrorCode.invalid_fetch_session_epoch, session.id)
        session.renew()
    pending = PendingFetch(services, client, IncrementalFetch(services, client, session, params), params)
    session.reader = pending
    return pending


class IncrementalFetch:
    """The strategy of a session's incremental fetches on one connection, see FetchStrategy.

    It listens to the logs also between requests. A partition at its end, of which the client knows
    everything, costs nothing until its log changes: it is not among the open partitions of the session.
    """

    __slots__ = (
        "_idle_response",
        "_is_committed",
        "_locator",
        "_session",
        "_version",
        "partitions",
    )

    def __init__(
        self, services: Services, client: Client, session: FetchSession, params: FetchParams
    ) -> None:
        self.partitions: dict[FetchedPartition, None] = {}
        self._session = session
        self._locator = Locator(services, client)
        self._version = params.version
        self._is_committed = params.is_committed
        self._idle_response: list[bytes] = []

    @property
    def is_over(self) -> bool:
        """Whether nothing is kept for the next request: the session is closed."""
        return self._session.reader is None

    def select(self, params: FetchParams) -> list[FetchedPartition] | None:
        """See FetchStrategy."""
        session = self._session
        if params.version != self._version:
            self._version, self._idle_response = params.version, []
        if params.is_committed is not self._is_committed:
            self._is_committed = params.is_committed
            session.open_all()
        if self._locator.have_rights_changed():
            session.open_all()
            for partition in session.partitions.values():
                partition.log = None
        looks_at_all = params.reads_at_end and not self._locator.knows_listened_ends
        selected = session.partitions.values() if looks_at_all else session.open_partitions
        self.partitions = dict.fromkeys(sorted(selected, key=by_lru_sequence))
        return self._locator.unread(self.partitions, params, len(session.partitions))

    def continues(self, request: FetchRequest, params: FetchParams) -> bool:
        """See FetchStrategy: never, as a full fetch ends the session."""
        return False

    def on_log_changed(self, partition: FetchedPartition) -> None:
        """See FetchStrategy."""
        self._session.open_partitions[partition] = None
        self.partitions[partition] = None

    def answer(self, params: FetchParams) -> list[bytes]:
        """The response body: partitions with news, or none. Even if nothing is news, the session forgets what
        the last response advertised: only the newest response can be withheld.
        """
        session = self._session
        news = []
        for partition in self.partitions:
            log = partition.log
            if log is not None and partition.high_watermark < 0 and partition.error is ErrorCode.none:
                partition.found_nothing(log.state)
            if partition.has_news:
                news.append(partition)
        if news:
            body = encode_response(
                params.version, news, is_committed=params.is_committed, session_id=session.id
            )
        else:
            body = self._nothing_new()
        session.advertise(news)
        for partition in self.partitions:
            self._settle(partition)
        self.partitions = {}
        return body

    def _nothing_new(self) -> list[bytes]:
        """The response body without partitions."""
        if not self._idle_response:
            self._idle_response = encode_response(self._version, (), session_id=self._session.id)
        return self._idle_response

    def _settle(self, partition: FetchedPartition) -> None:
        """After the answer: close the partition if only a change of its log can bring news."""
        log = partition.log
        if partition.error is not ErrorCode.none:
            partition.unlisten()
        elif log is not None and not partition.size_bytes and partition.listened_log is log:
            ends = log.ends
            is_advertised = (
                log.refusal is None
                and partition.offset == ends.high_watermark == partition.advertised_high_watermark
                and partition.advertised_log_start == ends.log_start
            )
            if is_advertised and (not self._is_committed or log.state.known.is_stable_current):
                self._session.open_partitions.pop(partition, None)
        partition.reset_for_next()

    def empty_throttled_response(self, params: FetchParams) -> list[bytes]:
        """See FetchStrategy. The session continues as if the client had got nothing."""
        self._session.revert_advertised()
        return self._nothing_new()

    def release(self) -> None:
        """See FetchStrategy. Another connection may continue the session."""
        session = self._session
        for partition in session.partitions.values():
            partition.unlisten()
        session.open_all()
