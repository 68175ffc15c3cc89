"""The users that can authenticate: SCRAM credentials of the keyspace and PLAIN users of the configuration."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from korvet.security.decoys import Decoys
from korvet.security.plain import PlainServer, same
from korvet.security.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism, ScramServer

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *(each.value for each in ScramMechanism))


class Credentials:
    """All users; `replace` takes over what is stored now."""

    def __init__(self, plain_users: Mapping[str, str] | None = None) -> None:
        self._plain_users = dict(plain_users or {})
        self._shared = self
        self._scram: Mapping[tuple[str, ScramMechanism], ScramCredential] = {}
        self._decoys = Decoys(secrets.token_bytes())

    @property
    def scram(self) -> Mapping[tuple[str, ScramMechanism], ScramCredential]:
        """The stored ones, by user and mechanism."""
        return self._shared._scram

    def replace(
        self, scram: Mapping[tuple[str, ScramMechanism], ScramCredential], decoy_secret: bytes
    ) -> None:
        """Put other SCRAM credentials in force. The secret makes the decoys of users that do not exist."""
        self._shared._scram = scram
        self._shared._decoys = Decoys(decoy_secret, scram)

    def beside(self, plain_users: Mapping[str, str]) -> Credentials:
        """The same stored ones with other users of PLAIN."""
        other = Credentials(plain_users)
        other._shared = self._shared
        return other

    def server(self, mechanism: str) -> PlainServer | ScramServer:
        """The server's side of an authentication with a mechanism of MECHANISMS."""
        if mechanism == PLAIN:
            return PlainServer(self._check)
        scram = ScramMechanism(mechanism)
        return ScramServer(scram, lambda user: self._credential(user, scram))

    def _credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """The stored one, or a decoy. One with fewer iterations than RFC 7677 asks for counts as none."""
        # Made in any case, so that the time taken shows nothing.
        decoy = self._shared._decoys.of(user, mechanism)
        stored = self.scram.get((user, mechanism))
        return decoy if stored is None or stored.iterations < MIN_ITERATIONS else stored

    def _check(self, username: str, password: str) -> bool:
        """PLAIN: a user of the configuration, else one with a SCRAM credential.

        A wrong password takes the same work whoever the user is, and if there is no such user.
        """
        configured = self._plain_users.get(username)
        if configured is not None and same(configured, password):
            return True
        proven = any(
            self._credential(username, mechanism).proves(mechanism, password) for mechanism in ScramMechanism
        )
        return proven and configured is None


def field_of(user: str, mechanism: ScramMechanism) -> bytes:
    """The field of a user's credential in the users' hash."""
    return f"{mechanism.value}:{user}".encode()


def parse_field(field: bytes) -> tuple[str, ScramMechanism]:
    """Read `field_of`. Raises ValueError."""
    mechanism, _, user = field.decode().partition(":")
    return user, ScramMechanism(mechanism)
