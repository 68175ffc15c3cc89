"""TLS contexts of listeners, made from PEM files. Changed files are read again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from korvet.config.errors import ConfigError
from korvet.server.certificates import KEYSTORE, TRUSTSTORE, ExpiryLog, UsedCertificate, used_certificates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.config.settings import Config

_VERIFY: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# The time between two checks for changed files.
_POLL_S: Final = 1.0

# OpenSSL's reason if a part of a key store is missing, or can't be decrypted.
_UNREADABLE: Final = "PEM lib"

log = logging.getLogger(__name__)


class ServerTls:
    """A listener's TLS context, which is replaced when settings or files change. Use it for one connection
    only.
    """

    def __init__(self, name: str, config: Config, client_auth: str) -> None:
        """name: that of the listener. client_auth: whether clients present certificates, as in
        `ssl.client.auth`. Raises ConfigError if a file cannot be used.
        """
        self._name = name
        self._config = config
        self._client_auth = client_auth
        self._seen = self._state()
        self._expiry = ExpiryLog()
        self._load()

    async def keep_up(self) -> None:
        """Check for changed files until cancelled."""
        while True:
            await asyncio.sleep(_POLL_S)
            self.reload()
            self._expiry.note(self.certificates, time.time())

    def follow(self, config: Config, client_auth: str) -> None:
        """Use other settings for new connections, and read all files again. Unusable files are logged."""
        self._config, self._client_auth = config, client_auth
        self._seen = self._state()
        self._read()

    def reload(self) -> None:
        """Read the files again if they have changed. Unusable files are logged, and read again after their
        next change.
        """
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        if self._read():
            log.info("the TLS files were read again")

    def _read(self) -> bool:
        """Returns False if a file cannot be used."""
        try:
            self._load()
        except ConfigError as error:
            log.error("the TLS files have changed and cannot be used, the old ones stay: %s", error)
            return False
        return True

    def _load(self) -> None:
        """Raises ConfigError if a file cannot be used; then everything stays as it was."""
        context = context_of(self._config, self._client_auth)
        self.certificates = list(self._read_certificates())
        self.context = context
        self._expiry.note(self.certificates, time.time())

    def _read_certificates(self) -> Iterator[UsedCertificate]:
        config = self._config
        for file, path in (
            (KEYSTORE, config.ssl_keystore_location),
            (TRUSTSTORE, config.ssl_truststore_location),
        ):
            if path is not None:
                with _naming(f"ssl.{file}.location", path):
                    yield from used_certificates(self._name, file, path)

    def _state(self) -> list[tuple[int, int, int, int] | None]:
        files = self._config.ssl_keystore_location, self._config.ssl_truststore_location
        return [_state_of(Path(file)) for file in files if file is not None]


def context_of(config: Config, client_auth: str) -> ssl.SSLContext:
    """A new context by the settings of a listener. Raises ConfigError if a file cannot be used."""
    assert config.ssl_keystore_location is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if config.ssl_enabled_protocols == "TLSv1.3" else ssl.TLSVersion.TLSv1_2
    )
    # A session ticket would admit a client whose certificate is no longer trusted.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.verify_mode = _VERIFY[client_auth]
    if config.ssl_cipher_suites is not None:
        with _naming("ssl.cipher.suites", config.ssl_cipher_suites):
            context.set_ciphers(config.ssl_cipher_suites)
    with _naming("ssl.keystore.location", config.ssl_keystore_location):
        # If password were None, OpenSSL would ask for the password of an encrypted key on the terminal.
        context.load_cert_chain(config.ssl_keystore_location, password=config.ssl_key_password or "")
    if config.ssl_truststore_location is not None:
        with _naming("ssl.truststore.location", config.ssl_truststore_location):
            context.load_verify_locations(config.ssl_truststore_location)
    return context


@contextlib.contextmanager
def _naming(key: str, value: str) -> Iterator[None]:
    """Name the setting in errors of OpenSSL. Raises ConfigError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error.args[-1])
        if _UNREADABLE in reason:
            reason = "expected a PEM file of a private key and its certificates; is ssl.key.password right?"
        raise ConfigError(f"{key} = {value} cannot be used: {reason}") from error


def _state_of(file: Path) -> tuple[int, int, int, int] | None:
    """Changes with the content, and with the permissions (ctime)."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
