"""Who may read the pages of the admin endpoint: clients with the token, or with the user's password."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from korvet.config.errors import ConfigError

if TYPE_CHECKING:
    from korvet.config.settings import Config

log = logging.getLogger(__name__)


class Secret:
    """A secret of the settings, or of a file, which is read again when it has changed."""

    def __init__(self, key: str, value: str | None, location: str | None) -> None:
        """Raises ConfigError if the file cannot be used."""
        self._key = key
        self._file = None if location is None else Path(location)
        self._value = (value or "").encode()
        self._seen: tuple[int, int, int] | None = None
        # Why the file could not be read last; empty if it could.
        self._problem = ""
        if self._file is not None:
            try:
                self._read(self._file)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{key}.location = {location} cannot be used: {error}") from error

    def equals(self, given: bytes) -> bool:
        """Whether a client gave the secret; in a time that does not depend on the difference."""
        if self._file is not None:
            self._follow(self._file)
        return hmac.compare_digest(self._value, given)

    def _follow(self, file: Path) -> None:
        """Read the file if it has changed. A file that cannot be read is logged once."""
        problem = ""
        try:
            self._read(file)
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem and problem != self._problem:
            log.error("%s.location cannot be read, the old secret stays: %s", self._key, problem)
        self._problem = problem

    def _read(self, file: Path) -> None:
        """Read the file unless the secret is from it. Raises OSError, and ValueError if it is empty."""
        found = file.stat()
        state = found.st_ino, found.st_mtime_ns, found.st_size
        if state == self._seen:
            return
        value = file.read_bytes().strip()
        if not value:
            raise ValueError("the file is empty")
        self._value, self._seen = value, state


class Access:
    """Decides by the field Authorization."""

    def __init__(self, token: Secret | None, user: str | None, password: Secret | None) -> None:
        """Without token and password everybody may read everything."""
        self._token = token
        self._user = user
        self._password = password

    @classmethod
    def of(cls, config: Config) -> Access:
        """What the settings say. Raises ConfigError if a file cannot be used."""
        return cls(
            _secret("admin.token", config.admin_token, config.admin_token_location),
            config.admin_basic_user,
            _secret(
                "admin.basic.password", config.admin_basic_password, config.admin_basic_password_location
            ),
        )

    @property
    def is_open(self) -> bool:
        """Whether everybody may read everything."""
        return self._token is None and self._password is None

    @property
    def challenges(self) -> tuple[tuple[str, str], ...]:
        """The fields of a response to a client without the right secret."""
        schemes = (("Bearer", self._token), ("Basic", self._password))
        return tuple(
            ("WWW-Authenticate", f'{name} realm="korvet"') for name, secret in schemes if secret is not None
        )

    def admits(self, authorization: str) -> bool:
        """Whether a client with this field Authorization may read everything."""
        if self.is_open:
            return True
        scheme, _, given = authorization.partition(" ")
        match scheme.lower():
            case "bearer" if self._token is not None:
                return self._token.equals(given.strip(" \t").encode("latin-1"))
            case "basic" if self._password is not None and self._user is not None:
                return self._knows(self._user, self._password, given.strip())
        return False

    def _knows(self, user: str, password: Secret, given: str) -> bool:
        try:
            name, _, word = base64.b64decode(given, validate=True).partition(b":")
        except (binascii.Error, ValueError):
            return False
        # Both are compared, so that the time does not show which of them is wrong.
        return hmac.compare_digest(name, user.encode()) & password.equals(word)


def _secret(key: str, value: str | None, location: str | None) -> Secret | None:
    return None if value is None and location is None else Secret(key, value, location)
