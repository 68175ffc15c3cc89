"""JSON Web Tokens in the compact form (RFC 7515, RFC 7519): their parts, and the claims to be checked."""

from __future__ import annotations

import base64
import binascii
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

# Limits the work for a token: those with the groups of a user have some 10,000 characters.
MOST_CHARACTERS: Final = 64 * 1024
# Limits the lifetime of a session, which clients count in ns, and the dates that a reason can have.
_LONGEST_S: Final = 366 * 86_400
# Limits what a reason has of a claim.
_SHOWN_CHARACTERS: Final = 100
# What Java's String.trim removes. Other blanks are part of a name, or two users would be one.
_BLANKS: Final = "".join(map(chr, range(0x21)))


class RefusedToken(Exception):
    """A token that does not authenticate. The text is for the log: it has no secrets, but the client is told
    only `status`, as RFC 7628 asks, and `scope`.
    """

    def __init__(self, reason: str, *, subject: str = "", scope: str = "") -> None:
        """subject: the user whom the token names, although that is not proven. scope: what the token lacks;
        empty if something else is wrong.
        """
        super().__init__(reason)
        self.subject = subject
        self.scope = scope

    @property
    def status(self) -> str:
        """The error code (RFC 6750, section 3.1)."""
        return "insufficient_scope" if self.scope else "invalid_token"


class Token(NamedTuple):
    """The parts of a token. Nothing is proven of them."""

    header: Mapping[str, Any]
    claims: Mapping[str, Any]
    signed: bytes
    """The header and the claims, as they were sent: the signature is of them."""
    signature: bytes


class Identity(NamedTuple):
    """What a token proves."""

    subject: str
    """The name of the user."""
    lifetime_s: float
    """The time for which it will be proven; above 0."""


def parse_token(text: str) -> Token:
    """Take a token to pieces. Raises RefusedToken."""
    if len(text) > MOST_CHARACTERS:
        raise RefusedToken(f"the token has {len(text)} characters, more than {MOST_CHARACTERS}")
    parts = text.split(".")
    if len(parts) != 3:
        raise RefusedToken("the token is no JSON Web Token: expected three parts with dots between them")
    header, claims, signature = parts
    return Token(
        _json_object(header, "header"),
        _json_object(claims, "claims"),
        f"{header}.{claims}".encode(),
        _decoded(signature, "signature"),
    )


def _json_object(part: str, name: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(_decoded(part, name), type=dict[str, Any])
    # Nested values are limited by Python's stack.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedToken(f"the {name} of the token is no JSON object") from error


def _decoded(part: str, name: str) -> bytes:
    """Decode base64url without padding (RFC 7515, section 2)."""
    try:
        if not set(part).isdisjoint("+/="):
            raise ValueError("not in the alphabet of base64url")
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedToken(f"the {name} of the token is not in base64url") from error


class TokenRules(msgspec.Struct, frozen=True):
    """What the claims of a signed token must say, as Kafka's BrokerJwtValidator demands it."""

    issuer: str | None = None
    """The expected issuer; None for every one."""
    audiences: frozenset[str] = frozenset()
    """The expected audiences, one of which the token is for. Without any, only tokens without an audience are
    accepted (RFC 7519, section 4.1.3).
    """
    skew_s: int = 30
    """The difference of clocks that is allowed."""
    scope_claim: str = "scope"
    subject_claim: str = "sub"

    def identity(self, claims: Mapping[str, Any], now_s: float) -> Identity:
        """Whom claims name whose signature was verified. now_s: seconds since the epoch. Raises
        RefusedToken.
        """
        try:
            lifetime_s = self._lifetime_s(claims, now_s)
            self._check_addressees(claims)
            _check_scope(claims.get(self.scope_claim), self.scope_claim)
            return Identity(named_subject(claims, self.subject_claim), lifetime_s)
        except RefusedToken as refusal:
            refusal.subject = refusal.subject or claimed_subject(claims, self.subject_claim)
            raise

    def _lifetime_s(self, claims: Mapping[str, Any], now_s: float) -> float:
        expires_s, issued_s = seconds_of(claims, "exp"), seconds_of(claims, "iat")
        begins_s = seconds_of(claims, "nbf")
        if expires_s is None or issued_s is None:
            raise RefusedToken(f"the token has no claim {'exp' if expires_s is None else 'iat'}")
        if now_s - self.skew_s >= expires_s:
            raise RefusedToken(f"the token expired at {_time(expires_s)}")
        if expires_s < max(issued_s, issued_s if begins_s is None else begins_s):
            raise RefusedToken("the token expires before it begins")
        if begins_s is not None and now_s + self.skew_s < begins_s:
            raise RefusedToken(f"the token is not valid before {_time(begins_s)}")
        return remaining_s(expires_s, now_s, self.skew_s)

    def _check_addressees(self, claims: Mapping[str, Any]) -> None:
        issuer, audience = claims.get("iss"), claims.get("aud")
        if not isinstance(issuer, str | None):
            raise RefusedToken("the issuer of the token is no text")
        if self.issuer is not None and issuer != self.issuer:
            raise RefusedToken(f"the issuer of the token is {shown(issuer)}, not {shown(self.issuer)}")
        audiences = [audience] if isinstance(audience, str) else [] if audience is None else audience
        if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
            raise RefusedToken("the audience of the token is neither a text nor a list of texts")
        if self.audiences.isdisjoint(audiences) and (self.audiences or audience is not None):
            expected = f"not {shown(sorted(self.audiences))}" if self.audiences else "and none is expected"
            raise RefusedToken(f"the audience of the token is {shown(audience)}, {expected}")


def named_subject(claims: Mapping[str, Any], claim: str) -> str:
    """The user whom claims name. Raises RefusedToken."""
    subject = claims.get(claim)
    if not isinstance(subject, str) or not subject.strip(_BLANKS):
        raise RefusedToken(f"the claim {claim} of the token names no user")
    return subject.strip(_BLANKS)


def claimed_subject(claims: Mapping[str, Any], claim: str) -> str:
    """The user whom claims name; empty if they name none."""
    subject = claims.get(claim)
    return subject.strip(_BLANKS) if isinstance(subject, str) else ""


def seconds_of(claims: Mapping[str, Any], name: str) -> float | None:
    """A time in seconds since the epoch (NumericDate of RFC 7519); None if it is absent. Raises
    RefusedToken.
    """
    value = claims.get(name)
    if value is None:
        return None
    # An integer of JSON may be too large for a float.
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
        raise RefusedToken(f"the claim {name} of the token is no time")
    return float(value)


def remaining_s(expires_s: float, now_s: float, skew_s: float) -> float:
    """The lifetime of a session with a token that has not expired, or not by a clock that is slow by up to
    `skew_s`.
    """
    left_s = expires_s - now_s
    return min(left_s if left_s > 0 else left_s + skew_s, _LONGEST_S)


def _check_scope(scope: Any, claim: str) -> None:
    """Raises RefusedToken for a scope that Kafka refuses: it has empty or repeated parts."""
    scopes = [scope] if isinstance(scope, str) else scope
    if not isinstance(scopes, list):
        return
    if not all(isinstance(each, str) and each.strip(_BLANKS) for each in scopes):
        raise RefusedToken(f"the claim {claim} of the token has a part that is empty or no text")
    if len({each.strip(_BLANKS) for each in scopes}) < len(scopes):
        raise RefusedToken(f"the claim {claim} of the token repeats a part")


def shown(value: object) -> str:
    """A claim in a reason."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since the epoch"
