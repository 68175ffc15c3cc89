"""The dispatcher of an ephemeral broker: lets requests meet the faults that a test asks for (korvet/faults).

All requests enter their handlers through two methods of Dispatcher. Other brokers have a plain Dispatcher, so
faults cost these nothing, and no setting makes one of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.faults.injection import Injector
from korvet.server.dispatch import Dispatcher

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.api.common.services import Services
    from korvet.faults.table import FaultTable
    from korvet.protocol.registry import Api, Respond
    from korvet.server.backpressure import Backpressure
    from korvet.server.response_slot import PendingResponse


class FaultyDispatcher(Dispatcher):
    """A dispatcher whose requests meet faults."""

    def __init__(self, services: Services, backpressure: Backpressure, faults: FaultTable) -> None:
        super().__init__(services, backpressure)
        self._injector = Injector(faults, services.topics)

    def _submit(
        self, api: Api, context: RequestContext, request: Any, respond: Respond, place: PendingResponse
    ) -> None:
        handled = self._injector.meet(api, context, request, respond)
        if handled.respond is not respond and place.in_flight is not None:
            # The broker's stop does not wait for an answer that is held back.
            place.in_flight.answered()
            place.in_flight = None
        if handled.request is not None:
            super()._submit(api, context, handled.request, handled.respond, place)

    async def _handle(self, api: Api, context: RequestContext, request: Any, respond: Respond) -> None:
        handled = self._injector.meet(api, context, request, respond)
        if handled.request is not None:
            await super()._handle(api, context, handled.request, handled.respond)
