"""What is counted of requests and connections: versions, bytes, errors, and where the time goes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from korvet.api.common import request_counts
from korvet.api.common.request_counts import SAMPLED, ApiCounts
from korvet.protocol import registry
from korvet.protocol.response_errors import errors_in
from korvet.protocol.schemas import request_class
from korvet.server import connection, dispatch, response_slot
from korvet.server.backpressure import Backpressure
from korvet.server.connections import ConnectionLimits, Connections
from tests.support.running import run
from tests.unit.protocol.instances import VERSIONS, decode_response, random_request, version_id
from tests.unit.protocol.test_registry import as_handled, context_of
from tests.unit.server.test_dispatch import converse, frame_of, new_dispatcher
from tests.unit.server.transports import Wire, framed

HEARTBEAT = (12, 4)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (response_slot, connection, dispatch):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


class Handler:
    """A handler of Heartbeat that answers when the test asks for it."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        api = registry.find(HEARTBEAT[0])
        assert api is not None
        self.clock = clock
        self.pending: list[Any] = []
        self.takes_s = 0.0
        monkeypatch.setitem(
            registry._APIS, HEARTBEAT[0], msgspec.structs.replace(api, submit=self.submit, in_flight_max=2)
        )

    def submit(self, context: Any, request: Any, respond: Any) -> None:
        self.clock.now_s += self.takes_s
        self.pending.append(respond)


def heartbeat() -> bytes:
    return framed(frame_of(HEARTBEAT, random_request(random.Random(1), *HEARTBEAT)))


async def test_the_time_of_a_request_is_divided(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third request waits until the first is answered, and the second answer for the first."""
    monkeypatch.setattr(request_counts, "SAMPLED", 1)
    dispatcher, _ = new_dispatcher()
    handler = Handler(clock, monkeypatch)
    wire, counts = Wire(dispatcher), dispatcher.requests[HEARTBEAT[0]]
    handler.takes_s = 0.5
    for _ in range(3):
        wire.feed(heartbeat())
    first, second = handler.pending
    clock.now_s += 2
    second([b"second"])
    assert not wire.transport.written
    clock.now_s += 4
    first([b"first"])
    assert len(handler.pending) == 3
    clock.now_s += 8
    handler.pending[2]([b"third"])
    assert counts.versions[HEARTBEAT[1]] == counts.total.count == counts.sent.count == 3
    assert counts.local.sum == pytest.approx(3 * 0.5)
    # The first one waits for 6.5 s after its handler, the second for 2 s, the third for 8 s.
    assert counts.remote.sum == pytest.approx((0.5 + 2 + 4) + 2 + 8)
    assert counts.held.sum == pytest.approx(6)
    assert counts.held.counts[0] == 2
    assert counts.total.sum == pytest.approx(counts.local.sum + counts.remote.sum + counts.held.sum)
    assert counts.sent.sum == pytest.approx(4)


def test_a_sample_of_frequent_requests_is_measured() -> None:
    frequent, rare = (ApiCounts(api) for api in map(registry.find, (0, 3)) if api is not None)
    for counts, measured in ((frequent, 100 // SAMPLED + 1), (rare, 100)):
        timings = [counts.received(4, 1.0, 2.0) for _ in range(100)]
        assert sum(timing is not None for timing in timings) == measured
        assert timings[0] is not None
        assert counts.versions[4] == 100


def test_an_unsupported_version_is_an_error() -> None:
    _, _, dispatcher = converse(frame_of(HEARTBEAT, random_request(random.Random(1), *HEARTBEAT)))
    assert dispatcher.requests[HEARTBEAT[0]].versions[HEARTBEAT[1]] == 1
    _, _, dispatcher = converse(b"\x00\x0c\x00\x63" + b"\x00" * 6)
    assert dispatcher.requests[HEARTBEAT[0]].errors == {ErrorCode.unsupported_version: 1}
    assert sum(dispatcher.requests[HEARTBEAT[0]].versions) == 0


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_the_errors_of_every_response_are_found(case: tuple[int, int]) -> None:
    api = registry.find(case[0])
    assert api is not None
    rng = random.Random(repr(case))
    found = []
    for _ in range(20):
        request = as_handled(*case, random_request(rng, *case))
        context = context_of(dispatch.response_schema(*case), case[1])
        response = api.refuse(context, request, ErrorCode.unknown_server_error)
        found += errors_in(response)
        decoded = decode_response(*case, context.schema.encode(response))
        assert [*errors_in(response)] == [*errors_in(decoded)]
    assert found
    assert set(found) <= {ErrorCode.unknown_server_error}
    assert request_class(*case).__version__ == case[1]


def test_connections_are_counted_by_listener() -> None:
    connections = Connections(ConnectionLimits(2, 2))
    kept, left = connections.admit("A", "/1"), connections.admit("B", "/2")
    assert kept is not None
    assert left is not None

    async def refused() -> bool:
        return connections.admit("B", "/3") is None

    assert run(refused())
    left.leave()
    left.leave()
    counts = connections.counts
    assert [(counts[name].accepted, counts[name].closed, counts[name].refused) for name in "AB"] == [
        (1, 0, 0),
        (1, 1, 1),
    ]
    assert (counts["A"].open, counts["B"].open) == (1, 0)


def test_the_time_of_backpressure_is_counted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("korvet.server.backpressure.perf_counter", clock)
    pressure = Backpressure(10)
    taken = pressure.take(10)
    assert pressure.blocked(lambda: None)
    clock.now_s += 2
    assert pressure.blocked(lambda: None)
    assert pressure.waiting == 2
    clock.now_s += 1
    assert pressure.total_blocked_s == 3.0
    taken.answered()
    clock.now_s += 1
    assert (pressure.waiting, pressure.holds, pressure.total_blocked_s) == (0, 2, 3.0)
