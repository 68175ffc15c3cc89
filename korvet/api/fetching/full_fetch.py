"""Full fetches: a request names all its partitions, and the response returns all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.api.fetching.locator import Locator
from korvet.api.fetching.response import encode_response
from korvet.api.fetching.sessions import NO_SESSION

if TYPE_CHECKING:
    from korvet.api.common.context import Client
    from korvet.api.common.services import Services
    from korvet.api.fetching.params import FetchParams
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.api.fetching.sessions import FetchSession

# The partitions of a request that stays with its connection: each takes 250 bytes.
_MOST_KEPT: Final = 10_000


class FullFetch:
    """The strategy of a full fetch, see FetchStrategy.

    A consumer at the end of its partitions repeats such a request. Then the listeners and the idle response
    of the request before are used again.
    """

    __slots__ = (
        "_idle_response",
        "_locator",
        "_opens_session",
        "_repeatable",
        "_services",
        "_session",
        "_was_read",
        "partitions",
    )

    def __init__(
        self,
        services: Services,
        client: Client,
        partitions: list[FetchedPartition],
        *,
        repeatable: object = None,
        opens_session: bool = False,
    ) -> None:
        """repeatable: the request, if it may be answered again."""
        self.partitions = partitions
        self._services = services
        self._locator = Locator(services.topics, client)
        self._opens_session = opens_session
        self._session: FetchSession | None = None
        self._repeatable = repeatable
        self._idle_response: list[bytes] = []
        # Whether the partitions hold what the last request found.
        self._was_read = False

    @property
    def is_over(self) -> bool:
        """Whether nothing stays for the next request: a session has the partitions, or they are too many."""
        return self._session is not None or len(self.partitions) > _MOST_KEPT

    def repeats(self, request: object) -> bool:
        """Whether this is the same request again."""
        return request is self._repeatable and not self.is_over

    def select(self, params: FetchParams) -> list[FetchedPartition] | None:
        """See FetchStrategy. A fetch without partitions is answered at once."""
        if self._locator.have_rights_changed():
            for partition in self.partitions:
                partition.log = None
        if self._was_read:
            self._was_read = False
            for partition in self.partitions:
                partition.reset_for_next()
        if not self.partitions:
            return []
        return self._locator.unread(self.partitions, params)

    def on_log_changed(self, partition: FetchedPartition) -> None:
        """Nothing to do: all partitions are looked at."""

    def answer(self, params: FetchParams, *, has_read: bool) -> list[bytes]:
        """The response body: all partitions."""
        if not (has_read or self._opens_session):
            return self._nothing_new(params)
        for partition in self.partitions:
            log = partition.log
            if log is not None and partition.high_watermark < 0 and partition.error is ErrorCode.none:
                partition.found_nothing(log.state)
        if self._opens_session:
            return self._with_session(params)
        body = self._encode(params, NO_SESSION)
        self._was_read = True
        for partition in self.partitions:
            partition.batches, partition.size_bytes = (), 0
        return body

    def _with_session(self, params: FetchParams) -> list[bytes]:
        """The response body that opens a session, which gets the partitions if there is room for it."""
        services = self._services
        now_ms = services.deadlines.now() * 1000
        session = services.fetch_sessions.open(self.partitions, now_ms, by_id=params.names_topics_by_id)
        body = self._encode(params, NO_SESSION if session is None else session.id)
        for partition in self.partitions:
            partition.reset_for_next()
        if session is not None:
            self.release()
            self._session, self.partitions = session, []
        return body

    def _nothing_new(self, params: FetchParams) -> list[bytes]:
        """The response body if every partition is at its log's end: usually the same as the last time."""
        for partition in self.partitions:
            assert partition.log is not None
            state = partition.log.state
            if (
                partition.high_watermark != state.log_end
                or partition.log_start != state.log_start
                or partition.last_stable_offset != state.last_stable_offset
            ):
                partition.found_nothing(state)
                self._idle_response = []
        if not self._idle_response:
            self._idle_response = self._encode(params, NO_SESSION)
        return self._idle_response

    def _encode(self, params: FetchParams, session_id: int) -> list[bytes]:
        return encode_response(
            params.version, self.partitions, is_committed=params.is_committed, session_id=session_id
        )

    def empty_throttled_response(self, params: FetchParams) -> list[bytes]:
        """See FetchStrategy. No session is opened then either."""
        if self._session is not None:
            self._services.fetch_sessions.close(self._session.id)
        return encode_response(params.version, ())

    def release(self) -> None:
        """See FetchStrategy."""
        for partition in self.partitions:
            partition.unlisten()
