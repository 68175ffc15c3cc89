"""Authentication of the commands, with a file of client properties like that of Kafka's tools.

The option --command-config or the variable KORVET_COMMAND_CONFIG names the file.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from korvet.properties import check_paths, parse_properties
from korvet.security.errors import InvalidCredentials
from korvet.security.listeners import PROTOCOLS
from korvet.security.plain import login_options
from korvet.security.scram import ScramClient, ScramMechanism

COMMAND_CONFIG = "--command-config"
VARIABLE = "KORVET_COMMAND_CONFIG"
_PASSWORDS = ("sasl.jaas.config", "ssl.key.password")


class CommandConfigError(ValueError):
    """Client properties are unusable. The message contains none of their values, except paths."""


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """TLS and SASL parameters of a connection to a broker."""

    tls: ssl.SSLContext | None = None
    mechanism: str | None = None
    username: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"ClientSecurity(mechanism={self.mechanism!r})"

    def client(self) -> "PlainClient | ScramClient":
        """Returns the client's side of an authentication with `mechanism`."""
        if self.mechanism == "PLAIN":
            return PlainClient(self.username, self.password)
        return ScramClient(ScramMechanism(self.mechanism), self.username, self.password)


class PlainClient:
    """The client's side of PLAIN."""

    def __init__(self, username: str, password: str) -> None:
        self._token = f"\0{username}\0{password}".encode()
        self.complete = False

    def first(self) -> bytes:
        """Returns the only token."""
        return self._token

    def answer(self, token: bytes) -> bytes:
        """Check that the broker's token is empty: PLAIN has only one client token."""
        if token:
            raise InvalidCredentials("the broker returned a token for PLAIN")
        self.complete = True
        return b""


def from_file(name: str) -> ClientSecurity:
    """Read a file of client properties. Raises CommandConfigError."""
    try:
        text = Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandConfigError(f"{name} cannot be read: {error}") from error
    try:
        return parse(text)
    except CommandConfigError as error:
        raise CommandConfigError(f"{name}: {error}") from error


def parse(text: str) -> ClientSecurity:
    """Read client properties. Raises CommandConfigError."""
    try:
        found = parse_properties(text)
        check_paths(found, os.path.exists)
    except ValueError as error:
        raise CommandConfigError(str(error)) from error
    # Kafka ignores blanks around all but passwords.
    properties = {
        name: each.value if name in _PASSWORDS else each.value.strip() for name, each in found.items()
    }
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise CommandConfigError(f"security.protocol: expected one of {', '.join(PROTOCOLS)}")
    tls = _tls(properties) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return ClientSecurity(tls)
    mechanism = properties.get("sasl.mechanism", "PLAIN")
    if mechanism != "PLAIN" and mechanism not in {each.value for each in ScramMechanism}:
        raise CommandConfigError("sasl.mechanism: expected PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")
    # Module and control flag precede the options.
    options = "".join(properties.get("sasl.jaas.config", "").split(maxsplit=2)[2:])
    try:
        login = login_options(options)
        return ClientSecurity(tls, mechanism, login["username"], login["password"])
    except (ValueError, KeyError):
        raise CommandConfigError(
            'sasl.jaas.config: expected MODULE required username="..." password="...";'
        ) from None


def _tls(properties: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=properties.get("ssl.truststore.location"))
        keystore = properties.get("ssl.keystore.location")
        if keystore is not None:
            context.load_cert_chain(keystore, password=properties.get("ssl.key.password", ""))
    except OSError as error:
        raise CommandConfigError(f"the files for TLS cannot be used: {error}") from error
    context.check_hostname = properties.get("ssl.endpoint.identification.algorithm", "https") != ""
    return context
