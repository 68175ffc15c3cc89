"""Kafka's primitive types: a bounded reader and a checking writer.

The reader accepts exactly one encoding per value (shortest varints, -1 as the only null length), so that
decoded bytes encode to the same bytes again.
"""

from __future__ import annotations

import base64
import re
import struct
from typing import Final

TaggedFields = tuple[tuple[int, bytes], ...]
"""Tagged fields (KIP-482) as (tag, bytes) in ascending order of tags."""

# Kafka's readers refuse longer strings in every version, compact ones included.
MAX_STRING_BYTES: Final = 0x7FFF
# Tagged fields of one structure. Kafka's structures have up to three today; clients of later versions may
# send unknown ones.
MAX_TAGGED_FIELDS: Final = 48
# Array elements and tagged fields of one request. The largest requests of real clients name each partition of
# a large cluster once. Each element takes a microsecond, during which no other client is served.
MAX_REQUEST_ELEMENTS: Final = 100_000
MAX_INT32: Final = (1 << 31) - 1
UUID_BYTES: Final = 16
# An unsigned varint is a 32 bit number in groups of seven.
_MAX_VARINT_SHIFT: Final = 28

_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")

_INT8: Final = struct.Struct(">b")
_INT16: Final = struct.Struct(">h")
_UINT16: Final = struct.Struct(">H")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


def uuid_text(data: bytes) -> str:
    """A UUID (of a topic, of a cluster) as Kafka writes it: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class DecodeError(ValueError):
    """Bytes that do not follow Kafka's schema."""


class EncodeError(ValueError):
    """A field that does not fit the version in which it is written."""


