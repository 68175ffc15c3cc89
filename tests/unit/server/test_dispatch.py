"""From frames to handlers and back: unknown APIs, malformed bodies, handlers that fail."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import struct
import time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from korvet.api.common.audit import CHANGES, audit
from korvet.api.common.context import RequestContext
from korvet.api.common.request_counts import RequestCounts
from korvet.cluster.assignment import Assignment, Broker
from korvet.config.features import Features
from korvet.config.settings import Config
from korvet.protocol import registry
from korvet.protocol.messages import response_schema
from korvet.protocol.schemas import request_class
from korvet.quotas.throttle import ClientQuotas
from korvet.security.credentials import Credentials
from korvet.security.sasl import SaslSession
from korvet.server.backpressure import Backpressure
from korvet.server.dispatch import Dispatcher
from korvet.server.listener_access import ListenerAccess
from tests.api.asking import KEYS, frame
from tests.support.wire import decode_response
from tests.unit.protocol.instances import VERSIONS, encode, random_request, version_id
from tests.unit.protocol.test_registry import errors_in
from tests.unit.server.transports import Wire, framed

LIMIT_BYTES = 10_000


def new_dispatcher() -> tuple[Dispatcher, Backpressure]:
    assignment = Assignment(0, [Broker(1, "localhost", 9092, 0)])
    leadership = SimpleNamespace(assignment=assignment)
    services: Any = SimpleNamespace(
        shared_writes=SimpleNamespace(before=lambda: None),
        security=SimpleNamespace(features=Features()),
        config=Config(),
        cluster_id="id",
        leadership=leadership,
        check_lease=lambda: None,
        quotas=ClientQuotas(),
        requests=RequestCounts(registry.registered()),
    )
    pressure = Backpressure(LIMIT_BYTES)
    return Dispatcher(services, pressure), pressure


def header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    return struct.pack(">hhih", api_key, api_version, correlation_id, 4) + b"unit"


def frame_of(case: tuple[int, int], request: Any, correlation_id: int = 7) -> bytes:
    flexible = request_class(*case).__flexible__
    return header(*case, correlation_id) + (b"\x00" if flexible else b"") + encode(request)


def answers(written: bytes) -> list[bytes]:
    """The frames in what was written, without their lengths."""
    found = []
    while written:
        (size,) = struct.unpack_from(">i", written)
        assert len(written) >= 4 + size
        found.append(bytes(written[4 : 4 + size]))
        written = written[4 + size :]
    return found


async def turns() -> None:
    """Enough turns of the loop for handlers that wait for nothing."""
    for _ in range(10):
        await asyncio.sleep(0)


def converse(*frames: bytes) -> tuple[list[bytes], Wire, Dispatcher]:
    """Feed frames to a connection and wait until all handlers are done."""

    async def run() -> tuple[list[bytes], Wire, Dispatcher]:
        dispatcher, _ = new_dispatcher()
        wire = Wire(dispatcher)
        for each in frames:
            wire.feed(framed(each))
            await turns()
        return answers(bytes(wire.transport.written)), wire, dispatcher

    return asyncio.run(asyncio.wait_for(run(), 10))


@pytest.mark.parametrize(("key", "version"), [(999, 0), (-1, 0), (3, 99), (3, -1), (0, 2), (8, 1), (38, 0)])
def test_unknown_apis_and_versions_are_answered(key: int, version: int) -> None:
    found, wire, _ = converse(header(key, version, 5) + b"anything", header(18, 0, 6))
    assert found[0] == struct.pack(">ih", 5, ErrorCode.unsupported_version)
    assert decode_response(18, 0, found[1]).message.error_code == ErrorCode.none
    assert not wire.transport.closed


def test_an_unknown_version_of_api_versions_gets_all_versions_in_version_0() -> None:
    (found,), wire, _ = converse(header(18, 99, 5) + b"\x00")
    response = decode_response(18, 0, found)
    assert (response.correlation_id, response.left_bytes) == (5, 0)
    assert response.message.error_code == ErrorCode.unsupported_version
    assert {each.api_key for each in response.message.api_keys} == {api.key for api in registry.registered()}
    assert not wire.transport.closed


WITH_BODY = [case for case in VERSIONS if request_class(*case).__dataclass_fields__]


@pytest.mark.parametrize("case", WITH_BODY, ids=version_id)
def test_a_malformed_body_ends_the_connection(
    case: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    frame = frame_of(case, random_request(random.Random(repr(case)), *case))
    found, wire, _ = converse(frame[:-1])
    assert found == []
    assert wire.transport.closed
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_a_handler_that_fails_is_answered_counted_and_logged(
    case: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = registry.find(case[0])
    assert api is not None

    def submit(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async def handle(*_: object) -> None:
        submit()

    broken = {"submit": submit} if api.handle is None else {"handle": handle}
    monkeypatch.setitem(registry._APIS, case[0], msgspec.structs.replace(api, **broken))
    rng = random.Random(repr(case))
    frames = [frame_of(case, random_request(rng, *case)) for _ in range(8)]
    found, wire, dispatcher = converse(*frames)
    assert len(found) == 8
    said = set()
    for each in found:
        response = decode_response(*case, each)
        assert response.left_bytes == 0
        assert errors_in(response.message) <= {ErrorCode.unknown_server_error, ErrorCode.none}
        said |= errors_in(response.message)
    assert ErrorCode.unknown_server_error in said
    assert dispatcher.failures == {api.name: 8}
    counts = dispatcher.requests[case[0]]
    assert counts.errors == {ErrorCode.unknown_server_error: counts.errors[ErrorCode.unknown_server_error]}
    assert counts.versions[case[1]] == 8
    assert counts.total.count == 8
    assert len([line for line in caplog.records if line.name != "korvet.audit"]) == 8
    assert f"{api.name} v{case[1]} of client 'unit' failed" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    assert not wire.transport.closed


def test_what_a_handler_answers_is_framed(monkeypatch: pytest.MonkeyPatch) -> None:
    found, wire, _ = converse(frame_of((18, 0), random_request(random.Random(1), 18, 0), 11))
    (length,) = struct.unpack_from(">i", wire.transport.written)
    assert length == len(wire.transport.written) - 4 == len(found[0])
    assert decode_response(18, 0, found[0]).correlation_id == 11


def test_answering_twice_is_a_bug() -> None:
    held: list[Any] = []

    async def run() -> None:
        dispatcher, _ = new_dispatcher()
        wire = Wire(dispatcher)
        wire.feed(framed(frame_of((12, 0), random_request(random.Random(1), 12, 0))))
        held[0]([b"\x00\x00"])
        with pytest.raises(RuntimeError, match="twice"):
            held[0]([b"\x00\x00"])

    api = registry.find(12)
    assert api is not None
    with pytest.MonkeyPatch.context() as patch:
        keep = msgspec.structs.replace(api, submit=lambda _, __, respond: held.append(respond))
        patch.setitem(registry._APIS, 12, keep)
        asyncio.run(run())


def broken(key: int, monkeypatch: pytest.MonkeyPatch, **handlers: Any) -> None:
    """Replace what an API does."""
    api = registry.find(key)
    assert api is not None
    monkeypatch.setitem(registry._APIS, key, msgspec.structs.replace(api, **handlers))


def raises(*_: object) -> None:
    raise ZeroDivisionError("a bug")


async def raises_later(*_: object) -> None:
    raises()


@pytest.mark.parametrize("case", [(0, 9), (3, 12)], ids=["Produce", "Metadata"])
async def test_what_cannot_be_refused_ends_its_connection(
    case: tuple[int, int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api = registry.find(case[0])
    assert api is not None
    handlers = {"handle": raises_later} if api.submit is None else {"submit": raises}
    broken(case[0], monkeypatch, refuse=raises, **handlers)
    dispatcher, pressure = new_dispatcher()
    wire, other = Wire(dispatcher), Wire(dispatcher)
    wire.feed(framed(frame_of(case, random_request(random.Random(1), *case))))
    await turns()
    assert wire.transport.closed
    assert not wire.transport.written
    pressure.take(LIMIT_BYTES - 1)
    assert not pressure.full, "nothing of the request is counted any more"
    other.feed(framed(header(18, 0, 6)))
    await turns()
    assert answers(bytes(other.transport.written))
    assert "cannot be refused" in caplog.text


@pytest.mark.parametrize("api_key", [0, 1, 8, 12])
async def test_a_request_that_its_handler_has_lost_ends_the_connection(
    api_key: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As when the callback fails that takes the reply of Redis. Answers before it are sent."""
    held: list[Any] = []
    broken(api_key, monkeypatch, submit=lambda _, __, respond: held.append(respond))
    version = 9 if api_key == 0 else 4
    dispatcher, pressure = new_dispatcher()
    wire = Wire(dispatcher)
    frame = framed(frame_of((api_key, version), random_request(random.Random(1), api_key, version)))
    wire.feed(frame)
    held.pop()([b"answered"])
    await turns()
    wire.feed(frame)
    assert not wire.transport.closed
    held.clear()
    await turns()
    assert wire.transport.closed
    assert len(answers(bytes(wire.transport.written))) == 1
    pressure.take(LIMIT_BYTES - 1)
    assert not pressure.full, "nothing of the request is counted any more"
    assert [record.getMessage() for record in caplog.records] == [
        "closing the connection of /10.1.2.3: one of its requests was left without an answer"
    ]


