"""SaslAuthenticate (key 36), versions 0-2 (KIP-152).

A failure is answered `connection.failed.authentication.delay.ms` after the request, regardless of the
duration of the check; then the connection closes. v1 returns the lifetime of the session (KIP-368), v2 is
flexible.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.api.common.password_checks import TooManyChecks
from korvet.protocol.registry import api
from korvet.security.errors import SaslFailure
from korvet.security.sasl import SaslSession, State

if TYPE_CHECKING:
    from korvet.api.common.context import Client, RequestContext
    from korvet.api.common.services import Services


class Challenge(NamedTuple):
    """The server's answer to a token, and how long the session lasts if that was the last one; 0 is for
    ever.
    """

    token: bytes
    lifetime_ms: int


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
    session = context.client.sasl
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


async def evaluate(client: Client, services: Services, token: bytes) -> Challenge | SaslFailure:
    """Answer a token of a client that authenticates; after a failure its connection ends."""
    session = client.sasl
    assert session is not None
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    try:
        if session.takes_long:
            work = partial(session.evaluate, token)
            answer = await services.password_checks.run(client.client_host, work)
        else:
            answer = session.evaluate(token)
    except SaslFailure as failure:
        delay_s = services.config.connection_failed_authentication_delay_ms / 1000
        await asyncio.sleep(_rest_of_delay(loop.time() - began_s, delay_s))
        client.end(f"it failed to authenticate: {failure}")
        return failure
    except TooManyChecks:
        # Without an answer: clients try again after a lost connection, and never after a failure.
        client.close("too many passwords from its address wait to be checked")
        return SaslFailure("Authentication failed: too many clients authenticate")
    if session.state is not State.AUTHENTICATED:
        return Challenge(answer, 0)
    lifetime_ms = session.begin_session(time.monotonic())
    client.expect_tokens(raw=False)
    client.become(session.principal)
    return Challenge(answer, lifetime_ms)


def _rest_of_delay(passed_s: float, delay_s: float) -> float:
    """Time until a failure is answered: whole delays after the request, so that the time that the check took
    does not show.
    """
    return delay_s - passed_s % delay_s if delay_s else 0.0


def refusal_of(session: SaslSession, api_key: int) -> str:
    """Why a request of that API ends the connection of a client that has to authenticate first."""
    if session.state is State.AUTHENTICATED:
        return "its session is over and it did not authenticate anew"
    return f"it sent a request of API {api_key} before it had authenticated"
