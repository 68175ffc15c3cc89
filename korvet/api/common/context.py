"""What a handler gets besides the request: who asks, in which version, and the services of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from korvet.protocol.response_errors import errors_in
from korvet.security.acls import CLUSTER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from kio.schema.errors import ErrorCode

    from korvet.api.common.listener_counts import ListenerCounts
    from korvet.api.common.request_counts import ApiCounts
    from korvet.api.common.services import Services
    from korvet.api.fetching.state import FetchState
    from korvet.api.producing.refused_batches import RefusedBatches
    from korvet.protocol.messages import ResponseSchema
    from korvet.quotas.throttle import Mutations
    from korvet.request_log.trace import Trace
    from korvet.security.acls import Operation, ResourceType
    from korvet.security.authorizer import Access
    from korvet.security.sasl import SaslSession


class Session(Protocol):
    """Who a client is, and what it may do."""

    principal: str
    """Who the client is, as `User:NAME`."""
    access: Access | None
    """What the client may do; None if every client may do everything."""
    sasl: SaslSession | None
    """The client's authentication, on listeners that require one."""

    def become(self, principal: str) -> None:
        """Note the client's principal, once it is known."""

    def expect_tokens(self, *, raw: bool) -> None:
        """The client is about to authenticate, with tokens in requests or `raw`."""


class HandlerState(msgspec.Struct, eq=False):
    """What handlers keep of a client from one request to the next."""

    fetch: FetchState | None = None
    refused_batches: RefusedBatches | None = None
    """None until a batch is refused."""

    def release(self) -> None:
        """The client has gone. A fetch refers to its connection: only the garbage collector would free it."""
        fetch, self.fetch = self.fetch, None
        if fetch is not None:
            fetch.release()


class Client(Protocol):
    """The connection that a request came through."""

    client_host: str
    """The peer's address as Kafka writes it, with a slash before it."""
    handler_state: HandlerState
    """What handlers keep from one request to the next. It is released when the client is gone."""
    listener: str
    """The name of the listener that it came through."""
    counts: ListenerCounts
    """What is counted of the listener's connections."""
    pipelines: bool
    """Whether the client has recently sent requests before earlier ones were answered."""

    closing: bool
    """Whether it takes no more requests, because the broker stops or for another reason."""
    closed: bool
    """Whether the client has disconnected."""

    @property
    def session(self) -> Session:
        """Who the client is, and what it may do."""

    def hold_back(self) -> Callable[[], None]:
        """Take no more requests until the returned function is called. The newest request waits until then.
        Its bytes do not count towards backpressure.
        """

    def mute(self, lasts_s: float) -> None:
        """Take no requests for that time, or for a longer one that was given before."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the responses that the client has not read yet; 0 if they are few."""

    def when_sent(self, callback: Callable[[], None]) -> None:
        """Call back when `unsent_bytes` is 0 again, or the client is gone."""

    def cut(self) -> None:
        """End the connection at once, and drop the responses that are not sent."""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back when the client disconnects, unless `forget` is called first; soon if it has already."""

    def forget(self, callback: Callable[[], None]) -> None:
        """Cancel an on_disconnect."""

    def end(self, reason: str | None = None) -> None:
        """End the connection after the requests in progress are answered. The log gets one line, unless the
        caller has logged the reason.
        """

    def close(self, reason: str) -> None:
        """End the connection for a reason that is the client's fault; the log gets one line."""


class RequestContext(msgspec.Struct, eq=False):
    """One request in progress."""

    services: Services
    schema: ResponseSchema
    """Of the response."""
    api_version: int
    client_id: str
    """Empty if the client sent none."""
    client: Client
    counts: ApiCounts | None = None
    """What is counted of the API's requests; None if nobody counts them."""
    trace: Trace | None = None
    """What the request log notes of the request, if it may have to be logged."""
    mutations: Mutations | None = None
    """Set if the client has a quota for creating and deleting partitions."""
    stored: Callable[[], None] | None = None
    """To be called when Redis has all records of a request that is answered later. Called again, it does
    nothing.
    """
    unpacked_bytes: int = 0
    """The size of the request's compressed records, once these are decompressed."""

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka writes it, with a slash before it."""
        return self.client.client_host

    def may(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may perform an operation on a resource. Without a name it is the cluster."""
        access = self.client.session.access
        return access is None or access.allows(operation, kind, name)

    def mutate(self, partitions: int) -> None:
        """Charge the creation or deletion of that many partitions. Raises MutationsExceeded."""
        if self.mutations is not None:
            self.mutations.count(partitions)

    def failed(self, error: ErrorCode, topic: str | UUID | None = None) -> None:
        """Count an error in the response, unless it stands for success. `topic`: what it belongs to."""
        if not error:
            return
        if self.counts is not None:
            self.counts.failed(error)
        if self.trace is not None:
            self.trace.failed(error, topic)

    def count_errors(self, response: Any) -> None:
        """Count the errors in a response structure."""
        for error in errors_in(response):
            self.failed(error)

    def encode(self, response: Any) -> bytes:
        """The body of a response, whose errors are counted."""
        self.count_errors(response)
        return self.schema.encode(response)

    def make(self, structure: str, /, **fields: Any) -> Any:
        """A structure of the response's version, see ResponseSchema.make."""
        return self.schema.make(structure, **fields)
