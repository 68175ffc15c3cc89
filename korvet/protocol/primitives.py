"""Kafka's primitive types, as far as they are read or written by hand (its protocol guide names them)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from uuid import UUID

_INT32: Final = struct.Struct(">i")
_NO_UUID: Final = bytes(16)
# Of one structure. The structures that Kafka has today have up to three; clients of later versions may send
# some that are not known here.
_MOST_TAGGED_FIELDS: Final = 48
# Most lengths are small.
_ONE_BYTE: Final = [bytes((value,)) for value in range(0x80)]


class MalformedRequest(Exception):
    """A frame that isn't a Kafka request. Nothing can be answered: the connection is to be closed."""


def read_unsigned_varint(frame: memoryview | bytearray, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 5 bytes and the position behind it. Raises MalformedRequest."""
    try:
        byte = frame[position]
        if byte < 0x80:
            return byte, position + 1
        value = byte & 0x7F
        for shift in (7, 14, 21, 28):
            position += 1
            byte = frame[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position + 1
    except IndexError:
        raise MalformedRequest("a varint reaches past the frame") from None
    raise MalformedRequest("a varint has more than 5 bytes")


def unsigned_varint(value: int) -> bytes:
    """Kafka's UNSIGNED_VARINT."""
    if 0 <= value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def skip_tagged_fields(frame: memoryview, position: int) -> int:
    """The position after the tagged fields (KIP-482) that begin at `position`. Raises MalformedRequest, also
    for more of them than any client sends.
    """
    count, position = read_unsigned_varint(frame, position)
    if count > _MOST_TAGGED_FIELDS:
        raise MalformedRequest(f"a structure has {count} tagged fields, more than {_MOST_TAGGED_FIELDS}")
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise MalformedRequest("a tagged field reaches past the request")
    return position


def length(count: int, flexible: bool) -> bytes:
    """The length of an array or of bytes, compact when flexible; -1 is null."""
    return unsigned_varint(count + 1) if flexible else _INT32.pack(count)


def string(text: str | None, flexible: bool) -> bytes:
    """A string, or null, with its length; compact when flexible."""
    if text is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = text.encode()
    if flexible:
        return unsigned_varint(len(encoded) + 1) + encoded
    return len(encoded).to_bytes(2, "big") + encoded


def uuid_bytes(value: UUID | None) -> bytes:
    """Kafka's UUID; None is the one of zeros."""
    return _NO_UUID if value is None else value.bytes
