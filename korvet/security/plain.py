"""PLAIN (RFC 4616) on bytes, and the users that a JAAS configuration lists for it."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING, Final

from korvet.security.errors import InvalidCredentials, SaslFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOGIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
# The control flag after the name of a login module. The parts may be on lines of their own.
_CONTROL: Final = re.compile(r"\s+(?:required|requisite|sufficient|optional)(?![^\s;])")
_OPTION: Final = re.compile(r'\s*([A-Za-z0-9_.@-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))')
_USER_PREFIX: Final = "user_"


class PlainServer:
    """The server's side of one authentication. Raises SaslFailure and InvalidCredentials."""

    def __init__(self, check: Callable[[str, str], bool]) -> None:
        """check(username, password) returns whether the password is correct."""
        self._check = check
        self.username = ""
        """The user name that the client claims; valid once `complete`."""
        self.complete = False

    def evaluate(self, token: bytes) -> bytes:
        """Evaluate the only message of the mechanism; the answer is empty. May take milliseconds."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise InvalidCredentials("the message is not UTF-8") from None
        if len(parts) != 3:
            raise InvalidCredentials(f"expected 3 tokens, got {len(parts)}")
        authorization, username, password = parts
        if not username:
            raise SaslFailure("Authentication failed: username not specified")
        if not password:
            raise SaslFailure("Authentication failed: password not specified")
        self.username = username
        if not self._check(username, password):
            raise SaslFailure("Authentication failed: Invalid username or password")
        if authorization not in ("", username):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.complete = True
        return b""


def parse_jaas_users(text: str) -> Mapping[str, str]:
    """The passwords of the users that `plain.sasl.jaas.config` lists as user_NAME="PASSWORD".

    Raises ValueError. Its message omits the text, which contains passwords.
    """
    return {
        name.removeprefix(_USER_PREFIX): value
        for name, value in jaas_options(text, LOGIN_MODULE, 'user_NAME="PASSWORD"').items()
        if name.startswith(_USER_PREFIX)
    }


def jaas_options(text: str, module: str, example: str) -> Mapping[str, str]:
    """The options of the only login module in a JAAS configuration, which may be empty. Raises ValueError."""
    if not text.strip():
        return {}
    head, _, rest = text.strip().partition(module)
    found = _CONTROL.match(rest)
    if head or found is None:
        raise ValueError(f"expected {module} required {example} ... ;")
    return login_options(rest[found.end() :])


def login_options(text: str) -> dict[str, str]:
    """Parse NAME=VALUE or NAME="VALUE" of a login module, up to a semicolon. Raises ValueError."""
    options: dict[str, str] = {}
    position = 0
    while found := _OPTION.match(text, position):
        position = found.end()
        name, quoted, bare = found.groups()
        options[name] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
    if text[position:].strip() != ";":
        raise ValueError("the options do not end with a semicolon, or one of them is not NAME=VALUE")
    return options


def same(left: str, right: str) -> bool:
    """Compare secrets in a time that does not depend on the position of a difference."""
    return hmac.compare_digest(left.encode(), right.encode())
