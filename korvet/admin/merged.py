"""The admin endpoint of `korvet serve --processes N`: the pages of all brokers as one."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.admin.client import PageReply, fetch
from korvet.admin.endpoint import AdminEndpoint, livez
from korvet.admin.handover import Handover
from korvet.admin.http import PLAIN, Request, Response, text_response
from korvet.admin.metrics_page import metrics_response, prefers_open_metrics
from korvet.admin.server import AdminServer
from korvet.causes import Causes
from korvet.metrics.declared import declare
from korvet.metrics.exposition import OPEN_METRICS, TEXT, rendered
from korvet.metrics.family import Samples
from korvet.metrics.merging import merged
from korvet.observe import collectors
from korvet.observe.brokers import collect_certificates
from korvet.observe.event_loop import EventLoopLag
from korvet.observe.registry import Registry
from korvet.probe import children
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from korvet.config.settings import Config

_BROKER_UP: Final = declare(
    "korvet_broker_up",
    "Of `--processes`: 1 for each broker process whose page of metrics could be read, else 0.",
    "node_id",
)

log = logging.getLogger(__name__)
causes = Causes(log)

# Limits the wait for one broker's metrics: Prometheus waits for 10 s by default.
_METRICS_S: Final = 8.0
# Limits the wait for one broker's health: kubelets wait for a second by default.
_HEALTH_S: Final = 0.8


class MergedService:
    """Serves the pages of several brokers, with those of each broker."""

    def __init__(self, config: Config, node_ids: Sequence[int], probe: str = "") -> None:
        """`probe`: the address of the unix socket that answers `korvet ready`; empty for none."""
        self._config = config
        self._probe = probe
        self._node_ids = node_ids
        self._handovers = {node_id: Handover() for node_id in node_ids}
        self._up: dict[int, bool] = {}
        self._registry = Registry()
        self._lag = EventLoopLag()
        self._server: AdminServer | None = None
        self._probed: AdminServer | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> Mapping[int, Handover]:
        """Answer `korvet ready`, and serve all pages if the settings ask for an endpoint. Returns what
        connects to the endpoint of each broker by its standard input. Raises ConfigError and OSError; see
        AdminServer.open.
        """
        self._probed = AdminServer.open_probe(self._probe, self._readyz)
        if not self._config.serves_admin:
            return self._handovers
        pages = {"/livez": livez, "/readyz": self._readyz, "/metrics": self._metrics, "/status": self._status}
        endpoint = AdminEndpoint(pages)
        self._registry.add(collectors.of_process(self._lag))
        self._registry.add([("admin endpoint", endpoint.collect), ("brokers", self._collect)])
        self._server = server = await AdminServer.open(self._config, endpoint)
        self._registry.add([("certificates", partial(collect_certificates, lambda: server.certificates))])
        self._watch = keep("event loop lag", self._lag.watch)
        return self._handovers

    def url(self, host: str) -> str:
        """See AdminServer.url; empty without an endpoint."""
        return "" if self._server is None else self._server.url(host)

    async def close(self) -> None:
        """Serve nothing any more."""
        await end(self._watch)
        for server in (self._server, self._probed):
            if server is not None:
                await server.close()
        for handover in self._handovers.values():
            handover.close()

    def _collect(self) -> Iterator[Samples]:
        yield Samples(_BROKER_UP, [(_BROKER_UP.text(node_id), int(up)) for node_id, up in self._up.items()])

    async def _metrics(self, request: Request) -> Response:
        open_metrics = prefers_open_metrics(request.field("accept"))
        fetched = await self._fetch_all(
            "/metrics", OPEN_METRICS if open_metrics else TEXT, _METRICS_S, self._handovers
        )
        pages = {node_id: page.text for node_id, page in fetched.items() if page.status == HTTPStatus.OK}
        self._up = {node_id: node_id in pages for node_id in self._node_ids}
        own = "".join(rendered(self._registry.collect(), open_metrics=open_metrics))
        return await metrics_response(
            merged(own, pages, open_metrics=open_metrics), request, open_metrics=open_metrics
        )

    async def _readyz(self, request: Request) -> Response:
        del request
        places = self._handovers if self._config.serves_admin else children()
        fetched = await self._fetch_all("/readyz", PLAIN, _HEALTH_S, places)
        lines = []
        for node_id in self._node_ids:
            page = fetched.get(node_id)
            text = "serving: the broker does not answer" if page is None else page.text
            lines += [f"node {node_id}: {line}" for line in text.splitlines()]
        ready = len(fetched) == len(self._node_ids) and all(
            page.status == HTTPStatus.OK for page in fetched.values()
        )
        return text_response(HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, "\n".join(lines))

    async def _status(self, request: Request) -> Response:
        del request
        fetched = await self._fetch_all("/status", "application/json", _METRICS_S, self._handovers)
        brokers = {
            str(node_id): msgspec.Raw(page.body)
            if (page := fetched.get(node_id)) is not None and page.status == HTTPStatus.OK
            else None
            for node_id in self._node_ids
        }
        return Response(HTTPStatus.OK, [msgspec.json.encode({"brokers": brokers})], "application/json")

    async def _fetch_all(
        self, page: str, accept: str, timeout_s: float, places: Mapping[int, Handover] | Mapping[int, str]
    ) -> dict[int, PageReply]:
        """A page of each broker that answers at its place."""
        answers = await asyncio.gather(
            *(self._fetch(node_id, place, page, accept, timeout_s) for node_id, place in places.items())
        )
        return {
            node_id: answer for node_id, answer in zip(places, answers, strict=True) if answer is not None
        }

    async def _fetch(
        self, node_id: int, place: Handover | str, page: str, accept: str, timeout_s: float
    ) -> PageReply | None:
        try:
            answer = await fetch(place, page, accept, timeout_s)
        except (OSError, ValueError) as error:
            message = "%s of node %d cannot be read: %s"
            causes.warn(error, message, page, node_id, error or type(error), work=(page, node_id))
            return None
        causes.ended((page, node_id))
        return answer
