"""TLS and users of a KorvetBroker: certificates that nothing else trusts, in files that have no name."""

from __future__ import annotations

import os
import secrets
import ssl
import sys
import tempfile
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.cli.security import ClientSecurity
from korvet.config.keys import variable_of
from korvet.security.plain import LOGIN_MODULE
from korvet.testing.errors import KorvetBrokerError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping

    from korvet.config.address import Address

_ADMINISTRATOR: Final = "korvet-testing"
_NAMES: Final = ("localhost", "127.0.0.1")


class Security(NamedTuple):
    """How clients reach the brokers."""

    protocol: str
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ca_file: str | None
    client: ClientSecurity
    """For requests of a KorvetBroker itself."""
    variables: Mapping[str, str]
    """Settings of the brokers, as environment variables."""

    def listener(self, address: Address) -> list[str]:
        """Returns the options of a broker that listens on an address."""
        return ["--set", f"listeners={self.protocol}://{address}"]


def prepare(*, tls: bool, users: bool, super_users: str, files: contextlib.ExitStack) -> Security:
    """Make certificates, and an administrator's password. `files` keeps the files of certificates.

    `super_users`: those of the broker's other settings. Raises KorvetBrokerError without trustme.
    """
    variables: dict[str, str] = {}
    context = ca_file = None
    if tls:
        authority, server = _certificates()
        ca_file = _unnamed(authority, files)
        context = ssl.create_default_context(cadata=authority.decode())
        variables[variable_of("ssl.keystore.location")] = _unnamed(server, files)
    protocol = ("SASL_" if users else "") + ("SSL" if tls else "PLAINTEXT")
    if not users:
        return Security(protocol, ca_file, ClientSecurity(context), variables)
    password = secrets.token_urlsafe(18)
    login = f'{LOGIN_MODULE} required user_{_ADMINISTRATOR}="{password}";'
    variables[variable_of("plain.sasl.jaas.config")] = login
    supers = [super_users, f"User:{_ADMINISTRATOR}"]
    variables[variable_of("super.users")] = ";".join(filter(None, supers))
    client = ClientSecurity(context, "PLAIN", _ADMINISTRATOR, password)
    return Security(protocol, ca_file, client, variables)


def _certificates() -> tuple[bytes, bytes]:
    """Returns an authority's certificate, and a private key with the certificates of a broker."""
    try:
        import trustme  # noqa: PLC0415  # only with TLS, and from an extra
    except ModuleNotFoundError as error:
        raise KorvetBrokerError(
            "tls=True needs the package trustme: pip install 'korvet[testing]'"
        ) from error
    authority = trustme.CA()
    return authority.cert_pem.bytes(), authority.issue_cert(*_NAMES).private_key_and_cert_chain_pem.bytes()


def _unnamed(content: bytes, files: contextlib.ExitStack) -> str:
    """Returns a path of a file that other processes can read until `files` is closed.

    On Linux it exists in memory only, and ends with this process. Elsewhere kill -9 leaves it.
    """
    if sys.platform == "linux":
        file = files.enter_context(os.fdopen(os.memfd_create("korvet-testing"), "wb"))
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    else:
        temporary = tempfile.NamedTemporaryFile(prefix="korvet-testing-", suffix=".pem")  # noqa: SIM115
        file = files.enter_context(temporary)
        path = file.name
    file.write(content)
    file.flush()
    return path
