"""How many connections there may be, and when idle ones end."""

from __future__ import annotations

import logging
import resource

import pytest

from korvet.security.credentials import Credentials
from korvet.security.sasl import SaslSession
from korvet.server import listener
from korvet.server.connections import Admission, ConnectionLimits, Connections
from korvet.server.listener_access import ListenerAccess
from tests.support.running import run
from tests.unit.server.transports import Held, Wire, framed, request

PRODUCE = 0
NO_LIMIT = 2**31 - 1
# A step of 5 s, so 12 steps.
MINUTE_MS = 60_000


def wires(connections: Connections, count: int) -> list[Wire]:
    return [Wire(Held(), connections) for _ in range(count)]


def steps(connections: Connections, count: int) -> None:
    for _ in range(count):
        connections.step()


def connections_of(max_idle_ms: int = -1) -> Connections:
    return Connections(ConnectionLimits(NO_LIMIT, NO_LIMIT, max_idle_ms))


def places(
    connections: Connections, count: int, listener: str = "A", host: str = "/10.1.2.3"
) -> list[Admission]:
    """Those that are given of so many that are asked for."""

    async def given() -> list[Admission]:
        return [place for _ in range(count) if (place := connections.admit(listener, host)) is not None]

    return run(given())


def test_there_are_no_more_places_than_the_most(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(ConnectionLimits(3, NO_LIMIT))
    made = places(connections, 5)
    assert len(made) == 3
    assert [record.getMessage() for record in caplog.records] == [
        "refusing the connection of /10.1.2.3: there are 3 connections already"
    ]
    for _ in range(2):
        made[0].leave()
    assert len(places(connections, 5)) == 1, "a place is given back once"


def test_there_are_no_more_places_for_one_host_than_its_most(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(ConnectionLimits(NO_LIMIT, 2))
    made = places(connections, 2) + places(connections, 2, "B")
    assert len(made) == 2
    assert "it has 2 connections already" in caplog.text
    assert len(places(connections, 3, host="/10.1.2.4")) == 2
    for place in made:
        place.leave()
    assert len(places(connections, 3)) == 2


def test_a_listener_leaves_places_to_others(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(ConnectionLimits(5, NO_LIMIT, most_of_listener={"A": 2}))
    made = places(connections, 5)
    assert len(made) == 2
    assert "listener A has 2 connections already" in caplog.text
    assert len(places(connections, 5, "B")) == 3
    made[0].leave()
    assert len(places(connections, 5)) == 1


class Guarded(ListenerAccess):
    """A listener that asks for an authentication."""

    def new_session(self) -> SaslSession:
        return SaslSession(Credentials({"alice": "secret"}), ["PLAIN"])


def test_whoever_has_to_authenticate_is_not_silent_for_long() -> None:
    connections = connections_of(10 * MINUTE_MS)
    unknown, known = (Wire(Held(), connections, Guarded()) for _ in range(2))
    assert known.connection.session.sasl is not None
    known.connection.session.sasl.handshake("PLAIN", 1, 0.0)
    known.connection.session.sasl.evaluate(b"\0alice\0secret")
    other = Wire(Held(), connections)
    steps(connections, 4)
    assert [wire.transport.closed for wire in (unknown, known, other)] == [True, False, False]


def test_idle_connections_are_closed_in_time() -> None:
    connections = connections_of(MINUTE_MS)
    quiet, busy = wires(connections, 2)
    for step in range(14):
        assert not quiet.transport.closed, f"closed in step {step}"
        busy.feed(framed(request(step, PRODUCE))[:-1] if step % 2 else b"")
        connections.step()
    assert quiet.transport.closed
    assert not quiet.transport.aborted
    steps(connections, 8)
    assert not busy.transport.closed


def test_a_connection_that_waits_for_its_answer_is_idle_too() -> None:
    """As in Kafka: a request that is never answered does not keep its connection."""
    connections = connections_of(MINUTE_MS)
    held = Held()
    wire = Wire(held, connections)
    wire.feed(framed(request(1)))
    steps(connections, 10)
    held.answers[0]([b"an answer counts as activity"])
    steps(connections, 10)
    assert not wire.transport.closed
    wire.feed(framed(request(2)))
    steps(connections, 14)
    assert wire.transport.closed


def test_a_limit_of_nothing_closes_whoever_is_silent() -> None:
    connections = connections_of(0)
    (wire,) = wires(connections, 1)
    steps(connections, 3)
    assert wire.transport.closed


def test_without_a_limit_nobody_is_idle() -> None:
    connections = connections_of()
    (wire,) = wires(connections, 1)
    steps(connections, 10_000)
    assert not wire.transport.closed


@pytest.mark.parametrize("max_idle_ms", [-1, MINUTE_MS])
def test_a_client_that_never_reads_cannot_keep_its_connection(
    max_idle_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    connections = connections_of(max_idle_ms)
    (wire,) = wires(connections, 1)
    with caplog.at_level(logging.WARNING):
        wire.feed(b"\xff\xff\xff\xff")
    assert wire.transport.closed
    assert not wire.transport.aborted, "what was answered before may still be sent"
    steps(connections, 3)
    assert wire.transport.aborted


def test_a_large_buffer_does_not_stay_with_an_idle_connection() -> None:
    connections = connections_of()
    held = Held()
    wire = Wire(held, connections)
    wire.feed(framed(request(1, size=100_000)))
    held.answers[0]([b"a"])
    connections.step()
    assert len(wire.connection.get_buffer(-1)) > 4096
    connections.step()
    assert len(wire.connection.get_buffer(-1)) == 4096
    wire.feed(framed(request(2, size=50_000))[:-10])
    steps(connections, 3)
    wire.feed(framed(request(2, size=50_000))[-10:])
    assert held.frames[1] == request(2, size=50_000)


def test_who_pipelines_is_known_until_it_stops() -> None:
    connections = connections_of()
    held = Held()
    wire = Wire(held, connections)
    wire.feed(framed(request(0, PRODUCE)))
    held.answers[0]([b"a"])
    wire.feed(framed(request(1, PRODUCE)))
    assert not wire.connection.pipelines, "it waited for the answer"
    wire.feed(framed(request(2, PRODUCE)))
    assert wire.connection.pipelines
    held.answers[1]([b"b"])
    held.answers[2]([b"c"])
    wire.feed(framed(request(3, PRODUCE)))
    assert wire.connection.pipelines, "the first of what may be several"
    connections.step()
    assert not wire.connection.pipelines


@pytest.mark.parametrize(
    ("files", "room"), [(20, 16), (1024, 960), (20_000, 18_750), (resource.RLIM_INFINITY, NO_LIMIT)]
)
def test_open_files_limit_the_connections(
    files: int, room: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert listener.room_for_connections() == room
    assert (f"{files} files" in caplog.text) == (room < 4000)


def test_it_is_known_when_the_last_connection_has_ended() -> None:
    connections = connections_of()
    assert connections.empty.is_set()
    first, second = wires(connections, 2)
    connections.leave(first.connection)
    assert not connections.empty.is_set()
    connections.leave(second.connection)
    assert connections.empty.is_set()
