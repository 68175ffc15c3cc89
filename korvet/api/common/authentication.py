"""Answers the tokens of a client that authenticates by SASL, in requests or without requests around them."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.api.common.password_checks import TooManyChecks
from korvet.causes import Causes
from korvet.security.errors import SaslFailure
from korvet.security.oauth.exchange import KeysUnavailable
from korvet.security.sasl import SaslSession, State

if TYPE_CHECKING:
    from korvet.api.common.context import Client
    from korvet.api.common.services import Services

# Limits what a line has of the names that a client claims.
_MOST_CHARACTERS: Final = 100

causes = Causes(logging.getLogger(__name__))


class Challenge(NamedTuple):
    """The server's answer to a token. `lifetime_ms` is how long the session lasts if that was the last token;
    0 means without end.
    """

    token: bytes
    lifetime_ms: int


async def evaluate(client: Client, services: Services, token: bytes) -> Challenge | SaslFailure:
    """Answer a token of a client that authenticates. After a failure its connection ends.

    A failure is returned `connection.failed.authentication.delay.ms` after the call, however long the check
    took.
    """
    session = client.session.sasl
    assert session is not None
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    refused_before = bool(session.refusal)
    try:
        await session.prepare(token)
        if session.takes_long:
            work = partial(session.evaluate, token)
            answer = await services.password_checks.run(client.client_host, work)
        else:
            answer = session.evaluate(token)
    except SaslFailure as failure:
        delay_s = services.config.connection_failed_authentication_delay_ms / 1000
        await asyncio.sleep(_rest_of_delay(loop.time() - began_s, delay_s))
        # A refused token was counted and logged when the client was told, before it acknowledged that.
        if not refused_before:
            client.counts.failed_authentications += 1
            note_failure(client, failure.reason)
        client.end()
        return failure
    except TooManyChecks:
        # Without an answer: clients retry after a lost connection, and never after a failure.
        client.close("too many passwords from its address wait to be checked")
        return SaslFailure("Authentication failed: too many clients authenticate")
    except KeysUnavailable as error:
        # Without an answer, too: the token may be valid, so the client has to try again.
        note_failure(client, str(error))
        client.cut()
        return SaslFailure("Authentication failed: the token cannot be checked now")
    if session.refusal:
        # Counted now: a client may close the connection instead of asking for the failure that follows.
        client.counts.failed_authentications += 1
        note_failure(client, session.refusal)
    if session.state is not State.AUTHENTICATED:
        return Challenge(answer, 0)
    lifetime_ms = session.begin_session(time.monotonic())
    client.session.expect_tokens(raw=False)
    client.session.become(session.principal)
    causes.ended((session.principal, client.client_host))
    return Challenge(answer, lifetime_ms)


def note_failure(client: Client, reason: str) -> None:
    """Log why a client cannot log in: one line for each principal, address and reason, until it can."""
    session = client.session.sasl
    assert session is not None
    attempt = session.claimed[:_MOST_CHARACTERS], client.client_host
    named = {
        "principal": attempt[0],
        "address": client.client_host.removeprefix("/"),
        "mechanism": session.mechanism[:_MOST_CHARACTERS],
        "listener": client.listener,
        "port": session.port,
        "software": session.software,
    }
    causes.warn(
        (*attempt, reason),
        "%s at %s cannot log in: %s (%s, listener %s, port %d, client software %s)",
        named["principal"] or "a client",
        named["address"],
        reason,
        named["mechanism"],
        named["listener"],
        named["port"],
        named["software"] or "unknown",
        work=attempt,
        **named,
    )


def _rest_of_delay(passed_s: float, delay_s: float) -> float:
    """The time (s) until a failure is answered: a multiple of the delay after the request, so that the time
    of the answer does not show how long the check took.
    """
    return delay_s - passed_s % delay_s if delay_s else 0.0


def why_untimely(session: SaslSession, api_key: int) -> str:
    """The reason to close the connection of a client that sends this API without an authentication."""
    if session.state is State.AUTHENTICATED:
        return "its session is over and it did not authenticate again"
    return f"it sent a request of API {api_key} before it had authenticated"
