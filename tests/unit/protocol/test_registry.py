"""The registry, and the refusals of every API in every version."""

from __future__ import annotations

import datetime
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.api.common.context import RequestContext
from korvet.cluster.assignment import Assignment, Broker
from korvet.config.settings import Config
from korvet.protocol import registry
from korvet.protocol.messages import OPERATIONS_NOT_ASKED, response_schema
from korvet.protocol.schemas import request_class, response_class
from tests.unit.protocol.instances import VERSIONS, as_handled, decode_response, random_request, version_id

if TYPE_CHECKING:
    from korvet.protocol.messages import ResponseSchema

EXAMPLES = 20
ERRORS = (ErrorCode.unknown_server_error, ErrorCode.coordinator_load_in_progress, ErrorCode.invalid_request)


def context_of(schema: ResponseSchema, api_version: int) -> RequestContext:
    """A context without connection and without services but for who this broker is."""
    leadership = SimpleNamespace(assignment=Assignment(0, [Broker(1, "localhost", 9092, 0)]))
    services: Any = SimpleNamespace(config=Config(), cluster_id="id", leadership=leadership)
    client: Any = SimpleNamespace(listener="PLAINTEXT")
    return RequestContext(services, schema, api_version, "client", client)


def errors_in(message: Any) -> set[ErrorCode]:
    """Every error code anywhere in a response."""
    found: set[ErrorCode] = set()
    for name in message.__dataclass_fields__:
        value = getattr(message, name)
        if isinstance(value, ErrorCode):
            found.add(value)
        elif isinstance(value, tuple):
            for each in value:
                if hasattr(each, "__dataclass_fields__"):
                    found |= errors_in(each)
    return found


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_every_refusal_can_be_encoded_and_says_the_error(case: tuple[int, int]) -> None:
    api_key, api_version = case
    api = registry.find(api_key)
    assert api is not None
    schema = response_schema(api_key, api_version)
    context = context_of(schema, api_version)
    rng = random.Random(repr(case))
    said = set()
    for number in range(EXAMPLES):
        error = ERRORS[number % len(ERRORS)]
        request = as_handled(*case, random_request(rng, *case))
        response = api.refuse(context, request, error)
        decoded = decode_response(api_key, api_version, schema.encode(response))
        assert errors_in(decoded) <= {error, ErrorCode.none}
        said |= errors_in(decoded)
    assert said - {ErrorCode.none}, "no refusal said its error"


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_authorized_operations_not_asked_for_are_int32_min(case: tuple[int, int]) -> None:
    api_key, api_version = case
    api = registry.find(api_key)
    assert api is not None
    schema = response_schema(api_key, api_version)
    request = as_handled(*case, random_request(random.Random(repr(case)), *case))
    response = api.refuse(context_of(schema, api_version), request, ErrorCode.invalid_request)
    for name in response.__dataclass_fields__:
        if name.endswith("authorized_operations"):
            assert getattr(response, name) == OPERATIONS_NOT_ASKED


def test_every_version_has_both_schemas() -> None:
    for case in VERSIONS:
        assert request_class(*case).__version__ == case[1]
        assert response_class(*case).__version__ == case[1]


def test_only_the_header_of_api_versions_is_never_flexible() -> None:
    """A client cannot yet know what the server speaks (KIP-511)."""
    for case in VERSIONS:
        flexible = response_class(*case).__flexible__
        assert response_schema(*case).flexible is (bool(flexible) and case[0] != 18)


def test_lookups() -> None:
    apis = registry.registered()
    assert [api.key for api in apis] == sorted({api.key for api in apis})
    assert all(registry.find(api.key) is api for api in apis)
    assert registry.find(-1) is None
    assert registry.find(9999) is None
    assert all((api.handle is None) != (api.submit is None) for api in apis)


def test_a_key_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered twice: Metadata, Another"):

        @registry.api(3, "Another", (0, 0), refuse=lambda *_: None)
        async def another(context: object, request: object) -> None: ...


def test_fields_of_other_versions_are_left_out() -> None:
    schema = response_schema(12, 0)
    assert schema.make("HeartbeatResponse", error_code=ErrorCode.none, throttle_time=None) == schema.make(
        "HeartbeatResponse", error_code=ErrorCode.none
    )
    assert schema.has("HeartbeatResponse", "error_code")
    assert not schema.has("HeartbeatResponse", "throttle_time")
    assert not schema.has("Unknown", "error_code")
    with pytest.raises(AttributeError):
        schema.make("Unknown")


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_the_throttle_time_is_found_in_every_response(case: tuple[int, int]) -> None:
    api_key, api_version = case
    api = registry.find(api_key)
    assert api is not None
    schema = response_schema(api_key, api_version)
    known = response_class(api_key, api_version).__dataclass_fields__
    assert (schema.throttle_at is not None) == ("throttle_time" in known)
    if schema.throttle_at is None:
        return
    request = as_handled(*case, random_request(random.Random(repr(case)), *case))
    refusal = api.refuse(context_of(schema, api_version), request, ErrorCode.invalid_request)
    body = bytearray(schema.encode(refusal))
    at = schema.throttle_at % len(body)
    assert body[at : at + 4] == bytes(4)
    body[at : at + 4] = (1234).to_bytes(4)
    told = decode_response(api_key, api_version, bytes(body))
    assert told.throttle_time == datetime.timedelta(milliseconds=1234)
    assert errors_in(told) == errors_in(refusal)