async def test_a_request_that_is_lost_after_its_client_has_gone_is_no_news(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held: list[Any] = []
    broken(0, monkeypatch, submit=lambda _, __, respond: held.append(respond))
    dispatcher, pressure = new_dispatcher()
    wire = Wire(dispatcher)
    wire.feed(framed(frame_of((0, 9), random_request(random.Random(1), 0, 9))))
    wire.lose()
    held.clear()
    pressure.take(LIMIT_BYTES - 1)
    assert not pressure.full
    assert caplog.records == []


async def test_whatever_fails_before_a_handler_is_called_ends_one_connection_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that waited for room for its bytes is called by the one whose request was answered."""
    held: list[Any] = []
    broken(0, monkeypatch, submit=lambda _, __, respond: held.append(respond))
    dispatcher, _ = new_dispatcher()
    wires = [Wire(dispatcher) for _ in range(3)]
    produce = frame_of((0, 9), random_request(random.Random(1), 0, 9))
    dispatcher.backpressure.take(LIMIT_BYTES)
    for wire in wires:
        wire.feed(framed(produce))
    assert not held
    monkeypatch.setattr("korvet.server.dispatch.RequestContext", failing_once())
    dispatcher.backpressure.give_back(LIMIT_BYTES)
    assert [wire.transport.closed for wire in wires] == [True, False, False]
    assert len(held) == 2
    for respond in held:
        respond([b""])
    assert "could not be handled" in caplog.text


def failing_once() -> Any:
    """A RequestContext whose first one cannot be made."""
    calls = itertools.count()

    def make(*arguments: Any) -> Any:
        return raises() if next(calls) == 0 else RequestContext(*arguments)

    return make


def test_produced_bytes_in_flight_hold_others_back() -> None:
    """Until they are answered. Other requests are not held back."""
    held: list[Any] = []

    async def run() -> None:
        dispatcher, pressure = new_dispatcher()
        first, second = Wire(dispatcher), Wire(dispatcher)
        produce = frame_of((0, 9), random_request(random.Random(1), 0, 9))
        pressure.take(LIMIT_BYTES - 1)
        first.feed(framed(produce))
        second.feed(framed(produce))
        assert len(held) == 1
        pressure.give_back(LIMIT_BYTES - 1)
        assert len(held) == 2
        pressure.take(LIMIT_BYTES - 2 * len(produce))
        first.feed(framed(produce))
        assert len(held) == 2
        pressure.give_back(LIMIT_BYTES - 2 * len(produce))
        assert len(held) == 3
        for respond in held:
            respond([b""])
        assert not pressure.blocked(lambda: None)
        pressure.take(LIMIT_BYTES - 1)
        assert not pressure.blocked(lambda: None), "all that was taken has been given back"

    api = registry.find(0)
    assert api is not None
    with pytest.MonkeyPatch.context() as patch:
        keep = msgspec.structs.replace(api, submit=lambda _, __, respond: held.append(respond))
        patch.setitem(registry._APIS, 0, keep)
        asyncio.run(run())


async def test_a_handler_that_waits_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    async def forever(context: object, request: object) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("cancelled")

    api = registry.find(11)
    assert api is not None
    monkeypatch.setitem(registry._APIS, 11, msgspec.structs.replace(api, handle=forever))
    dispatcher, _ = new_dispatcher()
    wire = Wire(dispatcher)
    wire.feed(framed(frame_of((11, 5), random_request(random.Random(2), 11, 5))))
    await turns()
    wire.lose()
    await turns()
    await dispatcher.finish()
    assert ended == ["cancelled"]


class _Reauthenticating(ListenerAccess):
    """Sessions of a second."""

    def new_session(self) -> SaslSession:
        session = SaslSession(Credentials({"alice": "secret"}), ["PLAIN"], 1001)
        session.handshake("PLAIN", 1, 0.0)
        session.evaluate(b"\0alice\0secret")
        session.begin_session(time.monotonic())
        return session


REPEATED = {
    "Fetch": (12, {"session_id": 0, "session_epoch": -1}),
    "Produce": (9, {"topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"batch"}]}]}),
    "OffsetCommit": (8, {"topics": [{"name": "t", "partitions": [{"committed_metadata": ""}]}]}),
}


@pytest.mark.parametrize("name", REPEATED)
async def test_a_repeated_request_does_not_outlive_its_session(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-368: whatever is sent after the session's end ends the connection, but for an authentication."""
    key = KEYS[name]
    version, fields = REPEATED[name]
    seen: list[Any] = []

    def submit(_: Any, asked: Any, respond: Any) -> None:
        seen.append(asked)
        respond([b"body"])

    broken(key, monkeypatch, submit=submit)
    dispatcher, _ = new_dispatcher()
    wire = Wire(dispatcher, listener_access=_Reauthenticating())
    wire.connection.session.become("User:alice")
    frames = [framed(frame(name, version, number, **fields)) for number in range(4)]
    for each in frames[:3]:
        wire.feed(each)
    assert len(answers(bytes(wire.transport.written))) == len(seen) == 3
    assert wire.connection.session.sasl is not None
    wire.connection.session.sasl.begin_session(time.monotonic() - 1.001)
    wire.feed(frames[3])
    assert wire.transport.closed
    assert len(seen) == 3


def test_a_request_that_only_ends_as_the_last_one_is_another() -> None:
    """Lengths, versions and client ids that differ, with the same last bytes."""
    body = encode(random_request(random.Random(3), 1, 5))
    frames = [
        header(1, 5, 1) + body,
        struct.pack(">hhih", 1, 5, 2, 6) + b"longer" + body,
        header(1, 6, 3) + body,
        struct.pack(">hhih", 1, 5, 4, -1) + body,
    ]
    held: list[Any] = []
    api = registry.find(1)
    assert api is not None

    def submit(context: Any, request: Any, respond: Any) -> None:
        held.append((context.api_version, context.client_id))
        respond([b""])

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry._APIS, 1, msgspec.structs.replace(api, submit=submit))
        converse(*frames)
    assert held == [(5, "unit"), (5, "longer"), (6, "unit"), (5, "")]


def test_no_request_makes_the_audit_fail(caplog: pytest.LogCaptureFixture) -> None:
    """Requests with random fields, whose refusals are audited."""
    caplog.set_level(logging.INFO, "korvet.audit")
    client: Any = SimpleNamespace(session=SimpleNamespace(principal="User:a"), client_host="/b")
    services: Any = None
    for key, version in VERSIONS:
        api = registry.find(key)
        assert api is not None
        if api.name not in CHANGES:
            continue
        context = RequestContext(services, response_schema(key, version), version, "unit", client)
        for seed in range(3):
            request = random_request(random.Random(f"{key} {version} {seed}"), key, version)
            audit(context, api.name, request, api.refuse(context, request, ErrorCode.request_timed_out))
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert {vars(record)["fields"]["api"] for record in caplog.records} == set(CHANGES)
