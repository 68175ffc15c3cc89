"""All collectors of a broker: one line for each concern."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from korvet.observe import groups, partitions, process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.observe.event_loop import EventLoopLag
    from korvet.observe.parts import Parts
    from korvet.observe.registry import Collector
    from korvet.server.dispatch import Dispatcher


def of_process(lag: EventLoopLag) -> Iterator[tuple[str, Collector]]:
    """The collectors of every process of korvet."""
    yield "process", process.collect
    yield "event loop", lag.collect


def of_broker(parts: Parts, dispatcher: Dispatcher) -> Iterator[tuple[str, Collector]]:
    """The collectors of a broker's parts, by name."""
    yield "lifecycle", partial(process.collect_phase, parts.lifecycle)
    yield "exceptions", partial(process.collect_exceptions, dispatcher.failures)
    yield "partitions", partial(partitions.collect, parts)
    yield "groups", groups.GroupCollector(parts).collect
    yield "coordinators", partial(groups.collect_coordinators, parts)
