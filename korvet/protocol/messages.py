"""Kafka's message schemas (by kio): decodes requests, builds and encodes responses."""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import InvalidUnicode, SerialError

from korvet.protocol.primitives import MalformedRequest
from korvet.protocol.schemas import request_class, response_class, response_module
from korvet.protocol.shape import shape_of, without_null

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NO_THROTTLE", "ErrorCode", "RequestSchema", "ResponseSchema", "request_schema", "response_schema"]

NO_THROTTLE: Final = datetime.timedelta(0)

# The value of an operation bit field that the client did not request (INT32_MIN).
OPERATIONS_NOT_ASKED: Final = -(2**31)

# Characters of an error message. It may repeat the client's input, and a string of the older encoding holds
# 32,767 bytes.
_LONGEST_MESSAGE: Final = 1000


# Elements of a response that is encoded in one piece, which takes less than a millisecond.
_WHOLE_ELEMENTS: Final = 200


class RequestSchema:
    """One version of a request: decodes its body."""

    __slots__ = ("_read", "_schema", "_shape", "flexible", "name")

    def __init__(self, api_key: int, api_version: int) -> None:
        self._schema = schema = request_class(api_key, api_version)
        self._read = entity_reader(schema)
        self._shape = shape_of(schema)
        self.name: str = schema.__name__
        self.flexible: bool = bool(schema.__flexible__)

    def decode(self, frame: memoryview, position: int) -> Any:
        """The request at `position`. Every value is a copy.

        Arrays and strings are null only if the schema allows it. Bytes after the message are ignored, as in
        Kafka: librdkafka's Metadata v13 carries some. Raises MalformedRequest for bytes that do not hold the
        message.
        """
        try:
            frame, position = self._shape.check(frame, position)
            try:
                request, _ = self._read(frame, position)
            except InvalidUnicode:
                request, _ = self._read(*shape_of(self._schema, replacing=True).check(frame, position))
        except (MalformedRequest, SerialError, ValueError, OverflowError) as error:
            raise MalformedRequest(f"{self.name}: {error}") from error
        return request


class ResponseSchema:
    """One version of a response: builds its structures by name and encodes the whole."""

    __slots__ = ("_fields", "_module", "flexible", "throttle_at")

    def __init__(self, api_key: int, api_version: int) -> None:
        self._module = response_module(api_key, api_version)
        schema = response_class(api_key, api_version)
        self._fields: dict[str, frozenset[str]] = {}
        # ApiVersions has response header v0 in every version: the client does not know our versions yet
        # (KIP-511).
        self.flexible: bool = bool(schema.__flexible__) and api_key != 18
        self.throttle_at = _throttle_at(schema)
        """The position of the throttle time in the body, from the body's end if negative; None without one.
        """

    def make(self, structure: str, /, **fields: Any) -> Any:
        """A structure of this response by its schema name.

        Fields that this version does not have are left out, so one handler serves every version. A throttle
        time that is not given is 0. An error message is cut to a length that fits in all versions.
        """
        cls = getattr(self._module, structure)
        message = fields.get("error_message")
        if message is not None:
            fields["error_message"] = message[:_LONGEST_MESSAGE]
        known = self._fields.get(structure)
        if known is None:
            known = self._fields[structure] = frozenset(cls.__dataclass_fields__)
        if "throttle_time" in known:
            fields.setdefault("throttle_time", NO_THROTTLE)
        return cls(**{name: value for name, value in fields.items() if name in known})

    def has(self, structure: str, field: str) -> bool:
        """Whether this version's structure has the field."""
        cls = getattr(self._module, structure, None)
        return cls is not None and field in cls.__dataclass_fields__

    def encode(self, response: Any) -> bytes:
        """The response's body, without header and length."""
        return _encode(response)

    def pieces(self, response: Any) -> Iterator[bytes]:
        """The body in pieces that each take little time to encode. Most responses are one piece."""
        return _pieces(response)


class _Hole:
    """Stands for an array whose elements are not encoded, and notes where they belong."""

    __slots__ = ("_output", "elements", "position")

    def __init__(self, elements: tuple[Any, ...], output: io.BytesIO) -> None:
        self.elements = elements
        self._output = output
        self.position = 0

    def __len__(self) -> int:
        return len(self.elements)

    def __iter__(self) -> Iterator[Any]:
        self.position = self._output.tell()
        return iter(())


@cache
def _arrays_in(entity: type) -> tuple[str, ...]:
    """The fields of an entity that hold arrays of entities, without tagged fields."""
    hints = typing.get_type_hints(entity)
    return tuple(
        field.name
        for field in dataclasses.fields(entity)
        if "tag" not in field.metadata
        and typing.get_origin(hint := without_null(hints[field.name])) is tuple
        and dataclasses.is_dataclass(typing.get_args(hint)[0])
    )


def _elements_left(entity: Any, most: int) -> int:
    """`most` without the elements of an entity's arrays; any negative number if there are more."""
    kind: type = type(entity)
    for name in _arrays_in(kind):
        elements = getattr(entity, name) or ()
        most -= len(elements)
        for each in elements:
            if most < 0:
                return most
            most = _elements_left(each, most)
    return most


def _encode(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def _pieces(entity: Any) -> Iterator[bytes]:
    """An entity in one piece, or if it has many elements each of these and what lies between."""
    if _elements_left(entity, _WHOLE_ELEMENTS) >= 0:
        yield _encode(entity)
        return
    kind: type = type(entity)
    output = io.BytesIO()
    holes = {name: _Hole(found, output) for name in _arrays_in(kind) if (found := getattr(entity, name))}
    entity_writer(kind)(output, dataclasses.replace(entity, **holes))
    hollow, start = output.getvalue(), 0
    for hole in holes.values():
        yield hollow[start : hole.position]
        for element in hole.elements:
            yield from _pieces(element)
        start = hole.position
    yield hollow[start:]


def _throttle_at(schema: Any) -> int | None:
    """The throttle time is at the beginning, after error codes, or at the end before the tagged fields, which
    are empty in our responses.
    """
    fields = [field for field in dataclasses.fields(schema) if "tag" not in field.metadata]
    names = [field.name for field in fields]
    if "throttle_time" not in names:
        return None
    index = names.index("throttle_time")
    if index == len(names) - 1 > 0:
        return -5 if schema.__flexible__ else -4
    if any(field.metadata["kafka_type"] != "error_code" for field in fields[:index]):
        raise ValueError(f"{schema.__name__} has its throttle time between others")
    return 2 * index


@cache
def request_schema(api_key: int, api_version: int) -> RequestSchema:
    """The request schema of a version that the registry lists."""
    return RequestSchema(api_key, api_version)


@cache
def response_schema(api_key: int, api_version: int) -> ResponseSchema:
    """The response schema of a version that the registry lists."""
    return ResponseSchema(api_key, api_version)
