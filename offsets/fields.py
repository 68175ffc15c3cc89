"""Kafka's flexible structures (KIP-482), declared field by field: how each one is read, written and shown."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from korvet.offsets.wire import DecodeError, EncodeError, Reader, Writer, uuid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class FieldType(Protocol):
    """A type of field. `read` raises DecodeError, `write` EncodeError for what does not fit."""

    def read(self, reader: Reader, field: str) -> Any:
        """The next value."""

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append a value."""

    def json(self, value: Any) -> Any:
        """A value as Kafka's JSON converters show it."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type that Reader and Writer have a method for."""

    reading: Callable[[Reader, str], Any]
    writing: Callable[[Writer, Any, str], None]
    show: Callable[[Any], Any] = lambda value: value

    def read(self, reader: Reader, field: str) -> Any:
        """The next value."""
        return self.reading(reader, field)

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append a value."""
        self.writing(writer, value, field)

    def json(self, value: Any) -> Any:
        """Bytes in base64, topic IDs in URL-safe base64, other values unchanged."""
        return None if value is None else self.show(value)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


INT8: Final = Primitive(lambda reader, _: reader.int8(), lambda w, value, field: w.int8(value, field))
INT16: Final = Primitive(lambda reader, _: reader.int16(), lambda w, value, field: w.int16(value, field))
UINT16: Final = Primitive(lambda reader, _: reader.uint16(), lambda w, value, field: w.uint16(value, field))
INT32: Final = Primitive(lambda reader, _: reader.int32(), lambda w, value, field: w.int32(value, field))
INT64: Final = Primitive(lambda reader, _: reader.int64(), lambda w, value, field: w.int64(value, field))
UUID: Final = Primitive(
    lambda reader, _: reader.uuid(), lambda w, value, field: w.uuid(value, field), uuid_text
)
STRING: Final = Primitive(
    lambda reader, field: reader.string(field, compact=True),
    lambda writer, value, field: writer.string(value, field, compact=True),
)
NULLABLE_STRING: Final = Primitive(
    lambda reader, field: reader.nullable_string(field, compact=True),
    lambda writer, value, field: writer.nullable_string(value, field, compact=True),
)
BYTES: Final = Primitive(
    lambda reader, field: reader.blob(field, compact=True),
    lambda writer, value, field: writer.blob(value, field, compact=True),
    _base64,
)


@dataclass(frozen=True, slots=True)
class Array:
    """A compact array, as a tuple."""

    element: FieldType

    def read(self, reader: Reader, field: str) -> tuple[Any, ...]:
        """The next array."""
        count = reader.array_length(field, compact=True)
        return tuple(self.element.read(reader, field) for _ in range(count))

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append an array."""
        if value is None:
            raise EncodeError(f"{field} may not be null")
        writer.array_length(len(value), field, compact=True)
        for item in value:
            self.element.write(writer, item, field)

    def json(self, value: Any) -> Any:
        """A list."""
        return [self.element.json(item) for item in value]


@dataclass(frozen=True, slots=True)
class NullableArray:
    """A compact array or null."""

    element: FieldType

    def read(self, reader: Reader, field: str) -> tuple[Any, ...] | None:
        """The next array; None for null."""
        count = reader.nullable_array_length(field)
        return None if count is None else tuple(self.element.read(reader, field) for _ in range(count))

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append an array or null."""
        if value is None:
            writer.array_length(-1, field, compact=True)
        else:
            Array(self.element).write(writer, value, field)

    def json(self, value: Any) -> Any:
        """A list or None."""
        return None if value is None else Array(self.element).json(value)


@dataclass(frozen=True, slots=True)
class Struct:
    """A structure within another, by the LAYOUT of its class."""

    of: type[Any]

    def read(self, reader: Reader, field: str) -> Any:
        """The next structure."""
        return self.of.LAYOUT.read(reader)

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append a structure."""
        if not isinstance(value, self.of):
            raise EncodeError(f"{field} is no {self.of.__name__}")
        self.of.LAYOUT.write(writer, value)

    def json(self, value: Any) -> Any:
        """An object."""
        return self.of.LAYOUT.json(value)


