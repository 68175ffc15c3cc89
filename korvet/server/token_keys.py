"""The keys that sign the tokens of clients: fetched from their issuer, and fetched again when they change.

| fetch | because | not before |
|---|---|---|
| first | the broker starts | |
| again | the time of `jwks.endpoint.refresh.ms` is over; each second if the keys are in a file | |
| again | a token is signed with an unknown key | some seconds after the last fetch began |
| again | the last fetch failed | `jwks.endpoint.retry.backoff.ms`, doubled with each failure |

While the issuer cannot be reached, the keys of the last fetch stay in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from typing import TYPE_CHECKING, Final

from korvet.causes import Causes
from korvet.config.errors import ConfigError
from korvet.security.oauth.exchange import KeysUnavailable
from korvet.security.oauth.keys import KeySet
from korvet.security.oauth.tokens import RefusedToken, TokenRules, parse_token
from korvet.server.key_fetch import FetchFailed, fetch, is_file
from korvet.supervisor import doubled_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.config.settings import Config
    from korvet.security.oauth.tokens import Identity

log = logging.getLogger(__name__)
causes = Causes(log)

# Limits how often the keys are fetched because of tokens with unknown keys, which anybody can send.
LEAST_BETWEEN_S: Final = 5.0
# The time between two looks at a file.
_POLL_S: Final = 1.0
# Limits the wait of a client for keys. Clients wait for an answer for 10 s or longer.
_LONGEST_WAIT_S: Final = 8.0
# The shortest pause after a failure, whatever the settings say.
_LEAST_BACKOFF_S: Final = 0.05
_BEING_FETCHED: Final = "they are being fetched"


class TokenKeys:
    """The keys for one listener. Use from one event loop."""

    def __init__(
        self,
        listener: str,
        config: Config,
        options: Mapping[str, str],
        least_between_s: float = LEAST_BETWEEN_S,
    ) -> None:
        """config: the settings of this listener, with the URL of the keys. options: those of its login
        module. Raises ConfigError if the file of authorities cannot be used.
        """
        url = config.sasl_oauthbearer_jwks_endpoint_url
        assert url is not None
        self.listener = listener
        self.url = url
        self._context = _context(options.get("ssl.truststore.location"))
        self._refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._least_between_s = least_between_s
        if is_file(url):
            self._refresh_s = self._least_between_s = _POLL_S
        self._backoff_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._longest_backoff_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        self.keys: KeySet | None = None
        """The keys in use; None before the first fetch that succeeded."""
        self.problem = _BEING_FETCHED
        """Why the last fetch failed; empty if it succeeded."""
        self._content: bytes | None = None
        self._asked = asyncio.Event()
        self._begun = self._ended = 0
        self._end = asyncio.Event()

    async def run(self) -> None:
        """Fetch the keys, and fetch them again, until cancelled."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began_s = clock()
            self._asked.clear()
            self._begun += 1
            await self._fetch()
            self._ended = self._begun
            self._end.set()
            self._end = asyncio.Event()
            if self.problem:
                pause_s = doubled_s(self._backoff_s, failures, self._longest_backoff_s)
                await asyncio.sleep(max(pause_s, _LEAST_BACKOFF_S))
                failures += 1
                continue
            failures = 0
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await self._asked.wait()
            await asyncio.sleep(began_s + self._least_between_s - clock())

    async def renew(self, lacks: Callable[[], bool]) -> None:
        """Return when `lacks()` is False, or the keys were fetched in a fetch that began after this call.
        Raises KeysUnavailable if they could not be fetched.
        """
        wanted = self._begun + 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_WAIT_S):
                while lacks() and self._ended < wanted:
                    self._asked.set()
                    await self._end.wait()
        if lacks() and (self.problem or self._ended < wanted):
            raise KeysUnavailable(f"the keys for its token are not there: {self.problem or _BEING_FETCHED}")

    async def _fetch(self) -> None:
        try:
            content = await fetch(self.url, self._context)
            if content != self._content:
                self._take(KeySet.parse(content))
                self._content = content
        except (FetchFailed, ValueError) as error:
            self.problem = f"{self.url}: {error}"
            kept = "nobody can log in with a token" if self.keys is None else "those of the last fetch stay"
            causes.warn(
                (self.listener, self.problem),
                "the keys for tokens cannot be fetched for listener %s, %s: %s",
                self.listener,
                kept,
                self.problem,
                work=self.listener,
                listener=self.listener,
            )
        else:
            self.problem = ""
            causes.ended(self.listener)

    def _take(self, keys: KeySet) -> None:
        self.keys = keys
        names = ", ".join(keys.names) or "without IDs"
        log.info("listener %s takes tokens signed with %d keys (%s)", self.listener, len(keys), names)
        for why in keys.unused:
            log.info("listener %s does not use a key of %s: %s", self.listener, self.url, why)


class SignedTokens:
    """The check of tokens that must be signed; see TokenCheck."""

    def __init__(self, keys: TokenKeys, rules: TokenRules, clock: Callable[[], float] = time.time) -> None:
        """clock: seconds since the epoch."""
        self._keys = keys
        self._rules = rules
        self._clock = clock

    def identity(self, token: str) -> Identity:
        """See TokenCheck."""
        parts = parse_token(token)
        identity = self._rules.identity(parts.claims, self._clock())
        try:
            if self._keys.keys is None:
                raise RefusedToken("there are no keys to verify it")
            self._keys.keys.verify(parts)
        except RefusedToken as refusal:
            refusal.subject = identity.subject
            raise
        return identity

    async def prepare(self, token: str) -> None:
        """See TokenCheck. A token that is refused with any key causes no fetch."""
        try:
            parts = parse_token(token)
            self._rules.identity(parts.claims, self._clock())
        except RefusedToken:
            return

        def lacks() -> bool:
            return self._keys.keys is None or self._keys.keys.lacks(parts)

        if lacks():
            await self._keys.renew(lacks)


def rules_of(config: Config) -> TokenRules:
    """What the settings of a listener demand of signed tokens."""
    audiences = (each.strip() for each in config.sasl_oauthbearer_expected_audience.split(","))
    return TokenRules(
        config.sasl_oauthbearer_expected_issuer,
        frozenset(filter(None, audiences)),
        config.sasl_oauthbearer_clock_skew_seconds,
        config.sasl_oauthbearer_scope_claim_name,
        config.sasl_oauthbearer_sub_claim_name,
    )


def _context(authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise ConfigError(
            f"oauthbearer.sasl.jaas.config: ssl.truststore.location = {authorities} cannot be used: "
            f"{error.strerror or error}"
        ) from error
