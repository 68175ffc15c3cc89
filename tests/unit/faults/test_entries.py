"""Requests of every API and version, divided by what a fault matches, and their responses made one again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from korvet.faults.asked import AskedFault, BadFault, fault_of
from korvet.faults.entries import divide, merged
from korvet.protocol import registry
from korvet.protocol.messages import response_schema
from korvet.protocol.schemas import request_class
from tests.unit.protocol.instances import NAMES, VERSIONS, as_handled, decode_response, make, version_id
from tests.unit.protocol.test_registry import context_of

if TYPE_CHECKING:
    from korvet.faults.table import Fault

REQUESTS = 40
NO_ERROR = ErrorCode.unknown_server_error
"""Of the entries that no fault matches."""


def fault(api: str, **filters: Any) -> Fault | None:
    try:
        return fault_of(AskedFault(api=api, action="fail", error="NOT_COORDINATOR", **filters))
    except BadFault:
        return None


def name_of(topic_id: UUID) -> str:
    return f"name of {topic_id}"


def errors_by_entry(response: Any, at: tuple[Any, ...] = ()) -> set[tuple[Any, ...]]:
    """Each topic, partition and group of a response, with its error."""
    found: set[tuple[Any, ...]] = set()
    for name in response.__dataclass_fields__:
        value = getattr(response, name)
        if isinstance(value, ErrorCode) and at:
            found.add((*at, value))
        elif isinstance(value, tuple) and value and hasattr(value[0], "__dataclass_fields__"):
            for each in value:
                names = (
                    "topic_id",
                    "name",
                    "topic",
                    "group_id",
                    "key",
                    "index",
                    "partition_index",
                    "partition",
                )
                named = tuple(getattr(each, name, None) for name in names)
                found |= errors_by_entry(each, (*at, *named))
    return found


def some_values(request: Any, kind: type) -> list[Any]:
    """The values of a type anywhere in a request."""
    if isinstance(request, kind) and not isinstance(request, bool):
        return [request]
    if isinstance(request, tuple | list):
        return [value for each in request for value in some_values(each, kind)]
    names = getattr(request, "__dataclass_fields__", ())
    return [value for name in names for value in some_values(getattr(request, name), kind)]


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_a_divided_request_gets_one_response_with_every_entry_once(case: tuple[int, int]) -> None:
    key, version = case
    api = registry.find(key)
    assert api is not None
    schema = response_schema(key, version)
    context = context_of(schema, version)
    rng = random.Random(repr(case))
    divided = 0
    for _ in range(REQUESTS):
        sent = make(rng, request_class(key, version))
        request = as_handled(key, version, sent)
        texts = [*some_values(sent, str), *map(name_of, some_values(sent, UUID)), "absent"]
        numbers = [value for value in some_values(sent, int) if value >= 0] or [0]
        chosen = [
            fault(NAMES[key]),
            fault(NAMES[key], topic=rng.choice(texts)),
            fault(NAMES[key], topic=rng.choice(texts), partition=rng.choice(numbers)),
            fault(NAMES[key], group=rng.choice(texts)),
        ]
        for each in filter(None, chosen):
            parts = divide(request, each, name_of)
            assert parts.matched is not None or parts.others is not None
            if parts.others is None:
                assert parts.matched == request
                continue
            if parts.matched is None:
                assert parts.others == request
                continue
            divided += 1
            whole = errors_by_entry(api.refuse(context, request, NO_ERROR))
            refused = api.refuse(context, parts.matched, ErrorCode.not_coordinator)
            others = api.refuse(context, parts.others, NO_ERROR)
            answer = decode_response(key, version, schema.encode(merged(others, refused)))
            told = errors_by_entry(answer)
            assert told == errors_by_entry(refused) | errors_by_entry(others)
            assert {entry[:-1] for entry in told} == {entry[:-1] for entry in whole}
    # Few random requests name a topic, and another one.
    assert divided or fault(NAMES[key], topic="a") is None
