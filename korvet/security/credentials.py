"""The users that can authenticate: SCRAM credentials of the keyspace, PLAIN users of the settings, and those
whom tokens name.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from korvet.security.decoys import Decoys
from korvet.security.oauth.exchange import OAuthBearerServer
from korvet.security.plain import PlainServer, same
from korvet.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, ScramServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.security.oauth.exchange import TokenCheck

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
PASSWORD_MECHANISMS: Final = (PLAIN, *(each.value for each in ScramMechanism))
MECHANISMS: Final = (*PASSWORD_MECHANISMS, OAUTHBEARER)


class Credentials:
    """All users; `replace` sets the credentials that are stored now."""

    def __init__(
        self, plain_users: Mapping[str, str] | None = None, tokens: TokenCheck | None = None
    ) -> None:
        """tokens: None if nobody can authenticate with OAUTHBEARER."""
        self._plain_users = dict(plain_users or {})
        self._tokens = tokens
        self._shared = self
        self._scram: Mapping[tuple[str, ScramMechanism], ScramCredential] = {}
        self._decoys = Decoys(secrets.token_bytes())

    @property
    def scram(self) -> Mapping[tuple[str, ScramMechanism], ScramCredential]:
        """The stored credentials by user and mechanism."""
        return self._shared._scram

    def replace(
        self, scram: Mapping[tuple[str, ScramMechanism], ScramCredential], decoy_secret: bytes
    ) -> None:
        """Replace the SCRAM credentials. `secret` seeds the decoys of users that do not exist."""
        self._shared._scram = scram
        self._shared._decoys = Decoys(decoy_secret, scram)

    def beside(self, plain_users: Mapping[str, str], tokens: TokenCheck | None = None) -> Credentials:
        """The same stored credentials with other PLAIN users, and other tokens."""
        other = Credentials(plain_users, tokens)
        other._shared = self._shared
        return other

    def server(self, mechanism: str) -> PlainServer | ScramServer | OAuthBearerServer:
        """The server's side of an authentication with one of MECHANISMS."""
        if mechanism == PLAIN:
            return PlainServer(self._check)
        if mechanism == OAUTHBEARER:
            assert self._tokens is not None, "the settings are checked"
            return OAuthBearerServer(self._tokens)
        scram = ScramMechanism(mechanism)
        return ScramServer(scram, lambda user: self._credential(user, scram))

    def lacking(self, user: str, mechanism: str) -> str:
        """What a user would need to authenticate and does not have. Only for the log; empty for nothing."""
        have = {each.value for each in ScramMechanism if (user, each) in self.scram}
        if not user or mechanism in have or mechanism == OAUTHBEARER:
            return ""
        if not have and user not in self._plain_users:
            return "there is no such user"
        return "" if mechanism == PLAIN else f"the user has no credential for {mechanism}"

    def _credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The stored credential, or a decoy. A credential with fewer iterations than RFC 7677 demands
        does not count.
        """
        # The decoy is made in any case, so that the time taken does not depend on the user.
        decoy = self._shared._decoys.of(user, mechanism)
        stored = self.scram.get((user, mechanism))
        return decoy if stored is None or stored.iterations < MIN_ITERATIONS else stored

    def _check(self, username: str, password: str) -> bool:
        """PLAIN: check the password of a user of the settings, else of a user with a SCRAM credential.

        A wrong password costs the same work for every user, and for names without a user.
        """
        configured = self._plain_users.get(username)
        if configured is not None and same(configured, password):
            return True
        proven = any(
            self._credential(username, mechanism).proves(mechanism, password) for mechanism in ScramMechanism
        )
        return proven and configured is None


def field_of(user: str, mechanism: ScramMechanism) -> bytes:
    """The field of a user's credential in the hash of users."""
    return f"{mechanism.value}:{user}".encode()


def parse_field(field: bytes) -> tuple[str, ScramMechanism]:
    """Parse `field_of`. Raises ValueError."""
    mechanism, _, user = field.decode().partition(":")
    return user, ScramMechanism(mechanism)
