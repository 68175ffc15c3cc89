"""What a test asks for, in JSON, and what is said about mistakes."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from korvet import api
from korvet.faults.asked import AskedFault, AskedLeader, BadFault, decode, fault_of
from korvet.faults.table import MOST_FAULTS, Action, Fault, FaultTable, TooManyFaults
from korvet.protocol import registry

api.load_all()


def asked(**fields: object) -> Fault:
    return fault_of(decode(json.dumps(fields).encode(), AskedFault))


def test_a_fault_for_one_request_of_any_client() -> None:
    assert asked(api="Heartbeat", action="disconnect") == Fault(api="Heartbeat", action=Action.DISCONNECT)


def test_every_property() -> None:
    filters = {"topic": "orders", "partition": 2, "client_id": "app"}
    assert asked(api="Produce", action="fail", error="NOT_ENOUGH_REPLICAS", times=None, **filters) == Fault(
        api="Produce",
        action=Action.FAIL,
        error=ErrorCode.not_enough_replicas,
        times=None,
        topic="orders",
        partition=2,
        client_id="app",
    )
    assert asked(api="JoinGroup", action="delay", ms=5, group="g").delay_ms == 5


@pytest.mark.parametrize("name", sorted(each.name for each in registry.registered()))
def test_every_api_and_every_error(name: str) -> None:
    for error in ErrorCode:
        if error is not ErrorCode.none:
            assert asked(api=name, action="fail", error=error.name.upper()).error is error


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"action": "ignore"},
            "missing required field `api`; the fields of the JSON object are api, action,",
        ),
        (
            {"api": "Produce", "action": "ignore", "topics": "a"},
            "unknown field `topics`; the fields .* topic,",
        ),
        ({"api": "Produce", "action": "ignore", "times": "2"}, r"Expected `int \| null`, got `str`"),
        ({"api": "produce", "action": "ignore"}, "there is no API 'produce', but .*Produce, .*"),
        (
            {"api": "Produce", "action": "drop"},
            "no action 'drop', but delay, disconnect, fail, ignore, lose_a",
        ),
        ({"api": "Produce", "action": "fail"}, "the action fail needs an error, for example NOT_LEADER"),
        ({"api": "Produce", "action": "fail", "error": "NONE"}, "there is no error 'NONE', but .*NOT_COORD"),
        ({"api": "Produce", "action": "fail", "error": "6"}, "there is no error '6', but .*BROKER_NOT_AVAIL"),
        ({"api": "Produce", "action": "ignore", "error": "NOT_COORDINATOR"}, "belongs to the action fail"),
        ({"api": "Fetch", "action": "delay"}, "needs ms from 1 to 3600000"),
        ({"api": "Fetch", "action": "delay", "ms": 0}, "needs ms from 1 to 3600000"),
        ({"api": "Fetch", "action": "ignore", "ms": 1}, "ms is given, which belongs to the action delay"),
        ({"api": "Produce", "action": "ignore", "times": 0}, "times is 0: at least one request"),
        ({"api": "Heartbeat", "action": "ignore", "topic": "t"}, "Heartbeat cannot .* topic: .* Fetch, "),
        ({"api": "Metadata", "action": "ignore", "topic": "t", "partition": 0}, "Metadata .* its partition"),
        ({"api": "Produce", "action": "ignore", "group": "g"}, "Produce cannot .* group: .*, Heartbeat, "),
        ({"api": "Produce", "action": "ignore", "partition": 0}, "partition is given without a topic"),
        ({"api": "Produce", "action": "ignore", "topic": "t", "partition": -1}, "partition is -1"),
    ],
)
def test_a_mistake_is_explained_with_the_names_that_there_are(fields: dict[str, object], said: str) -> None:
    with pytest.raises(BadFault, match=f"(?s){said}"):
        asked(**fields)


@given(st.binary(max_size=50) | st.sampled_from([b"[]", b"{", b"null", b"\xff", b'{"topic": null}']))
def test_what_is_no_json_object_is_explained(body: bytes) -> None:
    with pytest.raises(BadFault, match="the fields of the JSON object are topic, partition"):
        decode(body, AskedLeader)


def test_the_number_of_faults_is_limited() -> None:
    table = FaultTable()
    fault = asked(api="Heartbeat", action="ignore")
    for _ in range(MOST_FAULTS):
        table.add(fault)
    with pytest.raises(TooManyFaults, match="clear them"):
        table.add(fault)
    table.clear()
    assert table.add(msgspec.structs.replace(fault, times=2)).number == MOST_FAULTS + 1
