"""The authentication of one connection: which SASL request is allowed in which state, and when the session
ends (KIP-152, KIP-368).

    handshake → tokens → authenticated → handshake (re-authentication) → …
              ↘ failed  ↙

A session lasts as long as `connections.max.reauth.ms` and the client's token allow.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import TYPE_CHECKING, Final

from korvet.security.errors import IllegalState, InvalidCredentials, SaslFailure, UnsupportedMechanism
from korvet.security.oauth.exchange import OAuthBearerServer
from korvet.security.plain import PlainServer

if TYPE_CHECKING:
    from collections.abc import Collection

    from korvet.security.credentials import Credentials
    from korvet.security.scram import ScramServer

_SASL_HANDSHAKE: Final = 17
_API_VERSIONS: Final = 18
_SASL_AUTHENTICATE: Final = 36
# Limits how often a client may re-authenticate; Kafka refuses it within the same second.
_LEAST_BETWEEN_S: Final = 1.0
# Limits what is told of a failure: a client may claim a name of half a megabyte, more than a STRING holds.
_MOST_TOLD: Final = 2_000


class State(Enum):
    """What the connection expects next."""

    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    AUTHENTICATED = "authenticated"
    FAILED = "failed"


class SaslSession:
    """The authentication of one connection. Times are seconds of a monotonic clock."""

    def __init__(
        self, credentials: Credentials, mechanisms: Collection[str], max_reauth_ms: int = 0, port: int = 0
    ) -> None:
        """max_reauth_ms: lifetime of an authentication in ms; 0 is unlimited. port: that of the listener."""
        self._credentials = credentials
        self.mechanisms = tuple(mechanisms)
        """The mechanisms that clients may use."""
        self._max_reauth_s = max_reauth_ms / 1000
        self._lifetime_s = self._max_reauth_s
        self._server: PlainServer | ScramServer | OAuthBearerServer | None = None
        self.port = port
        self.software = ""
        """The client's name and version, if it has told them (KIP-511)."""
        self.mechanism = ""
        """The mechanism that the client asked for last."""
        self._again = False
        self._mechanism_before = ""
        self._began_s: float | None = None
        self.state = State.HANDSHAKE
        self.raw_tokens = False
        """Whether tokens come without request headers, as after version 0 of SaslHandshake."""
        self.principal = ""
        """The principal that authenticated last."""
        self.expires_s: float | None = None
        """The time from which only a re-authentication is allowed."""

    @property
    def claimed(self) -> str:
        """The principal as which the client authenticates; empty before it has named the user."""
        username = "" if self._server is None else self._server.username
        return username and f"User:{username}"

    @property
    def takes_raw_token(self) -> bool:
        """Whether the next frame is a raw token instead of a request."""
        return self.raw_tokens and self.state is State.TOKENS

    @property
    def takes_long(self) -> bool:
        """Whether the next `evaluate` takes milliseconds, as the check of a password does."""
        return isinstance(self._server, PlainServer)

    @property
    def refusal(self) -> str:
        """Why the client is refused, if it has been told so and only has to acknowledge it; else empty."""
        return self._server.refusal if isinstance(self._server, OAuthBearerServer) else ""

    async def prepare(self, token: bytes) -> None:
        """Return when `evaluate` has what it needs for this token. Raises KeysUnavailable."""
        if self.state is State.TOKENS and isinstance(self._server, OAuthBearerServer):
            await self._server.prepare(token)

    def admits(self, api_key: int, now_s: float) -> bool:
        """Whether a request of that API is allowed now; any other request closes the connection."""
        if self.state is State.AUTHENTICATED:
            return api_key == _SASL_HANDSHAKE or self.expires_s is None or now_s < self.expires_s
        if self.state is State.HANDSHAKE:
            return api_key in (_API_VERSIONS, _SASL_HANDSHAKE)
        return self.state is State.TOKENS and api_key == _SASL_AUTHENTICATE

    def handshake(self, mechanism: str, version: int, now_s: float) -> None:
        """Begin an authentication with a mechanism. Raises UnsupportedMechanism, which ends the
        connection, and IllegalState if a re-authentication is not expected or comes too soon.
        """
        if self.state is State.AUTHENTICATED:
            soon = self._began_s is not None and now_s - self._began_s < _LEAST_BETWEEN_S
            if self.expires_s is None or soon:
                raise IllegalState
            self._began_s = now_s
            self._again = True
            self._mechanism_before = self.mechanism
        elif self.state is not State.HANDSHAKE:
            raise IllegalState
        self.mechanism = mechanism
        if mechanism not in self.mechanisms:
            self.state = State.FAILED
            raise UnsupportedMechanism(mechanism)
        self._server = self._credentials.server(mechanism)
        self.raw_tokens = version == 0
        self.state = State.TOKENS

    def evaluate(self, token: bytes) -> bytes:
        """Answer a token; `state` shows whether more tokens follow. See `takes_long`.

        Raises IllegalState, and SaslFailure with a text for the client, which ends the connection.
        """
        if self.state is not State.TOKENS:
            raise IllegalState
        assert self._server is not None
        text = "re-authentication" if self._again else "authentication"
        try:
            if self._again and self.mechanism != self._mechanism_before:
                raise SaslFailure(
                    f"SASL mechanism '{self.mechanism}' requested by client is not supported for "
                    f"re-authentication of mechanism '{self._mechanism_before}'"
                )
            answer = self._server.evaluate(token)
            if self._server.complete:
                self._complete(f"User:{self._server.username}")
        except (SaslFailure, InvalidCredentials) as error:
            self.state = State.FAILED
            reason = error.reason if isinstance(error, SaslFailure) else str(error)
            reason = reason.removeprefix("Authentication failed: ")
            lacking = self._credentials.lacking(self._server.username, self.mechanism)
            if isinstance(error, InvalidCredentials):
                # The reason could reveal whether the user exists.
                told = f"due to invalid credentials with SASL mechanism {self.mechanism}"
                told = f"Authentication failed during {text} {told}"
            else:
                told = str(error)
            reason = f"{reason}; {lacking}" if lacking else reason
            raise SaslFailure(told[:_MOST_TOLD], reason[:_MOST_TOLD]) from None
        return answer

    def begin_session(self, now_s: float) -> int:
        """Begin the session after the last token. Returns its lifetime in ms; 0 is unlimited."""
        self.expires_s = now_s + self._lifetime_s if self._lifetime_s else None
        return math.ceil(self._lifetime_s * 1000)

    def _complete(self, principal: str) -> None:
        if self._again and principal != self.principal:
            before, now = self.principal.replace(":", ".", 1), principal.replace(":", ".", 1)
            raise SaslFailure(f"Cannot change principals during re-authentication from {before}: {now}")
        self.principal = principal
        # The client must not act for longer than its token (KIP-255).
        limits = [self._max_reauth_s]
        if isinstance(self._server, OAuthBearerServer):
            limits.append(self._server.lifetime_s)
        self._lifetime_s = min(filter(None, limits), default=0.0)
        self._server = None
        self.state = State.AUTHENTICATED
