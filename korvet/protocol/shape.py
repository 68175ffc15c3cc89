"""The shape of a message: checks every length in its bytes against the frame, and builds nothing.

kio reserves memory for all elements of an array before it reads the first one, and ends the process if there
is not enough memory. So no request reaches kio until its arrays are known to fit. kio also reads null for any
compact array or string. Here, only fields that the version's schema calls nullable may be null, so handlers
get no other null. kio does not skip unknown tagged fields (KIP-482). All tagged fields are cut out here: in
the requests that korvet serves, they are for replicas only. kio refuses strings that are not UTF-8: a shape
that is `replacing` replaces them by what Kafka reads instead.
"""

from __future__ import annotations

import dataclasses
import enum
import struct
import types
import typing
from functools import cache
from typing import Any, Final, TypeAlias

from korvet.offsets.wire import MAX_REQUEST_ELEMENTS, MAX_STRING_BYTES
from korvet.protocol.primitives import (
    MalformedRequest,
    read_length,
    read_string,
    read_unsigned_varint,
    skip_tagged_fields,
    string,
)

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

# The longest bytes: only the frame limits them.
_LONGEST_BYTES: Final = 2**31 - 1

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


# (start, end, bytes in its place) of a part that kio does not read
_Cut: TypeAlias = tuple[int, int, bytes]


class _Kind(enum.IntEnum):
    """The kind of field that a step skips."""

    FIXED = 0
    COMPACT_BYTES = 1
    COMPACT_ARRAY = 2
    TAGGED_FIELDS = 3
    STRING = 4
    BYTES = 5
    ARRAY = 6
    OPTIONAL = 7
    REPLACED_STRING = 8


class _Value(typing.NamedTuple):
    """The argument of a step over a string or bytes."""

    longest_bytes: int
    required: str
    """The field's name if it must not be null, otherwise empty."""


class _Elements(typing.NamedTuple):
    """The argument of a step over an array."""

    shape: Shape
    """The shape of each element."""
    required: str
    """The field's name if it must not be null, otherwise empty."""


class _Walk:
    """The findings of the steps through one message."""

    __slots__ = ("cuts", "elements")

    def __init__(self) -> None:
        self.cuts: list[_Cut] = []
        self.elements = 0

    def count(self, elements: int) -> None:
        """Add array elements or tagged fields. Raises MalformedRequest if these are too many."""
        self.elements += elements
        if self.elements > MAX_REQUEST_ELEMENTS:
            check_elements(self.elements)


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
        walk = _Walk()
        try:
            end = self.skip(frame, position, walk)
        except (IndexError, struct.error):
            end = len(frame) + 1
        if end > len(frame):
            raise MalformedRequest("the request ends before its last field")
        if not walk.cuts:
            return frame, position
        parts: list[memoryview | bytes] = []
        for start, end, instead in walk.cuts:
            parts += [frame[position:start], instead]
            position = end
        return memoryview(b"".join([*parts, frame[position:]])), 0

    def skip(self, frame: memoryview, position: int, walk: _Walk) -> int:
        """The position after the message at `position`. It may be outside the frame if the frame does not
        hold the message.
        """
        for kind, argument in self._steps:
            if kind == _FIXED:
                position += argument
            elif kind == _COMPACT_BYTES:
                length = frame[position]
                position += 1
                if length > 0x7F:
                    length, position = read_unsigned_varint(frame, position - 1)
                    if length > argument.longest_bytes + 1:
                        raise MalformedRequest(f"a string of {length - 1} bytes is too long")
                if length:
                    position += length - 1
                elif argument.required:
                    raise MalformedRequest(f"{argument.required} is null")
            elif kind == _COMPACT_ARRAY:
                count = frame[position]
                position += 1
                if count > 0x7F:
                    count, position = read_unsigned_varint(frame, position - 1)
                position = _skip_elements(frame, position, count - 1, argument, walk)
            elif kind == _TAGGED_FIELDS:
                if frame[position] == 0:
                    position += 1
                else:
                    start, position = position, skip_tagged_fields(frame, position)
                    # `skip_tagged_fields` accepts counts that fit into one byte only.
                    walk.count(frame[start] & 0x7F)
                    walk.cuts.append((start, position, b"\x00"))
            elif kind == _ARRAY:
                (count,) = _INT32.unpack_from(frame, position)
                position = _skip_elements(frame, position + 4, count, argument, walk)
            elif kind == _OPTIONAL:
                # KIP-893: a byte indicates whether the structure is there.
                position += 1
                if frame[position - 1] < _NULL_FROM:
                    position = argument.skip(frame, position, walk)
            elif kind == _REPLACED_STRING:
                start, (text, position) = position, read_string(frame, position, argument)
                encoded = string(text, argument)
                if encoded != frame[start:position]:
                    walk.cuts.append((start, position, encoded))
            else:
                if kind == _STRING:
                    (length,) = _INT16.unpack_from(frame, position)
                    position += 2
                else:
                    (length,) = _INT32.unpack_from(frame, position)
                    position += 4
                if length >= 0:
                    position += length
                elif argument.required:
                    raise MalformedRequest(f"{argument.required} is null")
        return position


