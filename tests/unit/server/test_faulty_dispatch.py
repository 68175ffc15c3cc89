"""Faults between a connection and the handlers, on a wire without a socket."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from kio.schema.errors import ErrorCode
from kio.schema.produce.v9 import request as produce_v9

from korvet.faults.asked import AskedFault, fault_of
from korvet.faults.table import FaultTable
from korvet.protocol import registry
from korvet.server.faulty_dispatch import FaultyDispatcher
from tests.support.wire import decode_response
from tests.unit.protocol.instances import VERSIONS, random_request, version_id
from tests.unit.protocol.test_registry import errors_in
from tests.unit.server.test_dispatch import answers, frame_of, framed, new_dispatcher, turns
from tests.unit.server.transports import Wire

HEARTBEAT, PRODUCE, METADATA = (12, 4), (0, 9), (3, 12)


class Bench:
    """A connection to a faulty dispatcher. What reaches the handlers is kept, and answered by `answer`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, answers_at_once: bool = True) -> None:
        plain, self.pressure = new_dispatcher()
        plain.services.topics = SimpleNamespace(by_id=lambda topic_id: SimpleNamespace(name=f"of {topic_id}"))
        self.faults = FaultTable()
        self.dispatcher = FaultyDispatcher(plain.services, self.pressure, self.faults)
        self.wire = Wire(self.dispatcher)
        self.handled: list[Any] = []
        self.responds: list[Any] = []
        for api in registry.registered():
            monkeypatch.setitem(registry._APIS, api.key, self._stubbed(api, at_once=answers_at_once))

    def _stubbed(self, api: registry.Api, *, at_once: bool) -> registry.Api:
        """An API that answers each request as its refusal without an error."""

        def submit(context: Any, request: Any, respond: Any) -> None:
            self.handled.append(request)
            answer = [context.encode(api.refuse(context, request, ErrorCode.none))]
            if at_once:
                respond(answer)
            else:
                self.responds.append(lambda: respond(answer))

        async def handle(context: Any, request: Any) -> Any:
            self.handled.append(request)
            return api.refuse(context, request, ErrorCode.none)

        stub = {"submit": submit} if api.handle is None else {"handle": handle}
        return msgspec.structs.replace(api, **stub)

    def fault(self, **fields: Any) -> int:
        return self.faults.add(fault_of(AskedFault(**fields))).number

    def counts(self) -> list[tuple[int, int | None]]:
        return [(each.met, each.left) for each in self.faults]

    async def send(self, case: tuple[int, int], request: Any, correlation_id: int = 7) -> list[bytes]:
        """Everything that was answered so far."""
        self.wire.feed(framed(frame_of(case, request, correlation_id)))
        await turns()
        return answers(bytes(self.wire.transport.written))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda **options: Bench(monkeypatch, **options)


def beat() -> Any:
    return random_request(random.Random(1), *HEARTBEAT)


def produce(*topics: tuple[str, tuple[int, ...]], acks: int = -1) -> Any:
    return produce_v9.ProduceRequest(
        acks=acks,  # type: ignore[arg-type]
        timeout=random_request(random.Random(1), *PRODUCE).timeout,
        topic_data=tuple(
            produce_v9.TopicProduceData(
                name=name,  # type: ignore[arg-type]
                partition_data=tuple(
                    produce_v9.PartitionProduceData(index=index, records=b"r")  # type: ignore[arg-type]
                    for index in partitions
                ),
            )
            for name, partitions in topics
        ),
    )


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
async def test_every_request_can_fail(case: tuple[int, int], bench: Any) -> None:
    here = bench()
    rng = random.Random(repr(case))
    api = registry.find(case[0])
    assert api is not None
    number = here.fault(api=api.name, action="fail", error="NOT_COORDINATOR", times=None)
    # Few random fetches begin a session.
    for sent in range(1, 41 if case[0] == 1 else 9):
        if here.wire.transport.closed:
            # Produce with acks=0.
            break
        found = await here.send(case, random_request(rng, *case))
        (counted,) = here.faults
        assert counted.number == number
        # A request that names nothing has no place for an error, and is handled.
        assert counted.met + len(here.handled) == sent
        told = {error for each in found for error in errors_in(decode_response(*case, each).message)}
        assert told <= {ErrorCode.not_coordinator, ErrorCode.none, ErrorCode.fetch_session_id_not_found}
        if counted.met and not here.wire.transport.closed:
            assert ErrorCode.not_coordinator in told
    assert counted.met


async def test_the_next_requests_fail_and_the_others_do_not(bench: Any) -> None:
    here = bench()
    here.fault(api="Heartbeat", action="fail", error="REBALANCE_IN_PROGRESS", times=2)
    for _ in range(3):
        found = await here.send(HEARTBEAT, beat())
    errors = [decode_response(*HEARTBEAT, each).message.error_code for each in found]
    assert errors == [ErrorCode.rebalance_in_progress] * 2 + [ErrorCode.none]
    assert here.counts() == [(2, 0)]
    assert len(here.handled) == 1
    assert here.dispatcher.requests[12].errors == {ErrorCode.rebalance_in_progress: 2}