@dataclass(frozen=True, slots=True)
class Nullable:
    """A structure or null: an int8 comes first, 1 for a structure and -1 for null."""

    of: type[Any]

    def read(self, reader: Reader, field: str) -> Any:
        """The next structure; None for null."""
        return _present(reader.int8(), -1, field) and Struct(self.of).read(reader, field)

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append a structure or null."""
        writer.int8(-1 if value is None else 1, field)
        if value is not None:
            Struct(self.of).write(writer, value, field)

    def json(self, value: Any) -> Any:
        """An object or None."""
        return None if value is None else Struct(self.of).json(value)


@dataclass(frozen=True, slots=True)
class TaggedNullable:
    """A structure or null in a tagged field: a varint comes first, 1 for a structure and 0 for null."""

    of: type[Any]

    def read(self, reader: Reader, field: str) -> Any:
        """The next structure; None for null."""
        return _present(reader.unsigned_varint(), 0, field) and Struct(self.of).read(reader, field)

    def write(self, writer: Writer, value: Any, field: str) -> None:
        """Append a structure or null."""
        writer.unsigned_varint(0 if value is None else 1, field)
        if value is not None:
            Struct(self.of).write(writer, value, field)

    def json(self, value: Any) -> Any:
        """An object or None."""
        return None if value is None else Struct(self.of).json(value)


def _present(found: int, null: int, field: str) -> bool | None:
    """True for 1, None for `null`. Raises DecodeError."""
    if found not in (null, 1):
        raise DecodeError(f"{field} is neither there nor null: {found}")
    return None if found == null else True


@dataclass(frozen=True, slots=True)
class Tagged:
    """A tagged field: written only if its value is not the default."""

    tag: int
    kind: FieldType
    default: Any


class Layout:
    """The fields of one class in order, then its tagged fields and unknown tagged fields."""

    __slots__ = ("_of", "_plain", "_tagged", "fields")

    def __init__(self, of: type[Any], fields: Mapping[str, Any]) -> None:
        self._of = of
        self.fields = fields
        self._plain = {name: kind for name, kind in fields.items() if not isinstance(kind, Tagged)}
        self._tagged = {kind.tag: (name, kind) for name, kind in fields.items() if isinstance(kind, Tagged)}

    def read(self, reader: Reader) -> Any:
        """The next structure. Raises DecodeError if it is damaged."""
        values = {name: kind.read(reader, name) for name, kind in self._plain.items()}
        unknown = []
        values |= {name: field.default for name, field in self._tagged.values()}
        for tag, data in reader.tagged_fields():
            name, field = self._tagged.get(tag, ("", None))
            if field is not None:
                inner = Reader(data)
                values[name] = field.kind.read(inner, name)
                inner.finish()
            if field is None or values[name] == field.default:
                unknown.append((tag, data))
        return self._of(**values, unknown_tags=tuple(unknown))

    def write(self, writer: Writer, value: Any) -> None:
        """Append a structure. Raises EncodeError if a field does not fit."""
        for name, kind in self._plain.items():
            kind.write(writer, getattr(value, name), name)
        tags = []
        for tag, (name, field) in self._tagged.items():
            content = getattr(value, name)
            if content != field.default:
                inner = Writer()
                field.kind.write(inner, content, name)
                tags.append((tag, inner.done()))
        # A known tag among the unknown ones has the default as its value.
        writer.tagged_fields(tuple(sorted((*tags, *value.unknown_tags), key=lambda field: field[0])))

    def json(self, value: Any) -> dict[str, Any]:
        """The fields by Kafka's names, in the order of the schema; tagged ones only if they are not the
        default.
        """
        shown = {}
        for name, kind in self.fields.items():
            content = getattr(value, name)
            if not isinstance(kind, Tagged):
                shown[_camel(name)] = kind.json(content)
            elif content != kind.default:
                shown[_camel(name)] = kind.kind.json(content)
        return shown


def lay_out(of: type[Any], **fields: Any) -> None:
    """Give a class its LAYOUT: the kinds of its fields in the order of the schema."""
    of.LAYOUT = Layout(of, fields)


# Kafka's names of the fields that have another name here.
_NAMES: Final = {"metadata_version": "version"}


def _camel(name: str) -> str:
    head, *rest = _NAMES.get(name, name).split("_")
    return head + "".join(word.capitalize() for word in rest)
