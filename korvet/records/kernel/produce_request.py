"""Produce request to the record batches in it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from korvet.offsets import wire
from korvet.records.kernel.integers import int16, int32
from korvet.records.kernel.octets import BytesPointer, buffer_pointer, bytes_at
from korvet.records.produce_request import ProducePartition, ProduceRequest, ProduceTopic, RequestError

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

FLEXIBLE_SINCE = cython.declare(cython.longlong, 9)
TOPIC_IDS_SINCE = cython.declare(cython.longlong, 13)
UUID_SIZE = cython.declare(cython.Py_ssize_t, wire.UUID_BYTES)
MAX_STRING_SIZE = cython.declare(cython.longlong, wire.MAX_STRING_BYTES)
MAX_TAGGED_FIELDS = cython.declare(cython.longlong, wire.MAX_TAGGED_FIELDS)
MAX_ELEMENTS = cython.declare(cython.longlong, wire.MAX_REQUEST_ELEMENTS)
# In place of a position: why the bytes hold no request. The texts are in the same order.
ENDS_EARLY = cython.declare(cython.Py_ssize_t, -1)
LONG_VARINT = cython.declare(cython.Py_ssize_t, -2)
LONG_STRING = cython.declare(cython.Py_ssize_t, -3)
NEGATIVE_LENGTH = cython.declare(cython.Py_ssize_t, -4)
NULL = cython.declare(cython.Py_ssize_t, -5)
NO_ROOM = cython.declare(cython.Py_ssize_t, -6)
MANY_TAGGED_FIELDS = cython.declare(cython.Py_ssize_t, -7)
MANY_ELEMENTS = cython.declare(cython.Py_ssize_t, -8)
FAULTS: tuple[str, ...] = (
    "the request ends before its last field",
    "a varint has more than 5 bytes",
    f"a string has more than {wire.MAX_STRING_BYTES} bytes",
    "a length is negative, but not -1",
    "an array or a name is null",
    "an array does not fit into the request",
    f"a structure has more than {wire.MAX_TAGGED_FIELDS} tagged fields",
    f"the request has more than {wire.MAX_REQUEST_ELEMENTS} elements",
)


def decode_produce(
    frame: memoryview,
    position: int,
    version: int,
    uuid_of: Callable[[bytes], UUID | None],
    as_views: bool,
) -> ProduceRequest:
    """The Produce request of versions 3 to 13 at a position of a frame. Bytes after it are ignored.

    `uuid_of` makes a topic ID of its bytes. `as_views`: records are views into the frame, otherwise copies.
    Raises RequestError.
    """
    view: cython.const[cython.uchar][::1] = frame
    end: cython.Py_ssize_t = len(view)
    if not 0 <= position < end:
        raise _fault(ENDS_EARLY)
    request: ProduceRequest = _decode(frame, buffer_pointer(view), position, end, version, uuid_of, as_views)
    return request


@cython.cfunc
def _decode(
    frame: object,
    p: BytesPointer,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    version: cython.longlong,
    uuid_of: object,
    as_views: cython.bint,
):
    flexible: cython.bint = version >= FLEXIBLE_SINCE
    by_id: cython.bint = version >= TOPIC_IDS_SINCE
    # The smallest topic: no name and no partitions.
    least_size: cython.longlong = 18 if by_id else 3 if flexible else 6
    size: cython.longlong
    acks: cython.int
    timeout_ms: cython.int
    count: cython.longlong
    elements: cython.longlong
    i: cython.longlong
    transactional_id: object = None
    topics: list[ProduceTopic] = []
    size, at = _string(p, at, end, flexible)
    if at >= 0 and size >= 0:
        transactional_id = _text(p, at, size)
        at += size
    if at < 0 or end - at < 6:
        raise _fault(at if at < 0 else ENDS_EARLY)
    acks = int16(p, at)
    timeout_ms = int32(p, at + 2)
    count, at = _array(p, at + 6, end, flexible, least_size)
    if at < 0:
        raise _fault(at)
    elements = count
    for i in range(count):
        name: object = ""
        topic_id: object = None
        if by_id:
            if end - at < UUID_SIZE:
                raise _fault(ENDS_EARLY)
            topic_id = uuid_of(bytes_at(p, at, UUID_SIZE))
            at += UUID_SIZE
        else:
            size, at = _string(p, at, end, flexible)
            if at < 0 or size < 0:
                raise _fault(at if at < 0 else NULL)
            name = _text(p, at, size)
            at += size
        partitions, at, elements = _partitions(frame, p, at, end, flexible, elements, as_views)
        topics.append(ProduceTopic(name, topic_id, partitions))
    if flexible:
        elements, at = _tagged_fields(p, at, end, elements)
        if at < 0:
            raise _fault(at)
    return ProduceRequest(acks, timeout_ms, transactional_id, tuple(topics))


@cython.cfunc
def _partitions(
    frame: object,
    p: BytesPointer,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
    elements: cython.longlong,
    as_views: cython.bint,
):
    """The partitions of a topic, the position after the topic, and `elements` with these counted."""
    size: cython.longlong
    count: cython.longlong
    index: cython.longlong
    i: cython.longlong
    partitions: list[ProducePartition] = []
    # The smallest partition: no records.
    count, at = _array(p, at, end, flexible, 6 if flexible else 8)
    elements += count
    if at < 0 or elements > MAX_ELEMENTS:
        raise _fault(at if at < 0 else MANY_ELEMENTS)
    for i in range(count):
        if end - at < 4:
            raise _fault(ENDS_EARLY)
        index = int32(p, at)
        size, at = _length(p, at + 4, end, flexible)
        if at < 0 or size > end - at:
            raise _fault(at if at < 0 else ENDS_EARLY)
        records: object = None
        if size >= 0:
            records = frame[at : at + size] if as_views else bytes_at(p, at, size)
            at += size
        if flexible:
            elements, at = _tagged_fields(p, at, end, elements)
            if at < 0:
                raise _fault(at)
        partitions.append(ProducePartition(index, records))
    if flexible:
        elements, at = _tagged_fields(p, at, end, elements)
        if at < 0:
            raise _fault(at)
    return tuple(partitions), at, elements


def _fault(code: int) -> RequestError:
    return RequestError(FAULTS[-1 - code])


@cython.cfunc
def _text(p: BytesPointer, at: cython.Py_ssize_t, size: cython.Py_ssize_t):
    encoded = bytes_at(p, at, size)
    try:
        return encoded.decode("utf-8")
    except UnicodeDecodeError:
        pass
    try:
        return wire.replaced_text(encoded)
    except wire.DecodeError as error:
        raise RequestError(str(error)) from None


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _unsigned_varint(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """An unsigned varint of at most 5 bytes: (value, position after it or a fault)."""
    value: cython.longlong = 0
    shift: cython.int = 0
    byte: cython.longlong
    while shift < 35:
        if at >= end:
            return 0, ENDS_EARLY
        byte = p[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return 0, LONG_VARINT


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _length(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, flexible: cython.bint
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The length of an array or of bytes, -1 for null: (length, position after it or a fault)."""
    size: cython.longlong
    if flexible:
        size, at = _unsigned_varint(p, at, end)
        return size - 1, at
    if end - at < 4:
        return 0, ENDS_EARLY
    size = int32(p, at)
    return size, at + 4 if size >= -1 else NEGATIVE_LENGTH


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _string(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, flexible: cython.bint
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The length of a string that is wholly there, -1 for null: (length, position after it or a fault)."""
    size: cython.longlong
    if flexible:
        size, at = _length(p, at, end, True)
        if at < 0:
            return 0, at
    else:
        if end - at < 2:
            return 0, ENDS_EARLY
        size = int16(p, at)
        at += 2
    if size < -1:
        return 0, NEGATIVE_LENGTH
    if size > MAX_STRING_SIZE:
        return 0, LONG_STRING
    return size, at if size <= end - at else ENDS_EARLY


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _array(
    p: BytesPointer,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    flexible: cython.bint,
    least_size: cython.longlong,
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """An array whose smallest element has `least_size` bytes: (count, position after it or a fault)."""
    count: cython.longlong
    count, at = _length(p, at, end, flexible)
    if at < 0:
        return 0, at
    if count < 0:
        return 0, NULL
    return count, at if count <= (end - at) // least_size else NO_ROOM


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _tagged_fields(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, elements: cython.longlong
) -> tuple[cython.longlong, cython.Py_ssize_t]:
    """The tagged fields (KIP-482) of a structure: (`elements` and their number, position after them or a
    fault).
    """
    count: cython.longlong
    size: cython.longlong
    i: cython.longlong
    count, at = _unsigned_varint(p, at, end)
    if at < 0:
        return 0, at
    if count > MAX_TAGGED_FIELDS:
        return 0, MANY_TAGGED_FIELDS
    if elements + count > MAX_ELEMENTS:
        return 0, MANY_ELEMENTS
    for i in range(count):
        size, at = _unsigned_varint(p, at, end)
        if at < 0:
            return 0, at
        size, at = _unsigned_varint(p, at, end)
        if at < 0:
            return 0, at
        if size > end - at:
            return 0, ENDS_EARLY
        at += size
    return elements + count, at
