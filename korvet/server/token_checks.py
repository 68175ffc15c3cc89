"""What checks the tokens of a listener's clients, by its settings, and what to tell operators of it."""

from __future__ import annotations

import logging
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from korvet.config.checks import oauth_options
from korvet.config.errors import ConfigError
from korvet.outlook.findings import FAULT, OK, WARNING, Finding
from korvet.security.oauth.unsecured import UnsecuredRules

if TYPE_CHECKING:
    from korvet.config.settings import Config
    from korvet.security.listeners import ListenerSpec
    from korvet.security.oauth.exchange import TokenCheck
    from korvet.security.oauth.tokens import Identity
    from korvet.server.token_keys import TokenKeys

log = logging.getLogger(__name__)


class ListenerTokens(NamedTuple):
    """The tokens of one listener's clients."""

    listener: str
    check: TokenCheck
    keys: TokenKeys | None
    """None if tokens need no signatures."""

    @property
    def missing(self) -> str:
        """Why nobody can log in with a token; empty if there are keys, or none are needed."""
        lacks = self.keys is not None and self.keys.keys is None
        return f"listener {self.listener} has no keys for tokens: {self._problem}" if lacks else ""

    @property
    def stale(self) -> str:
        """Why the keys may not be the newest; empty if they are, or none are needed."""
        stays = self.keys is not None and self.keys.keys is not None and self._problem
        return f"listener {self.listener} keeps older keys for tokens: {self._problem}" if stays else ""

    @property
    def _problem(self) -> str:
        return "" if self.keys is None else self.keys.problem

    def finding(self) -> Finding:
        """What to tell operators."""
        subject = f"tokens, {self.listener}"
        if self.keys is None:
            return Finding(subject, WARNING, "anybody can be anyone: tokens need no signatures")
        if self.missing or self.stale:
            return Finding(subject, FAULT if self.missing else WARNING, self.missing or self.stale)
        assert self.keys.keys is not None
        names = ", ".join(self.keys.keys.names) or "of the issuer"
        unused = "".join(f", not with {each}" for each in self.keys.keys.unused)
        return Finding(subject, OK, f"verified with the keys {names}{unused}")


class UnsecuredTokens:
    """The check of tokens that need no signatures; see TokenCheck."""

    def __init__(self, rules: UnsecuredRules) -> None:
        self._rules = rules

    def identity(self, token: str) -> Identity:
        """See TokenCheck."""
        return self._rules.identity(token, time.time())

    async def prepare(self, token: str) -> None:
        """See TokenCheck: no keys are needed."""


def listener_tokens(spec: ListenerSpec, config: Config) -> ListenerTokens | None:
    """What checks the tokens of a listener; None if it can't have OAUTHBEARER. config: the settings of this
    listener. Raises ConfigError without the packages that it needs, or if a file cannot be used.
    """
    if not config.takes_tokens(spec):
        return None
    options = oauth_options(config.oauthbearer_sasl_jaas_config)
    if config.accepts_unsecured_tokens:
        log.warning(
            "listener %s takes tokens without signatures, so anybody can be anyone: use that for tests only",
            spec.name,
        )
        return ListenerTokens(spec.name, UnsecuredTokens(UnsecuredRules.of(options)), None)
    try:
        from korvet.server.token_keys import (  # noqa: PLC0415  # from an extra, and slow to import
            SignedTokens,
            TokenKeys,
            rules_of,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"OAUTHBEARER needs the package {error.name}: pip install 'korvet[oauth]'"
        ) from error
    keys = TokenKeys(spec.name, config, options)
    url = urlsplit(keys.url)
    if url.scheme == "http" and not _is_loopback(url.hostname or ""):
        log.warning(
            "the keys for tokens on listener %s come from %s without TLS: whoever can change them on the way "
            "can be anyone",
            spec.name,
            url.hostname,
        )
    return ListenerTokens(spec.name, SignedTokens(keys, rules_of(config)), keys)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
