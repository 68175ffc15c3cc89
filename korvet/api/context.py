"""What a handler gets besides the request: who asks, in which version, and the services of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.services import Services
    from korvet.protocol.messages import ResponseSchema


class Client(Protocol):
    """The connection that a request came through."""

    client_host: str
    """The peer's address as Kafka writes it, with a slash before it."""
    kept: Any
    """What the Fetch handler keeps from one request to the next."""

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back when the client goes away, unless `forget` is called first."""

    def forget(self, callback: Callable[[], None]) -> None:
        """Take back an on_disconnect."""

    def close(self, reason: str) -> None:
        """End the connection for a reason that is the client's fault; the log gets one line."""


class RequestContext:
    """One request at work."""

    __slots__ = ("api_version", "client", "client_id", "schema", "services")

    def __init__(
        self, services: Services, schema: ResponseSchema, api_version: int, client_id: str, client: Client
    ) -> None:
        self.services = services
        self.schema = schema
        self.api_version = api_version
        self.client_id = client_id
        self.client = client

    @property
    def client_host(self) -> str:
        """The peer's address as Kafka writes it, with a slash before it."""
        return self.client.client_host

    def make(self, structure: str, /, **fields: Any) -> Any:
        """A structure of the response's version, see ResponseSchema.make."""
        return self.schema.make(structure, **fields)
