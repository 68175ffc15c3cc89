"""A response that is encoded in pieces has the bytes of one that is encoded in one go."""

from __future__ import annotations

import dataclasses
import random
import typing
from typing import Any

import pytest

from korvet.protocol.messages import response_schema
from korvet.protocol.schemas import response_class
from tests.unit.protocol.instances import VERSIONS, make, version_id


def long_arrays(rng: random.Random, response: Any) -> Any:
    """The response with some hundred elements in each of its own arrays of structures."""
    hints = typing.get_type_hints(type(response))
    longer = {}
    for field in dataclasses.fields(response):
        hint = hints[field.name]
        for each in (hint, *typing.get_args(hint)):
            if typing.get_origin(each) is tuple and dataclasses.is_dataclass(typing.get_args(each)[0]):
                (element, *_) = typing.get_args(each)
                longer[field.name] = tuple(make(rng, typing.cast("type", element)) for _ in range(250))
    return dataclasses.replace(response, **longer)


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_pieces_are_the_whole(case: tuple[int, int]) -> None:
    rng = random.Random(repr(case))
    schema = response_schema(*case)
    responses = [make(rng, response_class(*case)) for _ in range(3)]
    for each in (*responses, long_arrays(rng, responses[0])):
        assert b"".join(schema.pieces(each)) == schema.encode(each)


def test_a_long_response_is_in_many_pieces() -> None:
    response = long_arrays(random.Random(0), make(random.Random(0), response_class(32, 4)))
    assert len(list(response_schema(32, 4).pieces(response))) > 250
