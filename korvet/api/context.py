"""What a handler gets besides the request: who asks, in which version, and the services of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.api.services import Services
    from korvet.protocol.messages import ResponseSchema


class RequestContext:
    """One request at work."""

    __slots__ = ("api_version", "client_host", "client_id", "forget", "on_disconnect", "schema", "services")

    def __init__(
        self,
        services: Services,
        schema: ResponseSchema,
        api_version: int,
        client_id: str,
        client_host: str,
        on_disconnect: Callable[[Callable[[], None]], None],
        forget: Callable[[Callable[[], None]], None],
    ) -> None:
        self.services = services
        self.schema = schema
        self.api_version = api_version
        self.client_id = client_id
        self.client_host = client_host
        self.on_disconnect = on_disconnect
        self.forget = forget

    def make(self, structure: str, /, **fields: Any) -> Any:
        """A structure of the response's version, see ResponseSchema.make."""
        return self.schema.make(structure, **fields)
