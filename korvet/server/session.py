"""Who a client is, what it may do, and how large its frames may be: see korvet.api.common.context.Session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.protocol.headers import FIXED_HEADER_BYTES
from korvet.security.principals import ANONYMOUS

if TYPE_CHECKING:
    import asyncio

    from korvet.api.common.listener_counts import ListenerCounts
    from korvet.security.authorizer import Access
    from korvet.security.sasl import SaslSession
    from korvet.server.listener_access import ListenerAccess

# The smallest token without a request around it: two bytes, in which other frames have their API key.
_LEAST_TOKEN_BYTES: Final = 2
# The largest frame before a client has authenticated, as Kafka's sasl.server.max.receive.size.
_UNAUTHENTICATED_BYTES: Final = 512 * 1024


class Session:
    """The session of one connection."""

    __slots__ = (
        "_counts",
        "_host",
        "_listener_access",
        "_max_request_bytes",
        "access",
        "least_bytes",
        "most_bytes",
        "principal",
        "sasl",
    )

    def __init__(
        self, listener_access: ListenerAccess, counts: ListenerCounts, max_request_bytes: int
    ) -> None:
        self._listener_access = listener_access
        self._counts = counts
        self._max_request_bytes = max_request_bytes
        self._host = ""
        self.principal = ANONYMOUS
        self.access: Access | None = None
        self.sasl: SaslSession | None = None
        self.least_bytes = FIXED_HEADER_BYTES
        """The size of the smallest frame that the client may send now."""
        self.most_bytes = max_request_bytes
        """The size of the largest one."""

    def begin(self, transport: asyncio.BaseTransport, host: str) -> None:
        """A client has connected. Raises ValueError for a certificate that names no principal."""
        principal = self._listener_access.principal_of(transport)
        self._host = host
        self.sasl = self._listener_access.new_session()
        if self.sasl is None:
            self.become(principal)
        else:
            self.most_bytes = min(self._max_request_bytes, _UNAUTHENTICATED_BYTES)

    def become(self, principal: str) -> None:
        """Note the client's principal, once it is known."""
        if self.sasl is not None and self.principal == principal:
            self._counts.reauthenticated += 1
        else:
            self._counts.authenticated += 1
        self.principal = principal
        self.access = self._listener_access.access(principal, self._host)
        self.most_bytes = self._max_request_bytes

    def expect_tokens(self, *, raw: bool) -> None:
        """Prepare for an authentication. `raw` tokens have no request header and may be short."""
        self.least_bytes = _LEAST_TOKEN_BYTES if raw else FIXED_HEADER_BYTES
