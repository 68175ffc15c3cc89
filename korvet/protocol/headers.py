"""Request and response headers (Kafka's RequestHeader.json v0-v2 and ResponseHeader.json v0-v1)."""

from __future__ import annotations

import struct
from typing import Final

from korvet.protocol.primitives import MalformedRequest, skip_tagged_fields, text

_FIXED: Final = struct.Struct(">hhi")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")

FIXED_HEADER_BYTES: Final = _FIXED.size
# The largest frame whose memory is used again. Values may be views of a larger frame, without a copy.
LASTING_FRAME_BYTES: Final = 256 * 1024


def peek_api(frame: memoryview) -> tuple[int, int, int]:
    """(API key, API version, correlation ID) of a frame: the fields that all header versions share.

    Raises MalformedRequest if the frame is shorter than that.
    """
    try:
        return _FIXED.unpack_from(frame)
    except struct.error:
        raise MalformedRequest(f"a frame of {len(frame)} bytes holds no request header") from None


def parse_header(frame: memoryview, flexible: bool) -> tuple[str, int]:
    """The client ID in the header of a frame, and the position of the request body. Null is an empty ID.

    `flexible`: tagged fields follow the client ID (RequestHeader v2). Raises MalformedRequest.
    """
    try:
        (length,) = _INT16.unpack_from(frame, FIXED_HEADER_BYTES)
    except struct.error:
        raise MalformedRequest("the request header ends before the client id") from None
    position = FIXED_HEADER_BYTES + 2
    client_id = ""
    if length >= 0:
        if position + length > len(frame):
            raise MalformedRequest(f"the client id of {length} bytes reaches past the frame")
        client_id = text(frame[position : position + length])
        position += length
    if flexible:
        at_end = position == len(frame)
        position = skip_tagged_fields(frame, position) if at_end or frame[position] else position + 1
    return client_id, position


def response_header(correlation_id: int, flexible: bool) -> bytes:
    """ResponseHeader v1 (with empty tagged fields) if flexible, otherwise v0."""
    return _INT32.pack(correlation_id) + (b"\x00" if flexible else b"")
