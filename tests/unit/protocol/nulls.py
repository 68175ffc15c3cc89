"""Requests of every API and version in which one array, string or structure is null."""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from typing import TYPE_CHECKING, Any, NamedTuple

from korvet.protocol.schemas import request_class

if TYPE_CHECKING:
    from collections.abc import Iterator

# By Kafka's name of a type: the bytes of a value of fixed size; numbers are 0.
SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "uint16": 2, "error_code": 2, "int32": 4, "uint32": 4,
    "timedelta_i32": 4, "int64": 8, "timedelta_i64": 8, "datetime_i64": 8, "float64": 8, "uuid": 16,
}  # fmt: skip


class Place(NamedTuple):
    """Where a null stands."""

    path: str
    """The names of the fields that lead there."""
    nullable: bool
    """Whether the schema of the version allows it."""


class _Writer:
    """Writes a request whose arrays have one element each and whose strings are empty, with null in the place
    of that number.
    """

    def __init__(self, cls: type, null_at: int) -> None:
        self._flexible = bool(cls.__flexible__)  # type: ignore[attr-defined]
        self._null_at = null_at
        self.places: list[Place] = []
        self.body = b""
        self._structure(cls, "")

    def _is_null(self, path: str, *, nullable: bool) -> bool:
        self.places.append(Place(path, nullable))
        return len(self.places) - 1 == self._null_at

    def _length(self, count: int, size: int) -> None:
        self.body += bytes([count + 1]) if self._flexible else count.to_bytes(size, signed=True)

    def _structure(self, cls: type, path: str) -> None:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if "tag" not in field.metadata:
                kafka_type = field.metadata.get("kafka_type", "")
                self._value(hints[field.name], kafka_type, f"{path}.{field.name}".lstrip("."))
        if self._flexible:
            self.body += b"\x00"

    def _value(self, hint: Any, kafka_type: str, path: str) -> None:
        nullable = typing.get_origin(hint) in (types.UnionType, typing.Union)
        if nullable:
            hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
        if typing.get_origin(hint) is tuple:
            null = self._is_null(path, nullable=nullable)
            self._length(-1 if null else 1, 4)
            if not null:
                self._value(typing.get_args(hint)[0], kafka_type, path + "[]")
        elif dataclasses.is_dataclass(hint) and nullable:
            null = self._is_null(path, nullable=True)
            self.body += b"\xff" if null else b"\x01"
            if not null:
                self._structure(typing.cast("type", hint), path)
        elif dataclasses.is_dataclass(hint):
            self._structure(typing.cast("type", hint), path)
        elif kafka_type in SIZES:
            self.body += bytes(SIZES[kafka_type])
        else:
            null = self._is_null(path, nullable=nullable)
            self._length(-1 if null else 0, 2 if kafka_type == "string" else 4)


def bodies_with_null(api_key: int, api_version: int) -> Iterator[tuple[Place, bytes]]:
    """One body for each array, string and structure of the request, with null there."""
    cls = request_class(api_key, api_version)
    count = len(_Writer(cls, -1).places)
    for number in range(count):
        writer = _Writer(cls, number)
        yield writer.places[number], writer.body


def frame_of(api_key: int, api_version: int, correlation_id: int, body: bytes) -> bytes:
    """A request frame, without its length."""
    flexible = request_class(api_key, api_version).__flexible__
    return struct.pack(">hhih", api_key, api_version, correlation_id, -1) + b"\x00" * bool(flexible) + body
