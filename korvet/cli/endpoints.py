"""Reads pages of brokers' admin endpoints: /metrics and /status."""

from __future__ import annotations

import base64
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from korvet.cli.top.metrics import Metrics
from korvet.config.keys import variable_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

TOKEN_VARIABLE: Final = variable_of("admin.token")
_TIMEOUT_S: Final = 5.0
# Limits a page: 100,000 partitions have less.
_LARGEST_PAGE: Final = 256 * 1024 * 1024


def endpoints_of(texts: Sequence[str], tls: ssl.SSLContext | None) -> list[Endpoint]:
    """Returns the endpoints that the option --admin names. Raises BadParameter."""
    try:
        return [Endpoint(text, tls) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--admin") from error


class EndpointError(Exception):
    """An admin endpoint doesn't answer as expected. The message is for the user."""


class Endpoint:
    """One admin endpoint: HOST:PORT, or a URL that may hold a user and a password."""

    def __init__(self, text: str, tls: ssl.SSLContext | None = None) -> None:
        """Raises ValueError for a text that is no address."""
        url = urllib.parse.urlsplit(text if "://" in text else f"http://{text}")
        if url.scheme not in ("http", "https") or not url.hostname or url.port is None:
            raise ValueError("expected HOST:PORT, or http:// or https:// and the same")
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        self.name = f"{host}:{url.port}"
        self._url = f"{url.scheme}://{self.name}"
        self._headers: dict[str, str] = {}
        token = os.environ.get(TOKEN_VARIABLE)
        if url.username:
            pair = f"{urllib.parse.unquote(url.username)}:{urllib.parse.unquote(url.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif token:
            self._headers["Authorization"] = f"Bearer {token}"
        # Without proxies: the address is that of a broker.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls)
        )

    def read(self) -> Metrics:
        """Returns /metrics. Raises EndpointError."""
        return Metrics(self._page("/metrics", "text/plain; version=0.0.4").decode("utf-8", "replace"))

    def status(self) -> Any:
        """Returns /status, decoded. Raises EndpointError."""
        try:
            return msgspec.json.decode(self._page("/status", "application/json"))
        except msgspec.DecodeError as error:
            raise EndpointError(f"{self.name}: its answer is malformed: {error}") from error

    def _page(self, path: str, accept: str) -> bytes:
        request = urllib.request.Request(f"{self._url}{path}", headers={**self._headers, "Accept": accept})
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                body: bytes = answer.read(_LARGEST_PAGE)
                return body
        except urllib.error.HTTPError as error:
            raise EndpointError(f"{self.name}: {error.code} {error.reason}") from error
        except OSError as error:
            reason = getattr(error, "reason", None) or error.strerror or error
            raise EndpointError(f"{self.name}: {reason}") from error
        except http.client.HTTPException as error:
            raise EndpointError(f"{self.name}: its answer is malformed: {error}") from error
        except ValueError as error:
            raise EndpointError(f"{self.name}: {error}") from error
