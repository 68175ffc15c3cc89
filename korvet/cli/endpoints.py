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

from korvet.cli.samples import Samples
from korvet.config.keys import variable_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

TOKEN_VARIABLE: Final = variable_of("admin.token")
_TIMEOUT_S: Final = 5.0
# Limits a page: 100,000 partitions have less.
_LARGEST_PAGE: Final = 256 * 1024 * 1024


def endpoints_of(texts: Sequence[str], tls: ssl.SSLContext | None) -> list[EndpointClient]:
    """Returns the endpoints that the option --admin names. Raises BadParameter."""
    try:
        return [EndpointClient(text, tls) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--admin") from error


class StatusCluster(msgspec.Struct, frozen=True):
    """The cluster of a broker."""

    id: str


class StatusFinding(msgspec.Struct, frozen=True):
    """See Finding."""

    subject: str
    state: str
    text: str


class Status(msgspec.Struct, frozen=True):
    """The part of /status that commands use. A broker that starts has no `node_id`."""

    checks: dict[str, str]
    findings: list[StatusFinding] = []
    node_id: int | None = None
    cluster: StatusCluster | None = None
    release: str = ""

    @property
    def problems(self) -> list[str]:
        """The checks that fail; the broker is ready if there are none."""
        return [f"{name}: {text}" for name, text in self.checks.items() if not text.startswith("ok")]

    @property
    def notes(self) -> list[str]:
        """What is wrong although the checks are met."""
        return [
            f"{name}: {text}" for name, text in self.checks.items() if text.startswith("ok") and text != "ok"
        ]


class EndpointError(Exception):
    """An admin endpoint doesn't answer as expected. The message is for the user."""


class EndpointClient:
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

    def metrics(self) -> Samples:
        """Returns /metrics. Raises EndpointError."""
        return Samples(self._page("/metrics", "text/plain; version=0.0.4").decode("utf-8", "replace"))

    def statuses(self) -> list[Status]:
        """Returns /status of each broker that the endpoint answers for and that answers: several with
        --processes. Raises EndpointError.
        """
        try:
            found: Any = msgspec.json.decode(self._page("/status", "application/json"))
            several = isinstance(found, dict) and isinstance(found.get("brokers"), dict)
            pages = list(found["brokers"].values()) if several else [found]
            return [msgspec.convert(page, Status) for page in pages if page is not None]
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
