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

ELEMENTS = 250


def long_arrays(rng: random.Random, response: Any, depth: int = 1) -> Any:
    """The response with some hundred elements in each of its arrays of structures, and in those of the first
    element to the given depth.
    """
    hints = typing.get_type_hints(type(response))
    longer = {}
    for field in dataclasses.fields(response):
        hint = hints[field.name]
        for each in (hint, *typing.get_args(hint)):
            if typing.get_origin(each) is tuple and dataclasses.is_dataclass(typing.get_args(each)[0]):
                element = typing.cast("type", typing.get_args(each)[0])
                first, *rest = (make(rng, element) for _ in range(ELEMENTS))
                longer[field.name] = (long_arrays(rng, first, depth - 1) if depth > 1 else first, *rest)
    return dataclasses.replace(response, **longer)


@pytest.mark.parametrize("case", VERSIONS, ids=version_id)
def test_pieces_are_the_whole(case: tuple[int, int]) -> None:
    rng = random.Random(repr(case))
    schema = response_schema(*case)
    responses = [make(rng, response_class(*case)) for _ in range(3)]
    for each in (*responses, long_arrays(rng, responses[0])):
        assert b"".join(schema.pieces(each)) == schema.encode(each)


@pytest.mark.parametrize(
    "case",
    [(32, 4), (9, 9), (0, 13), (24, 5)],
    ids=["one array", "not at the end", "beside tagged fields", "nested"],
)
def test_a_long_response_is_in_many_pieces(case: tuple[int, int]) -> None:
    response = long_arrays(random.Random(0), make(random.Random(0), response_class(*case)), depth=3)
    pieces = list(response_schema(*case).pieces(response))
    assert len(pieces) > ELEMENTS
    assert max(map(len, pieces)) < sum(map(len, pieces)) / 4
