"""The route of an append in every state: a table."""

import itertools

import pytest

from korvet.storage.log.routes import Guard, InFlight, Kind, Route, choose_route

# For a guard that is off, not yet ready, too early, and ready.
PRODUCED = {
    InFlight.NOTHING: (Route.SCRIPT, Route.SCRIPT, Route.WAIT, Route.GUARD),
    InFlight.GUARDED: (Route.WAIT, Route.WAIT, Route.WAIT, Route.GUARD),
    InFlight.SCRIPTS: (Route.SCRIPT, Route.WAIT, Route.WAIT, Route.WAIT),
    InFlight.BLOCKED: (Route.WAIT, Route.WAIT, Route.WAIT, Route.WAIT),
}
OWN = {
    InFlight.NOTHING: Route.SCRIPT,
    InFlight.GUARDED: Route.WAIT,
    InFlight.SCRIPTS: Route.SCRIPT,
    InFlight.BLOCKED: Route.WAIT,
}


@pytest.mark.parametrize(("in_flight", "guard"), list(itertools.product(InFlight, Guard)))
def test_a_produced_batch(in_flight: InFlight, guard: Guard) -> None:
    expected = dict(zip(Guard, PRODUCED[in_flight], strict=True))
    assert choose_route(Kind.PRODUCED, in_flight, guard) is expected[guard]


@pytest.mark.parametrize(("in_flight", "guard"), list(itertools.product(InFlight, Guard)))
def test_records_of_the_broker_and_markers(in_flight: InFlight, guard: Guard) -> None:
    assert choose_route(Kind.OWN, in_flight, guard) is OWN[in_flight]


@pytest.mark.parametrize(("kind", "guard"), list(itertools.product(Kind, Guard)))
def test_ways_never_mix_in_flight(kind: Kind, guard: Guard) -> None:
    """Otherwise an append could overtake an earlier one."""
    assert choose_route(kind, InFlight.GUARDED, guard) is not Route.SCRIPT
    assert choose_route(kind, InFlight.SCRIPTS, guard) is not Route.GUARD
    assert choose_route(kind, InFlight.BLOCKED, guard) is Route.WAIT
