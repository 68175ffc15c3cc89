"""The errors in a response: the error codes of the whole, and of its topics, partitions, groups and so on."""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from korvet.protocol.shape import without_null

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kio.schema.errors import ErrorCode


def errors_in(entity: Any) -> Iterator[ErrorCode]:
    """Yield the error codes of a response structure, without those that stand for success."""
    kind: type = type(entity)
    places = _places_in(kind)
    for name in places.codes:
        error = getattr(entity, name)
        if error:
            yield error
    for name in places.structures:
        value = getattr(entity, name)
        for each in value if isinstance(value, tuple) else () if value is None else (value,):
            yield from errors_in(each)


class _Places(NamedTuple):
    """The fields of a structure that hold error codes, and those with structures that do."""

    codes: tuple[str, ...]
    structures: tuple[str, ...]


@cache
def _places_in(structure: type) -> _Places:
    hints = typing.get_type_hints(structure)
    codes, structures = [], []
    for field in dataclasses.fields(structure):
        hint = without_null(hints[field.name])
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if field.metadata.get("kafka_type") == "error_code":
            codes.append(field.name)
        elif dataclasses.is_dataclass(inner) and any(_places_in(typing.cast("type", inner))):
            structures.append(field.name)
    return _Places(tuple(codes), tuple(structures))