async def test_only_the_partitions_that_match_fail(bench: Any) -> None:
    here = bench()
    here.fault(api="Produce", action="fail", error="NOT_LEADER_OR_FOLLOWER", topic="a", partition=1)
    (found,) = await here.send(PRODUCE, produce(("a", (0, 1, 2)), ("b", (1,))))
    told = {
        (topic.name, each.index): each.error_code
        for topic in decode_response(*PRODUCE, found).message.responses
        for each in topic.partition_responses
    }
    assert told == {
        ("a", 0): ErrorCode.none,
        ("a", 1): ErrorCode.not_leader_or_follower,
        ("a", 2): ErrorCode.none,
        ("b", 1): ErrorCode.none,
    }
    (handled,) = here.handled
    named = {(topic.name, each.index) for topic in handled.topics for each in topic.partitions}
    assert named == {("a", 0), ("a", 2), ("b", 1)}


async def test_topics_are_known_by_their_ids(bench: Any) -> None:
    here = bench()
    topic_id = UUID(int=5)
    here.fault(api="Produce", action="ignore", topic=f"of {topic_id}")
    rng = random.Random(3)
    request = random_request(rng, 0, 13)
    while not request.topic_data or request.acks == 0:
        request = random_request(rng, 0, 13)
    topic = dataclasses.replace(request.topic_data[0], topic_id=topic_id)
    await here.send((0, 13), dataclasses.replace(request, topic_data=(topic,)))
    assert here.counts() == [(1, 0)]


async def test_a_client_that_wants_no_response_is_disconnected_by_an_error(bench: Any) -> None:
    here = bench()
    here.fault(api="Produce", action="fail", error="NOT_LEADER_OR_FOLLOWER", topic="a")
    found = await here.send(PRODUCE, produce(("a", (0,)), ("b", (0,)), acks=0))
    assert found == []
    assert here.wire.transport.closed
    assert [topic.name for topic in here.handled[0].topics] == ["b"]


@pytest.mark.parametrize("case", [HEARTBEAT, PRODUCE, METADATA], ids=version_id)
@pytest.mark.parametrize(("action", "handles"), [("disconnect", False), ("lose_answer", True)])
async def test_a_connection_is_closed_in_place_of_a_response(
    case: tuple[int, int], action: str, handles: bool, bench: Any
) -> None:
    here = bench()
    api = registry.find(case[0])
    assert api is not None
    here.fault(api=api.name, action=action)
    request = produce(("a", (0,))) if case == PRODUCE else random_request(random.Random(1), *case)
    assert await here.send(case, request) == []
    assert here.wire.transport.closed
    assert bool(here.handled) is handles
    assert here.pressure.unanswered == here.pressure.in_flight_bytes == 0


@pytest.mark.parametrize("case", [HEARTBEAT, PRODUCE, METADATA], ids=version_id)
async def test_a_request_without_a_response_holds_its_connection_and_not_the_broker(
    case: tuple[int, int], bench: Any
) -> None:
    here = bench()
    api = registry.find(case[0])
    assert api is not None
    here.fault(api=api.name, action="ignore")
    request = produce(("a", (0,))) if case == PRODUCE else random_request(random.Random(1), *case)
    assert await here.send(case, request) == []
    # As in Kafka, responses have the order of requests.
    assert await here.send((18, 0), random_request(random.Random(1), 18, 0)) == []
    assert not here.wire.transport.closed
    assert here.handled == []
    await asyncio.wait_for(here.dispatcher.finish(), 5)
    here.wire.lose()


@pytest.mark.parametrize("case", [HEARTBEAT, PRODUCE, METADATA], ids=version_id)
async def test_a_late_response_follows_the_handling(case: tuple[int, int], bench: Any) -> None:
    here = bench()
    api = registry.find(case[0])
    assert api is not None
    here.fault(api=api.name, action="delay", ms=3_600_000)
    request = produce(("a", (0,))) if case == PRODUCE else random_request(random.Random(1), *case)
    assert await here.send(case, request) == []
    assert len(here.handled) == 1
    here.faults.clear()
    loop = asyncio.get_running_loop()
    late = min(loop._scheduled, key=lambda timer: -timer.when())  # type: ignore[attr-defined]
    assert late.when() - loop.time() > 3_500
    late._run()
    await turns()
    assert len(answers(bytes(here.wire.transport.written))) == 1
    late.cancel()


async def test_one_request_meets_one_fault(bench: Any) -> None:
    here = bench()
    for error in ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"):
        here.fault(api="Heartbeat", action="fail", error=error)
    here.fault(api="Heartbeat", action="disconnect", client_id="another")
    for _ in range(3):
        found = await here.send(HEARTBEAT, beat())
    errors = [decode_response(*HEARTBEAT, each).message.error_code for each in found]
    assert errors == [ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.none]
    assert here.counts() == [(1, 0), (1, 0), (0, 1)]


async def test_fetch_sessions_end_where_partitions_have_to_be_named(bench: Any) -> None:
    here = bench()
    here.fault(api="Fetch", action="fail", error="NOT_LEADER_OR_FOLLOWER", topic="a")
    rng = random.Random(1)
    seen = set()
    while seen != {True, False}:
        request = random_request(rng, 1, 12)
        await here.send((1, 12), request)
        if here.handled:
            handled = here.handled.pop()
            continues = request.session_epoch not in (0, -1)
            seen.add(continues)
            # A session that does not exist, or none.
            assert (handled.session_id if continues else handled.session_epoch) == (0 if continues else -1)
    assert here.counts()[0][0] <= 1


async def test_errors_of_fetch_sessions_are_those_of_the_response(bench: Any) -> None:
    here = bench()
    here.fault(api="Fetch", action="fail", error="INVALID_FETCH_SESSION_EPOCH")
    (found,) = await here.send((1, 12), random_request(random.Random(1), 1, 12))
    response = decode_response(1, 12, found).message
    assert response.error_code is ErrorCode.invalid_fetch_session_epoch
    assert response.responses == ()