# As module constants: the lookup of an enum's member takes longer than the step.
_FIXED: Final = int(_Kind.FIXED)
_COMPACT_BYTES: Final = int(_Kind.COMPACT_BYTES)
_COMPACT_ARRAY: Final = int(_Kind.COMPACT_ARRAY)
_TAGGED_FIELDS: Final = int(_Kind.TAGGED_FIELDS)
_STRING: Final = int(_Kind.STRING)
_ARRAY: Final = int(_Kind.ARRAY)
_OPTIONAL: Final = int(_Kind.OPTIONAL)
_REPLACED_STRING: Final = int(_Kind.REPLACED_STRING)
# A negative int8 is a null structure.
_NULL_FROM: Final = 0x80


def read_array(
    frame: memoryview, position: int, flexible: bool, name: str, least_bytes: int
) -> tuple[int, int]:
    """For decoders written by hand: the number of elements of an array, and the position of the first one.

    `name` is the array's, `least_bytes` the size of its smallest element. Raises MalformedRequest for null
    and for an array that does not fit into the frame; IndexError or struct.error if the frame ends.
    """
    if flexible and (count := frame[position]) < 0x80:
        # Most arrays: saves a call.
        count, position = count - 1, position + 1
    else:
        count, position = read_length(frame, position, flexible)
    if count < 0:
        raise MalformedRequest(f"{name} is null")
    if count * least_bytes > len(frame) - position:
        raise MalformedRequest(f"an array of {count} elements does not fit into the request")
    return count, position


def skip_tags(frame: memoryview, position: int, elements: int) -> tuple[int, int]:
    """For decoders written by hand: the position after the tagged fields of a structure, and `elements` with
    these counted. Raises MalformedRequest for too many of them; IndexError if the frame ends.
    """
    # `skip_tagged_fields` accepts counts that fit into one byte only.
    count = frame[position]
    if count == 0:
        return position + 1, elements
    elements = check_elements(elements + (count & 0x7F))
    return skip_tagged_fields(frame, position), elements


def check_elements(elements: int) -> int:
    """The number of array elements and tagged fields so far. Raises MalformedRequest if it is too large."""
    if elements > MAX_REQUEST_ELEMENTS:
        raise MalformedRequest(f"the request has more than {MAX_REQUEST_ELEMENTS} elements")
    return elements


def _skip_elements(frame: memoryview, position: int, count: int, elements: _Elements, walk: _Walk) -> int:
    shape, required = elements
    if count <= 0:
        if count < 0 and required:
            raise MalformedRequest(f"{required} is null")
        return position
    if count * shape.least_bytes > len(frame) - position:
        raise MalformedRequest(f"an array of {count} elements does not fit into the request")
    walk.count(count)
    for _ in range(count):
        position = shape.skip(frame, position, walk)
    return position


def _least_bytes(kind: _Kind, argument: Any) -> int:
    if kind is _Kind.FIXED:
        return int(argument)
    if kind is _Kind.REPLACED_STRING:
        return 1 if argument else 2
    return {_Kind.STRING: 2, _Kind.BYTES: 4, _Kind.ARRAY: 4}.get(kind, 1)


@cache
def shape_of(entity: type, *, replacing: bool = False) -> Shape:
    """The shape of a kio message or structure. `replacing`: `check` makes all its strings UTF-8."""
    flexible: bool = entity.__flexible__  # type: ignore[attr-defined]
    hints = typing.get_type_hints(entity)
    steps: list[tuple[_Kind, Any]] = []
    for field in dataclasses.fields(entity):
        if "tag" in field.metadata:
            continue
        hint = without_null(hints[field.name])
        required = field.name if hint is hints[field.name] else ""
        if typing.get_origin(hint) is tuple:
            kind = _Kind.COMPACT_ARRAY if flexible else _Kind.ARRAY
            (element, *_) = typing.get_args(hint)
            if dataclasses.is_dataclass(element):
                shape = shape_of(typing.cast("type", element), replacing=replacing)
            else:
                name = f"an element of {field.name}"
                shape = Shape([_value_step(field.metadata["kafka_type"], flexible, name, replacing)])
            steps.append((kind, _Elements(shape, required)))
        elif not required and dataclasses.is_dataclass(hint):
            steps.append((_Kind.OPTIONAL, shape_of(typing.cast("type", hint), replacing=replacing)))
        else:
            _add(steps, *_value_step(field.metadata["kafka_type"], flexible, required, replacing))
    if flexible:
        steps.append((_Kind.TAGGED_FIELDS, None))
    return Shape(steps)


def without_null(hint: Any) -> Any:
    """The type of a hint without `None`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(each for each in typing.get_args(hint) if each is not types.NoneType)
    return hint


def _value_step(kafka_type: str, flexible: bool, required: str, replacing: bool) -> tuple[_Kind, Any]:
    """required: the field's name if it must not be null, otherwise empty."""
    if kafka_type not in _WITH_LENGTH:
        return _Kind.FIXED, _FIXED_BYTES[kafka_type]
    if kafka_type == "string" and replacing:
        return _Kind.REPLACED_STRING, flexible
    if kafka_type == "string":
        value = _Value(MAX_STRING_BYTES, required)
        return (_Kind.COMPACT_BYTES if flexible else _Kind.STRING), value
    return (_Kind.COMPACT_BYTES if flexible else _Kind.BYTES), _Value(_LONGEST_BYTES, required)


def _add(steps: list[tuple[_Kind, Any]], kind: _Kind, argument: Any) -> None:
    """Append a step. Adjacent steps of fixed size become one."""
    if kind is _Kind.FIXED and steps and steps[-1][0] is _Kind.FIXED:
        argument += steps.pop()[1]
    steps.append((kind, argument))
