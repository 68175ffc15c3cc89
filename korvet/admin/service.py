"""The admin endpoint of one broker, from its start to its end."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from korvet.admin.endpoint import AdminEndpoint, livez
from korvet.admin.health import is_ready
from korvet.admin.http import Request, Response, text_response
from korvet.admin.metrics_page import MetricsPage
from korvet.admin.readiness import Readiness
from korvet.admin.server import AdminServer
from korvet.admin.status import StatusPage
from korvet.observe import collectors
from korvet.observe.brokers import collect_certificates
from korvet.observe.event_loop import EventLoopLag
from korvet.observe.registry import Registry
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from korvet.admin.faults import FaultPages
    from korvet.config.settings import Config
    from korvet.observe.lifecycle import Lifecycle
    from korvet.observe.parts import Parts
    from korvet.outlook.durability import Setup
    from korvet.server.certificates import UsedCertificate
    from korvet.server.dispatch import Dispatcher


class AdminService:
    """Serves the pages of one broker."""

    def __init__(
        self, config: Config, lifecycle: Lifecycle, probe: str = "", faults: FaultPages | None = None
    ) -> None:
        """`probe`: the address of the unix socket that answers `korvet ready`; empty for none. `faults`:
        the pages of an ephemeral broker.
        """
        self._config = config
        self._probe = probe
        self._readiness = Readiness(lifecycle, config.admin_ready_redis_ms)
        self._status = StatusPage(lifecycle, self._readiness, self._certificates)
        self._faults = faults
        self._registry = Registry()
        self._server: AdminServer | None = None
        self._probed: AdminServer | None = None
        self._lag = EventLoopLag()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Answer `korvet ready`, and serve all pages if the settings ask for an endpoint. Raises ConfigError
        and OSError; see AdminServer.open.
        """
        self._probed = AdminServer.open_probe(self._probe, self._readyz)
        if not self._config.serves_admin:
            return
        metrics = MetricsPage(self._registry)
        endpoint = AdminEndpoint(
            {
                "/livez": livez,
                "/readyz": self._readyz,
                "/metrics": metrics.answer,
                "/status": self._status.answer,
            },
            {} if self._faults is None else self._faults.actions,
        )
        self._registry.add(collectors.of_process(self._lag))
        self._registry.add(
            [
                ("readiness", self._readiness.collect),
                ("admin endpoint", endpoint.collect),
                ("scrape", metrics.collect),
                ("certificates", partial(collect_certificates, self._certificates)),
            ]
        )
        self._server = await AdminServer.open(self._config, endpoint)
        self._watch = keep("event loop lag", self._lag.watch)

    def url(self, host: str) -> str:
        """See AdminServer.url; empty without an endpoint."""
        return "" if self._server is None else self._server.url(host)

    def attach(self, parts: Parts, dispatcher: Dispatcher, setup: Callable[[], Setup]) -> None:
        """Show a broker's parts from now on. `setup`: what Redis does not report of the setup now."""
        self._readiness.parts = parts
        if self._faults is not None:
            self._faults.parts = parts
        if self._server is not None:
            self._status.setup = setup
            self._registry.add(collectors.of_broker(parts, dispatcher))

    async def close(self) -> None:
        """Serve nothing any more."""
        await end(self._watch)
        for server in (self._server, self._probed):
            if server is not None:
                await server.close()

    def _certificates(self) -> list[UsedCertificate]:
        parts = self._readiness.parts
        own = [] if self._server is None else self._server.certificates
        return own if parts is None else own + parts.listener.certificates

    async def _readyz(self, request: Request) -> Response:
        del request
        checks = self._readiness.checks()
        status = HTTPStatus.OK if is_ready(checks) else HTTPStatus.SERVICE_UNAVAILABLE
        return text_response(status, "\n".join(map(str, checks)))
