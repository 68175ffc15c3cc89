"""What a connection keeps of its last fetch, and a session of its reader, without knowing how it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from korvet.api.fetching.params import FetchParams
    from korvet.protocol.fetch_request import FetchRequest
    from korvet.protocol.registry import Respond
    from korvet.request_log.trace import Trace


class FetchState(Protocol):
    """The last fetch of a connection, usually the base of its next one. PendingFetch implements it."""

    trace: Trace | None
    """What the request log notes of the newest request."""

    def start(self, params: FetchParams, respond: Respond) -> None:
        """Answer a request, now or later, after the one before is answered."""

    def continues(self, request: FetchRequest, params: FetchParams) -> bool:
        """Take over a full fetch that differs in its partitions only; `start` answers it. Returns whether."""

    def empty_throttled_response(self) -> list[bytes]:
        """The body that a throttled client gets instead of the one that was just made (KIP-219)."""

    def release(self) -> None:
        """End: the client is gone, or fetches something else."""

    def close(self) -> None:
        """End once the request at work is answered: the session is closed."""

    def cancel(self, error: ErrorCode, session_id: int) -> None:
        """End, and answer the request at work with this error: another connection continues the session."""
