"""The pages of an admin endpoint: which there are, who may read them, and how often they were read."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.admin.http import Request, Response, text_response
from korvet.causes import Causes
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType, Samples

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from korvet.admin.access import Access

_ADMIN_REQUESTS: Final = declare(
    "korvet_admin_requests_total",
    "Answered requests of the admin endpoint; the path is empty for pages that do not exist.",
    "path",
    "code",
    kind=MetricType.COUNTER,
)

Page: TypeAlias = "Callable[[Request], Awaitable[Response]]"

log = logging.getLogger(__name__)
causes = Causes(log)

# Limits the body of a request: a fault has some hundred bytes.
_MOST_BODY_BYTES: Final = 64 * 1024
_NO_ACTIONS: Final[Mapping[tuple[str, str], Page]] = MappingProxyType({})

PROBES: Final = frozenset({"/livez", "/readyz"})
"""Pages that need no token: kubelets have none, and these pages name no topics, groups or users."""


class AdminEndpoint:
    """Answers the requests of all clients."""

    def __init__(
        self, pages: Mapping[str, Page], actions: Mapping[tuple[str, str], Page] = _NO_ACTIONS
    ) -> None:
        """`pages`: by path; `actions`: by method and path, of requests that may have a body."""
        self._pages = pages
        self._actions = actions
        self.most_body_bytes = _MOST_BODY_BYTES if actions else 0
        """Limits the bodies of requests."""
        self._requests: Counter[tuple[str, int]] = Counter()

    async def answer(self, access: Access, request: Request) -> Response:
        """Returns the page that a client asks for, or why it cannot have it."""
        try:
            response = await self._answer(access, request)
        except Exception:
            # The connection answers so.
            self._count(request, HTTPStatus.INTERNAL_SERVER_ERROR)
            raise
        self._count(request, response.status)
        return response

    def collect(self) -> Iterator[Samples]:
        """See Collector."""
        counts = sorted(self._requests.items())
        yield Samples(_ADMIN_REQUESTS, [(_ADMIN_REQUESTS.text(*key), count) for key, count in counts])

    def _count(self, request: Request, status: HTTPStatus) -> None:
        paths = {*self._pages, *(path for _, path in self._actions)}
        known = request.path if request.path in paths else ""
        self._requests[known, status.value] += 1

    async def _answer(self, access: Access, request: Request) -> Response:
        action = self._actions.get((request.method, request.path))
        page = action or self._pages.get(request.path)
        if action is None and page is not None and request.method not in {"GET", "HEAD"}:
            reason = "only GET and HEAD are allowed"
            return text_response(HTTPStatus.METHOD_NOT_ALLOWED, reason, ("Allow", "GET, HEAD"))
        if request.path not in PROBES and not access.admits(request.field("authorization")):
            if request.field("authorization"):
                causes.warn("wrong secret", "a client of the admin endpoint gave a wrong token or password")
            reason = "this page needs a token or a password"
            return text_response(HTTPStatus.UNAUTHORIZED, reason, *access.challenges)
        if page is None:
            there = sorted({*self._pages, *(path for _, path in self._actions)})
            return text_response(HTTPStatus.NOT_FOUND, f"there are only {' '.join(there)}")
        return await page(request)


async def livez(request: Request) -> Response:
    """The event loop answers."""
    del request
    await asyncio.sleep(0)
    return text_response(HTTPStatus.OK, "ok")
