"""Kafka's validator of unsecured tokens, for tests: everybody can make one for every user.

It does what OAuthBearerUnsecuredValidatorCallbackHandler does, with the same options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.security.oauth.tokens import (
    Identity,
    RefusedToken,
    claimed_subject,
    named_subject,
    parse_token,
    remaining_s,
    seconds_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "unsecuredValidator"


class UnsecuredRules(msgspec.Struct, frozen=True):
    """What an unsecured token must say."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()
    skew_s: float = 0.0
    """The difference of clocks that is allowed."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> UnsecuredRules:
        """The rules by the options of Kafka's login module. Raises ValueError."""
        skew = options.get(f"{_PREFIX}AllowableClockSkewMs", "").strip() or "0"
        if not skew.isdecimal() or len(skew) > 10:
            raise ValueError(f"{_PREFIX}AllowableClockSkewMs: expected milliseconds")
        return cls(
            options.get(f"{_PREFIX}PrincipalClaimName", "").strip() or "sub",
            options.get(f"{_PREFIX}ScopeClaimName", "").strip() or "scope",
            tuple(options.get(f"{_PREFIX}RequiredScope", "").split()),
            int(skew) / 1000,
        )

    def identity(self, text: str, now_s: float) -> Identity:
        """Whom a token names. now_s: seconds since the epoch. Raises RefusedToken."""
        header, claims, _, signature = parse_token(text)
        if header.get("alg") != "none" or signature:
            raise RefusedToken("the token is signed, and only tokens without signatures are expected")
        try:
            lifetime_s = self._lifetime_s(claims, now_s)
            missing = [each for each in self.required_scope if each not in _scope(claims, self.scope_claim)]
            if missing:
                raise RefusedToken(
                    f"the token lacks the scope {missing[0]}", scope=" ".join(self.required_scope)
                )
            return Identity(named_subject(claims, self.subject_claim), lifetime_s)
        except RefusedToken as refusal:
            refusal.subject = claimed_subject(claims, self.subject_claim)
            raise

    def _lifetime_s(self, claims: Mapping[str, Any], now_s: float) -> float:
        expires_s, issued_s = seconds_of(claims, "exp"), seconds_of(claims, "iat")
        if expires_s is None:
            raise RefusedToken("the token has no claim exp")
        if issued_s is not None and issued_s > now_s + self.skew_s:
            raise RefusedToken("the token was issued in the future")
        if now_s - self.skew_s >= expires_s:
            raise RefusedToken("the token has expired")
        if issued_s is not None and expires_s <= issued_s:
            raise RefusedToken("the token expires before it begins")
        return remaining_s(expires_s, now_s, self.skew_s)


def _scope(claims: Mapping[str, Any], claim: str) -> set[str]:
    scope = claims.get(claim)
    scopes = [scope] if isinstance(scope, str) else scope if isinstance(scope, list) else []
    return {each.strip() for each in scopes if isinstance(each, str)}
