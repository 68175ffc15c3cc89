"""The shape of a message: walks its bytes and checks every length against what is there, building nothing.

kio reserves memory for as many elements as an array says it has before it reads the first one, and ends the
process where there is not that much memory. So no request reaches it before its arrays are known to fit. Nor
does it pass over tagged fields that it does not know, as KIP-482 has it. All of them are cut out here: what
is tagged in the requests served is for replicas only.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import types
import typing
from functools import cache
from typing import Any, Final, TypeAlias

from korvet.protocol.primitives import MalformedRequest, read_unsigned_varint, skip_tagged_fields

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

_FIXED_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "error_code": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "timedelta_i32": 4,
    "int64": 8,
    "timedelta_i64": 8,
    "datetime_i64": 8,
    "float64": 8,
    "uuid": 16,
}
_WITH_LENGTH: Final = frozenset({"string", "bytes", "records"})


# (start, end) of what is left out
_Cut: TypeAlias = tuple[int, int]


class _Kind(enum.IntEnum):
    """What a step passes over."""

    FIXED = 0
    COMPACT_BYTES = 1
    COMPACT_ARRAY = 2
    TAGGED_FIELDS = 3
    STRING = 4
    BYTES = 5
    ARRAY = 6
    OPTIONAL = 7


class Shape:
    """The layout of one structure of one version."""

    __slots__ = ("_steps", "least_bytes")

    def __init__(self, steps: list[tuple[_Kind, Any]]) -> None:
        self._steps = tuple((int(kind), argument) for kind, argument in steps)
        self.least_bytes = sum(_least_bytes(kind, argument) for kind, argument in steps)

    def check(self, frame: memoryview, position: int) -> tuple[memoryview, int]:
        """The frame and the position of the message in it, without tagged fields.

        Raises MalformedRequest unless a message of this shape lies at `position`.
        """
        cuts: list[_Cut] = []
        try:
            end = self.skip(frame, position, cuts)
        except (IndexError, struct.error):
            end = len(frame) + 1
        if end > len(frame):
            raise MalformedRequest("the request ends before its last field")
        if not cuts:
            return frame, position
        parts: list[memoryview | bytes] = []
        for start, behind in cuts:
            parts += [frame[position:start], b"\x00"]
            position = behind
        return memoryview(b"".join([*parts, frame[position:]])), 0

    def skip(self, frame: memoryview, position: int, cuts: list[_Cut]) -> int:
        """The position behind the message at `position`, which may lie outside the frame if it is no such
        message. Where tagged fields lie is added to `cuts`.
        """
        for kind, argument in self._steps:
            if kind == _FIXED:
                position += argument
            elif kind == _COMPACT_BYTES:
                length = frame[position]
                position += 1
                if length > 0x7F:
                    length, position = read_unsigned_varint(frame, position - 1)
                if length:
                    position += length - 1
            elif kind == _COMPACT_ARRAY:
                count = frame[position]
                position += 1
                if count > 0x7F:
                    count, position = read_unsigned_varint(frame, position - 1)
                position = _skip_elements(frame, position, count - 1, argument, cuts)
            elif kind == _TAGGED_FIELDS:
                if frame[position] == 0:
                    position += 1
                else:
                    start, position = position, skip_tagged_fields(frame, position)
                    cuts.append((start, position))
            elif kind == _ARRAY:
                (count,) = _INT32.unpack_from(frame, position)
                position = _skip_elements(frame, position + 4, count, argument, cuts)
            elif kind == _OPTIONAL:
                # KIP-893: a byte says whether the structure is there.
                position += 1
                if frame[position - 1] < _NULL_FROM:
                    position = argument.skip(frame, position, cuts)
            elif kind == _STRING:
                (length,) = _INT16.unpack_from(frame, position)
                position += 2 + max(length, 0)
            else:
                (length,) = _INT32.unpack_from(frame, position)
                position += 4 + max(length, 0)
        return position


# Looking up an enum's member costs more than the step.
_FIXED: Final = int(_Kind.FIXED)
_COMPACT_BYTES: Final = int(_Kind.COMPACT_BYTES)
_COMPACT_ARRAY: Final = int(_Kind.COMPACT_ARRAY)
_TAGGED_FIELDS: Final = int(_Kind.TAGGED_FIELDS)
_STRING: Final = int(_Kind.STRING)
_ARRAY: Final = int(_Kind.ARRAY)
_OPTIONAL: Final = int(_Kind.OPTIONAL)
# A negative int8 is a null structure.
_NULL_FROM: Final = 0x80


def _skip_elements(frame: memoryview, position: int, count: int, element: Shape, cuts: list[_Cut]) -> int:
    if count <= 0:
        return position
    if count * element.least_bytes > len(frame) - position:
        raise MalformedRequest(f"an array of {count} elements does not fit into the request")
    for _ in range(count):
        position = element.skip(frame, position, cuts)
    return position


def _least_bytes(kind: _Kind, argument: Any) -> int:
    if kind is _Kind.FIXED:
        return int(argument)
    return {_Kind.STRING: 2, _Kind.BYTES: 4, _Kind.ARRAY: 4}.get(kind, 1)


@cache
def shape_of(entity: type) -> Shape:
    """The shape of a kio message or structure."""
    flexible: bool = entity.__flexible__  # type: ignore[attr-defined]
    hints = typing.get_type_hints(entity)
    steps: list[tuple[_Kind, Any]] = []
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            continue
        element = _element_of(hints[field.name])
        optional = _optional_structure(hints[field.name])
        if optional is not None:
            steps.append((_Kind.OPTIONAL, shape_of(optional)))
        elif element is None:
            _add(steps, *_value_step(field.metadata["kafka_type"], flexible))
        else:
            kind = _Kind.COMPACT_ARRAY if flexible else _Kind.ARRAY
            if dataclasses.is_dataclass(element):
                steps.append((kind, shape_of(typing.cast("type", element))))
            else:
                steps.append((kind, Shape([_value_step(field.metadata["kafka_type"], flexible)])))
    if flexible:
        steps.append((_Kind.TAGGED_FIELDS, None))
    return Shape(steps)


def _without_null(hint: Any) -> Any:
    """The type of a hint for what may be null; any other hint itself."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(each for each in typing.get_args(hint) if each is not types.NoneType)
    return hint


def _element_of(hint: Any) -> Any:
    """The element type of an array's hint, None for what is no array."""
    hint = _without_null(hint)
    return typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else None


def _optional_structure(hint: Any) -> type | None:
    """The structure of a hint for one that may be null, None for anything else."""
    found = _without_null(hint)
    if found is hint or not dataclasses.is_dataclass(found):
        return None
    return typing.cast("type", found)


def _value_step(kafka_type: str, flexible: bool) -> tuple[_Kind, Any]:
    if kafka_type in _WITH_LENGTH:
        if flexible:
            return _Kind.COMPACT_BYTES, None
        return (_Kind.STRING if kafka_type == "string" else _Kind.BYTES), None
    return _Kind.FIXED, _FIXED_BYTES[kafka_type]


def _add(steps: list[tuple[_Kind, Any]], kind: _Kind, argument: Any) -> None:
    """Append a step; neighbours of fixed size become one."""
    if kind is _Kind.FIXED and steps and steps[-1][0] is _Kind.FIXED:
        argument += steps.pop()[1]
    steps.append((kind, argument))
