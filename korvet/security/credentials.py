"""The users that can authenticate: SCRAM credentials of the keyspace and PLAIN users of the configuration."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from korvet.security.plain import PlainServer, same
from korvet.security.scram import ScramCredential, ScramMechanism, ScramServer, new_credential

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
        # Reckoned with when there is no such user, so that the time taken does not tell. Nobody knows the
        # password.
        self._nobody = new_credential(ScramMechanism.SHA_256, secrets.token_hex())

    @property
    def scram(self) -> Mapping[tuple[str, ScramMechanism], ScramCredential]:
        """The stored ones, by user and mechanism."""
        return self._shared._scram

    def replace(self, scram: Mapping[tuple[str, ScramMechanism], ScramCredential]) -> None:
        """Put other SCRAM credentials in force."""
        self._shared._scram = scram

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
        return ScramServer(scram, lambda user: self.scram.get((user, scram)))

    def _check(self, username: str, password: str) -> bool:
        """PLAIN: a user of the configuration, else one with a SCRAM credential."""
        configured = self._plain_users.get(username)
        if configured is not None:
            return same(configured, password)
        stored = {
            mechanism: credential
            for mechanism in ScramMechanism
            if (credential := self.scram.get((username, mechanism))) is not None
        }
        if not stored:
            stored[ScramMechanism.SHA_256] = self._nobody
        return any(credential.proves(mechanism, password) for mechanism, credential in stored.items())


def field_of(user: str, mechanism: ScramMechanism) -> bytes:
    """The field of a user's credential in the users' hash."""
    return f"{mechanism.value}:{user}".encode()


def parse_field(field: bytes) -> tuple[str, ScramMechanism]:
    """Read `field_of`. Raises ValueError."""
    mechanism, _, user = field.decode().partition(":")
    return user, ScramMechanism(mechanism)
