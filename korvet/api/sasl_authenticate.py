"""SaslAuthenticate (key 36), versions 0-2 (KIP-152).

A failure is answered `connection.failed.authentication.delay.ms` after the request, regardless of the
duration of the check; then the connection closes. v1 returns the lifetime of the session (KIP-368), v2 is
flexible.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.authentication import evaluate
from korvet.protocol.registry import api
from korvet.security.errors import SaslFailure
from korvet.security.sasl import State

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """The error with no token."""
    del request
    return context.make(
        "SaslAuthenticateResponse",
        error_code=error,
        error_message=message,
        auth_bytes=b"",
        session_lifetime=datetime.timedelta(0),
    )


@api(36, "SaslAuthenticate", (0, 2), refuse=refuse, waits=True)
async def sasl_authenticate(context: RequestContext, request: Any) -> Any:
    """Answer a token."""
    session = context.client.session.sasl
    if session is None or session.state is not State.TOKENS:
        return refuse(
            context,
            request,
            ErrorCode.illegal_sasl_state,
            "SaslAuthenticate request received after successful authentication",
        )
    answer = await evaluate(context.client, context.services, request.auth_bytes)
    if isinstance(answer, SaslFailure):
        return refuse(context, request, ErrorCode.sasl_authentication_failed, str(answer))
    return context.make(
        "SaslAuthenticateResponse",
        error_code=ErrorCode.none,
        error_message=None,
        auth_bytes=answer.token,
        session_lifetime=datetime.timedelta(milliseconds=answer.lifetime_ms),
    )
