"""How an append reaches Redis now: by guard, by script, or after those in flight.

Appends of one way only are in flight at a time, so that they keep their order. `choose_route` is the whole
table; see appender.py for the two ways.
"""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """What is appended."""

    PRODUCED = "a producer's batch"
    OWN = "records of the broker, or a marker: they go by script only"


class InFlight(Enum):
    """What was sent and is not answered, or is gathered and about to be sent."""

    NOTHING = "nothing"
    GUARDED = "guarded appends"
    SCRIPTS = "script appends"
    BLOCKED = "earlier appends wait for a route"


class Guard(Enum):
    """Whether the guard can take an append."""

    OFF = "the layout does not allow it, or the guard rests after a refusal"
    NOT_YET = "the log's end is unknown, or others have moved it far ahead of the clock"
    EARLY = "the next offset is too far ahead of the clock, which will catch up soon"
    READY = "its offset can be assigned"


class Route(Enum):
    """What becomes of an append."""

    GUARD = "guarded append"
    SCRIPT = "script append"
    WAIT = "hold it back, with all that follow"


def choose_route(kind: Kind, in_flight: InFlight, guard: Guard) -> Route:
    """The route of an append."""
    produced = kind is Kind.PRODUCED
    if produced and guard is Guard.EARLY:
        return Route.WAIT
    if in_flight is InFlight.GUARDED or in_flight is InFlight.NOTHING:
        if produced and guard is Guard.READY:
            return Route.GUARD
        return Route.WAIT if in_flight is InFlight.GUARDED else Route.SCRIPT
    if in_flight is InFlight.BLOCKED or (produced and guard is not Guard.OFF):
        # The replies to scripts in flight show the end of the log, with which the guard can take over.
        return Route.WAIT
    return Route.SCRIPT
