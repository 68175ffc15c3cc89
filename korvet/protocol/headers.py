"""Request and response headers (Kafka's RequestHeader.json v0-v2 and ResponseHeader.json v0-v1)."""

from __future__ import annotations

import struct
from typing import Final

import msgspec

_FIXED: Final = struct.Struct(">hhi")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

FIXED_HEADER_BYTES: Final = _FIXED.size


class MalformedRequest(Exception):
    """A frame that isn't a Kafka request. Nothing can be answered: the connection is to be closed."""


class RequestHeader(msgspec.Struct, frozen=True):
    """What every request starts with; `client_id` is empty when the client sent null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str


def peek_api(frame: memoryview) -> tuple[int, int, int]:
    """(api key, api version, correlation id) of a frame, all that every header version shares.

    Raises MalformedRequest when the frame is shorter than that.
    """
    if len(frame) < FIXED_HEADER_BYTES:
        raise MalformedRequest(f"a frame of {len(frame)} bytes holds no request header")
    api_key, api_version, correlation_id = _FIXED.unpack_from(frame)
    return api_key, api_version, correlation_id


def parse_header(frame: memoryview, flexible: bool) -> tuple[RequestHeader, int]:
    """The header of a frame and the position of the request body behind it.

    `flexible` says that tagged fields follow the client id (RequestHeader v2). Raises MalformedRequest.
    """
    api_key, api_version, correlation_id = peek_api(frame)
    position = FIXED_HEADER_BYTES
    if len(frame) < position + 2:
        raise MalformedRequest("the request header ends before the client id")
    (length,) = _INT16.unpack_from(frame, position)
    position += 2
    client_id = ""
    if length >= 0:
        if position + length > len(frame):
            raise MalformedRequest(f"the client id of {length} bytes reaches past the frame")
        try:
            client_id = str(frame[position : position + length], "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("the client id is not UTF-8") from None
        position += length
    if flexible:
        position = _skip_tagged_fields(frame, position)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def response_header(correlation_id: int, flexible: bool) -> bytes:
    """ResponseHeader v1 (with empty tagged fields) when flexible, else v0."""
    return _INT32.pack(correlation_id) + (b"\x00" if flexible else b"")


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > len(frame):
            raise MalformedRequest("a tagged field of the header reaches past the frame")
    return position


def read_unsigned_varint(frame: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most 5 bytes and the position behind it. Raises MalformedRequest."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= len(frame):
            raise MalformedRequest("a varint reaches past the frame")
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedRequest("a varint has more than 5 bytes")


def unsigned_varint(value: int) -> bytes:
    """Kafka's UNSIGNED_VARINT."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
