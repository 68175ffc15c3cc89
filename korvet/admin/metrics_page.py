"""The page of metrics: in the format that the client prefers, compressed if it accepts that."""

from __future__ import annotations

import asyncio
import time
import zlib
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from korvet.admin.http import Response, quality
from korvet.metrics.declared import declare
from korvet.metrics.exposition import OPEN_METRICS, TEXT, rendered
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from korvet.admin.http import Request
    from korvet.metrics.family import Samples
    from korvet.observe.registry import Registry

_SCRAPE_SECONDS: Final = declare(
    "korvet_scrape_duration_seconds",
    "The time that the previous page of metrics took, with the time of other work in between, in seconds.",
)

# The time for which the event loop is held at once, and left to others after that: a request takes several
# turns of the loop, and would wait for a slice in each. A page of 150,000 lines takes 0.2 s in this way.
_SLICE_S: Final = 0.0002
_PAUSE_S: Final = 0.0005
# The fastest level makes a page of metrics ten times smaller.
_LEVEL: Final = 1
_GZIP: Final = 16 + zlib.MAX_WBITS
# Bytes that a thread compresses at once. They take a millisecond, much longer than the way to the thread.
_COMPRESSED_AT_ONCE: Final = 500_000


class MetricsPage:
    """Renders one page at a time."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._rendering = asyncio.Lock()
        self._took_s = float("nan")

    async def answer(self, request: Request) -> Response:
        """See Page."""
        open_metrics = prefers_open_metrics(request.field("accept"))
        async with self._rendering:
            began_s = time.perf_counter()
            pieces = rendered(self._registry.collect(), open_metrics=open_metrics)
            response = await metrics_response(pieces, request, open_metrics=open_metrics)
            self._took_s = time.perf_counter() - began_s
        return response

    def collect(self) -> Iterator[Samples]:
        """See Collector."""
        yield _SCRAPE_SECONDS.single(self._took_s)


def prefers_open_metrics(accept: str) -> bool:
    """Returns whether a client prefers OpenMetrics to the text format."""
    open_metrics = quality(accept, "application/openmetrics-text", "application/*")
    return open_metrics > 0 and open_metrics >= quality(accept, "text/plain", "text/*")


async def metrics_response(pieces: Iterable[str], request: Request, *, open_metrics: bool) -> Response:
    """Returns a page, made slice by slice."""
    fields = [("Vary", "Accept, Accept-Encoding")]
    encoded = (piece.encode() async for piece in sliced(pieces, _SLICE_S, _PAUSE_S))
    if quality(request.field("accept-encoding"), "gzip") > 0:
        fields.append(("Content-Encoding", "gzip"))
        body = [part async for part in _compressed(encoded)]
    else:
        body = [piece async for piece in encoded]
    return Response(HTTPStatus.OK, body, OPEN_METRICS if open_metrics else TEXT, fields)


async def _compressed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces with gzip. A thread compresses what is long: half of the page's CPU time, for which
    zlib leaves the interpreter to the event loop.
    """
    packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
    waiting: list[bytes] = []
    size = 0
    async for piece in pieces:
        waiting.append(piece)
        size += len(piece)
        if size >= _COMPRESSED_AT_ONCE:
            yield await asyncio.to_thread(packer.compress, b"".join(waiting))
            waiting.clear()
            size = 0
    yield packer.compress(b"".join(waiting))
    yield packer.flush()