class Reader:
    """Reads one message from its start; every read raises DecodeError if the bytes hold no such value."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = bytes(data)
        self._position = 0

    def int8(self) -> int:
        value: int = _INT8.unpack(self.take(1))[0]
        return value

    def uint16(self) -> int:
        value: int = _UINT16.unpack(self.take(2))[0]
        return value

    def uuid(self) -> bytes:
        return self.take(UUID_BYTES)

    def int16(self) -> int:
        value: int = _INT16.unpack(self.take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack(self.take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack(self.take(8))[0]
        return value

    def unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, _MAX_VARINT_SHIFT + 1, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise DecodeError(f"varint at byte {self._position} is longer than it need be")
                break
        else:
            raise DecodeError(f"varint at byte {self._position} does not end")
        if value >> 32:
            raise DecodeError(f"varint at byte {self._position} exceeds 32 bits")
        return value

    def string(self, field: str, *, compact: bool = False) -> str:
        text = self.nullable_string(field, compact=compact)
        if text is None:
            raise DecodeError(f"{field} is null")
        return text

    def nullable_string(self, field: str, *, compact: bool = False) -> str | None:
        length = self.unsigned_varint() - 1 if compact else self.int16()
        if length == -1:
            return None
        if not 0 <= length <= MAX_STRING_BYTES:
            raise DecodeError(f"{field} has length {length}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"{field} is not UTF-8: {error.reason}") from error

    def blob(self, field: str, *, compact: bool = False) -> bytes:
        data = self.nullable_blob(field, compact=compact)
        if data is None:
            raise DecodeError(f"{field} is null")
        return data

    def nullable_blob(self, field: str, *, compact: bool = False) -> bytes | None:
        length = self.unsigned_varint() - 1 if compact else self.int32()
        if length == -1:
            return None
        if not 0 <= length <= MAX_INT32:
            raise DecodeError(f"{field} has length {length}")
        return self.take(length)

    def array_length(self, field: str, *, compact: bool = False) -> int:
        count = self.unsigned_varint() - 1 if compact else self.int32()
        # Every element takes at least a byte, so a damaged count cannot make a caller build a huge list.
        if not 0 <= count <= len(self._data) - self._position:
            raise DecodeError(f"{field} has {count} elements in {len(self._data) - self._position} bytes")
        return count

    def nullable_array_length(self, field: str) -> int | None:
        """The length of a compact array; None for null."""
        start = self._position
        if self.unsigned_varint() == 0:
            return None
        self._position = start
        return self.array_length(field, compact=True)

    def tagged_fields(self) -> TaggedFields:
        fields: list[tuple[int, bytes]] = []
        for _ in range(self.unsigned_varint()):
            tag = self.unsigned_varint()
            if fields and tag <= fields[-1][0]:
                raise DecodeError(f"tag {tag} follows tag {fields[-1][0]}")
            fields.append((tag, self.take(self.unsigned_varint())))
        return tuple(fields)

    def take(self, count: int) -> bytes:
        start, end = self._position, self._position + count
        if end > len(self._data):
            raise DecodeError(f"{count} bytes needed at byte {start} of {len(self._data)}")
        self._position = end
        return self._data[start:end]

    def peek(self, count: int) -> bytes:
        """The next bytes without taking them; fewer if there are not as many."""
        return self._data[self._position : self._position + count]

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._position)

    def finish(self) -> None:
        left = len(self._data) - self._position
        if left:
            raise DecodeError(f"{left} bytes are left over at byte {self._position}")


def replaced_text(data: bytes) -> str:
    """The text of a request's string that is not UTF-8. U+FFFD replaces each malformed sequence, as in Kafka.

    Raises DecodeError if the text needs more bytes than a string can have: no response could repeat it.
    """
    # Java replaces half a surrogate pair as one sequence, Python each of its bytes.
    text = _SURROGATE.sub(b"\xff", data).decode("utf-8", "replace")
    if not fits_string(text):
        raise DecodeError(
            f"a string takes more than {MAX_STRING_BYTES} bytes with U+FFFD for what is not UTF-8"
        )
    return text


def fits_string(text: str) -> bool:
    """Whether Kafka's records can hold `text`: it has at most 32,767 bytes in UTF-8."""
    if len(text) <= MAX_STRING_BYTES // 4:
        return True
    try:
        return len(text) <= MAX_STRING_BYTES and len(text.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


class Writer:
    """Builds one message; every write raises EncodeError if the value does not fit its type."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def int8(self, value: int, field: str) -> None:
        self._number(_INT8, value, field)

    def uint16(self, value: int, field: str) -> None:
        self._number(_UINT16, value, field)

    def uuid(self, value: bytes, field: str) -> None:
        if len(value) != UUID_BYTES:
            raise EncodeError(f"{field} has {len(value)} bytes instead of {UUID_BYTES}")
        self._parts.append(bytes(value))

    def int16(self, value: int, field: str) -> None:
        self._number(_INT16, value, field)

    def int32(self, value: int, field: str) -> None:
        self._number(_INT32, value, field)

    def int64(self, value: int, field: str) -> None:
        self._number(_INT64, value, field)

    def unsigned_varint(self, value: int, field: str) -> None:
        if not 0 <= value < 1 << 32:
            raise EncodeError(f"{field} {value} does not fit an unsigned 32 bit number")
        encoded = bytearray()
        while value >= 0x80:
            encoded.append(value & 0x7F | 0x80)
            value >>= 7
        encoded.append(value)
        self._parts.append(bytes(encoded))

    def string(self, text: str | None, field: str, *, compact: bool = False) -> None:
        if text is None:
            raise EncodeError(f"{field} may not be null")
        self.nullable_string(text, field, compact=compact)

    def nullable_string(self, text: str | None, field: str, *, compact: bool = False) -> None:
        if text is None:
            self._length(-1, _INT16, field, compact=compact)
            return
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"{field} has no UTF-8 form: {error.reason}") from error
        if len(encoded) > MAX_STRING_BYTES:
            raise EncodeError(f"{field} has {len(encoded)} bytes; at most {MAX_STRING_BYTES} fit")
        self._length(len(encoded), _INT16, field, compact=compact)
        self._parts.append(encoded)

    def blob(self, data: bytes | None, field: str, *, compact: bool = False) -> None:
        if data is None:
            raise EncodeError(f"{field} may not be null")
        self.nullable_blob(data, field, compact=compact)

    def nullable_blob(self, data: bytes | None, field: str, *, compact: bool = False) -> None:
        self._length(-1 if data is None else len(data), _INT32, field, compact=compact)
        if data is not None:
            self._parts.append(bytes(data))

    def array_length(self, count: int, field: str, *, compact: bool = False) -> None:
        self._length(count, _INT32, field, compact=compact)

    def tagged_fields(self, fields: TaggedFields) -> None:
        self.unsigned_varint(len(fields), "number of tagged fields")
        previous = -1
        for tag, data in fields:
            if tag <= previous:
                raise EncodeError(f"tag {tag} follows tag {previous}")
            self.unsigned_varint(tag, "tag")
            self.unsigned_varint(len(data), f"length of tag {tag}")
            self._parts.append(bytes(data))
            previous = tag

    def raw(self, data: bytes) -> None:
        self._parts.append(bytes(data))

    def done(self) -> bytes:
        return b"".join(self._parts)

    def _length(self, length: int, plain: struct.Struct, field: str, *, compact: bool) -> None:
        if compact:
            self.unsigned_varint(length + 1, f"length of {field}")
        else:
            self._number(plain, length, f"length of {field}")

    def _number(self, form: struct.Struct, value: int, field: str) -> None:
        try:
            self._parts.append(form.pack(value))
        except struct.error as error:
            raise EncodeError(f"{field} {value!r} does not fit {8 * form.size} bits") from error
