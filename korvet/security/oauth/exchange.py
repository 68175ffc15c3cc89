"""OAUTHBEARER on bytes (RFC 7628), with Kafka's extensions (KIP-255, KIP-342).

    first message → complete
                  ↘ refused → answered → (failure)

A refused token is answered with a JSON object; the client acknowledges that with one byte, and only then
fails.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from korvet.security.errors import InvalidCredentials, SaslFailure
from korvet.security.oauth.tokens import RefusedToken
from korvet.security.scram import plain_name

if TYPE_CHECKING:
    from korvet.security.oauth.tokens import Identity

_SEPARATOR: Final = "\x01"
_ACKNOWLEDGED: Final = b"\x01"
# As in Kafka. RFC 7628 has the same alphabets, and reserves `auth` for the token.
_HEADER: Final = re.compile(r"n,(?:a=([\x02-\x2b\x2d-\x7f]+))?,")
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
# RFC 6750, section 2.1.
_AUTH: Final = re.compile(r"(\w+) +([-._~+/a-zA-Z0-9]+=*)")
_TOKEN: Final = "auth"
# Limits the work for the extensions of a client, which may send half a megabyte before it has logged in.
_MOST_PAIRS: Final = 100


class TokenCheck(Protocol):
    """Says whom a token names."""

    def identity(self, token: str) -> Identity:
        """Whom a token names. Raises RefusedToken."""

    async def prepare(self, token: str) -> None:
        """Return when a token can be checked, for which other keys of its issuer may be needed. Raises
        KeysUnavailable.
        """


class KeysUnavailable(Exception):
    """A token cannot be checked now, because the keys of its issuer cannot be fetched. It may be valid."""


class FirstMessage(NamedTuple):
    """What a client sends first."""

    authorization: str
    """The user as whom the client wants to act; empty for the token's."""
    token: str


def parse_first(message: bytes) -> FirstMessage:
    """Read a client's first message. Extensions are checked and ignored. Raises InvalidCredentials."""
    try:
        header, *pairs = message.decode().split(_SEPARATOR, _MOST_PAIRS)
    except UnicodeDecodeError:
        raise InvalidCredentials("the client's first message is not UTF-8") from None
    found = _HEADER.fullmatch(header)
    if found is None or len(pairs) < 2 or pairs[-2:] != ["", ""]:
        raise InvalidCredentials("the client's first message has another form")
    values: dict[str, str] = {}
    for pair in pairs[:-2]:
        key, _, value = pair.partition("=")
        if key in values or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise InvalidCredentials("an extension in the client's first message is malformed or repeated")
        values[key] = value
    credentials = _AUTH.fullmatch(values.get(_TOKEN, ""))
    if credentials is None or credentials[1].lower() != "bearer":
        raise InvalidCredentials("the client's first message has no bearer token")
    return FirstMessage(plain_name(found[1] or ""), credentials[2])


class OAuthBearerServer:
    """The server's side of one authentication. Raises SaslFailure and InvalidCredentials."""

    def __init__(self, check: TokenCheck) -> None:
        self._check = check
        self._answer = ""
        self.username = ""
        """The user whom the token names; valid once `complete`."""
        self.complete = False
        self.lifetime_s = 0.0
        """The time from its check for which the token is valid; once `complete`."""
        self.refusal = ""
        """Why the token is refused, for the log; empty if it is not."""

    async def prepare(self, message: bytes) -> None:
        """Return when `evaluate` can be called. Raises KeysUnavailable."""
        if self._answer:
            return
        try:
            token = parse_first(message).token
        except InvalidCredentials:
            return
        await self._check.prepare(token)

    def evaluate(self, message: bytes) -> bytes:
        """Answer the client's first message, or the second one of a client whose token is refused."""
        if self._answer:
            if message != _ACKNOWLEDGED:
                raise InvalidCredentials("a message other than the acknowledgement of the refusal")
            raise SaslFailure(self._answer, self.refusal)
        authorization, token = parse_first(message)
        try:
            identity = self._check.identity(token)
        except RefusedToken as refusal:
            self.username, self.refusal = refusal.subject, str(refusal)
            told = {"status": refusal.status} | ({"scope": refusal.scope} if refusal.scope else {})
            self._answer = msgspec.json.encode(told).decode()
            return self._answer.encode()
        self.username, self.lifetime_s = identity
        if authorization not in ("", self.username):
            raise SaslFailure(
                f"Authentication failed: Client requested an authorization id ({authorization}) that is "
                f"different from the token's principal name ({self.username})"
            )
        self.complete = True
        return b""
