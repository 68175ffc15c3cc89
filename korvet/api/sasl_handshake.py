"""SaslHandshake (key 17), versions 0-1 (KIP-43).

The client chooses a mechanism. After v0 it sends bare tokens, after v1 it uses SaslAuthenticate (KIP-152). A
mechanism that isn't enabled receives the list of enabled ones, and the connection closes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.authentication import note_failure
from korvet.protocol.registry import api
from korvet.security.errors import IllegalState, UnsupportedMechanism

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no mechanisms."""
    del request
    return context.make("SaslHandshakeResponse", error_code=error, mechanisms=())


@api(17, "SaslHandshake", (0, 1), refuse=refuse)
async def sasl_handshake(context: RequestContext, request: Any) -> Any:
    """Begin an authentication, the first one or another (KIP-368)."""
    client = context.client
    session = client.session.sasl
    if session is None:
        return refuse(context, request, ErrorCode.illegal_sasl_state)
    error = ErrorCode.none
    try:
        session.handshake(request.mechanism, context.api_version, time.monotonic())
    except IllegalState:
        return refuse(context, request, ErrorCode.illegal_sasl_state)
    except UnsupportedMechanism:
        error = ErrorCode.unsupported_sasl_mechanism
        note_failure(client, "the mechanism is not enabled")
        client.end()
    else:
        client.session.expect_tokens(raw=session.raw_tokens)
    return context.make("SaslHandshakeResponse", error_code=error, mechanisms=session.mechanisms)
