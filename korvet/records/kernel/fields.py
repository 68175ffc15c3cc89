"""The fields of a stream entry, read from a reply, and its headers written into a record."""

from __future__ import annotations

from korvet.offsets import entry_fields, record_batch
from korvet.records.kernel.field_names import HEADER_PREFIX_SIZE, NULL_PREFIX_SIZE
from korvet.records.kernel.integers import MAX_INT64, digits, number, put_varint, varint_size
from korvet.records.kernel.octets import BytesPointer, buffer_pointer, bytes_at, copy_short
from korvet.records.kernel.record import RecordHeader
from korvet.records.kernel.resp import bulk

try:
    import cython  # the compiler looks for this very line
except ModuleNotFoundError:
    from korvet.records import shadow as cython  # type: ignore[no-redef]

MAX_EPOCH = cython.declare(cython.ulonglong, entry_fields.MAX_EPOCH)
TIMESTAMP_DIGITS = cython.declare(cython.Py_ssize_t, entry_fields.TIMESTAMP_DIGITS)
MARKER_STRINGS = cython.declare(cython.longlong, entry_fields.MARKER_STRINGS)
NO_PRODUCER = cython.declare(cython.longlong, record_batch.NO_PRODUCER_ID)

# An entry as a record. Sizes are -1 for null.
Fields = cython.struct(
    end=cython.Py_ssize_t,  # -1 if the bytes are not RESP
    is_korvet_entry=cython.bint,  # whether all fields are such as the broker writes
    timestamp=cython.longlong,
    key_at=cython.Py_ssize_t,
    key_size=cython.longlong,
    value_at=cython.Py_ssize_t,
    value_size=cython.longlong,
    headers_at=cython.Py_ssize_t,  # the first header; undefined without one
    header_count=cython.longlong,
    headers_size=cython.longlong,  # bytes of all headers in a record
    producer=cython.longlong,  # producer ID if the record is in a transaction, else -1
    epoch=cython.longlong,
    outcome=cython.longlong,  # of a transaction marker: 1 commit, 0 abort; -1 for any other entry
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _no_fields(timestamp: cython.longlong) -> Fields:
    fields = cython.declare(Fields)
    fields.end = -1
    fields.is_korvet_entry = False
    fields.timestamp = timestamp
    fields.key_at = 0
    fields.key_size = -1
    fields.value_at = 0
    fields.value_size = -1
    fields.headers_at = 0
    fields.header_count = 0
    fields.headers_size = 0
    fields.producer = NO_PRODUCER
    fields.epoch = -1
    fields.outcome = -1
    return fields


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def read_fields(
    p: BytesPointer,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
    ms: cython.longlong,
) -> Fields:
    """Read an entry's `count` strings, as entry_fields.read_entry does; `ms` is the time in its ID."""
    fields: Fields = _no_fields(ms)
    i: cython.longlong
    n: cython.longlong
    size: cython.longlong
    name_at: cython.Py_ssize_t
    kind: cython.int
    known: cython.bint = count > 0 and count % 2 == 0
    has_timestamp: cython.bint = False
    for i in range(count // 2):
        if fields.header_count == 0:
            fields.headers_at = at
        n, name_at = bulk(p, at, end)
        if name_at < 0:
            return fields
        size, at = bulk(p, name_at + n + 2, end)
        if at < 0:
            return fields
        kind = field_kind(p, name_at, n)
        if kind == 2 and fields.value_size < 0:
            fields.value_at = at
            fields.value_size = size
        elif kind == 1 and fields.key_size < 0:
            fields.key_at = at
            fields.key_size = size
        elif kind == 3 and not has_timestamp:
            has_timestamp = True
            if known:
                fields.timestamp, known = _absolute(p, at, at + size, ms)
        elif kind == 4:
            n -= HEADER_PREFIX_SIZE
            fields.header_count += 1
            fields.headers_size += varint_size(n) + n + varint_size(size) + size
        elif kind == 5 and size == 0:
            n -= NULL_PREFIX_SIZE
            fields.header_count += 1
            fields.headers_size += varint_size(n) + n + 1
        elif kind == 6 and fields.producer < 0:
            fields.producer = number(p, at, at + size, cython.cast(cython.ulonglong, MAX_INT64))
            known = known and fields.producer >= 0
        elif kind == 7 and fields.epoch < 0:
            fields.epoch = number(p, at, at + size, MAX_EPOCH)
            known = known and fields.epoch >= 0
        elif kind == 8 and fields.outcome < 0 and count == MARKER_STRINGS:
            fields.outcome = _outcome(p, at, size)
            known = known and fields.outcome >= 0
        else:
            known = False
        at += size + 2
    fields.is_korvet_entry = known and _has_sound_producer(fields)
    fields.end = at
    return fields


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_marker(fields: Fields) -> cython.bint:
    """Whether an entry is a transaction marker."""
    return fields.is_korvet_entry and fields.outcome >= 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _has_sound_producer(fields: Fields) -> cython.bint:
    """Whether there are producer ID and epoch, or neither: one of them is an application's own field.

    A transaction marker has both.
    """
    return (fields.producer < 0) == (fields.epoch < 0) and (fields.outcome < 0 or fields.producer >= 0)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def as_value(fields: Fields, size: cython.longlong) -> Fields:
    """The record that an application's entry becomes: only a value, which is `size` bytes elsewhere."""
    value: Fields = _no_fields(fields.timestamp)
    value.end = fields.end
    value.value_size = size
    return value


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _absolute(
    p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t, ms: cython.longlong
) -> tuple[cython.longlong, cython.bint]:
    """A `ts` value added to the entry's ms, and whether it is a number that leaves the sum in int64."""
    magnitude: cython.ulonglong
    negative: cython.bint = at < end and p[at] == 45
    stop: cython.Py_ssize_t
    if end - at - negative > TIMESTAMP_DIGITS:
        return 0, False
    magnitude, stop = digits(p, at + negative, end)
    if stop != end:
        return 0, False
    if negative:
        if magnitude > cython.cast(cython.ulonglong, MAX_INT64):
            return 0, False
        return ms - cython.cast(cython.longlong, magnitude), True
    if magnitude > cython.cast(cython.ulonglong, MAX_INT64 - ms):
        return 0, False
    return ms + cython.cast(cython.longlong, magnitude), True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_header(p: BytesPointer, at: cython.Py_ssize_t) -> cython.bint:
    """Whether seven bytes are `header.`"""
    return (
        p[at] == 104
        and p[at + 1] == 101
        and p[at + 2] == 97
        and p[at + 3] == 100
        and p[at + 4] == 101
        and p[at + 5] == 114
        and p[at + 6] == 46
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def field_kind(p: BytesPointer, at: cython.Py_ssize_t, n: cython.longlong) -> cython.int:
    """Which field a name is: 1 key, 2 value, 3 ts, 4 header.*, 5 nullheader.*, 6 pid, 7 epoch, 8 ctl; else 0.

    The bytes are compared as numbers: most entries have no other names, and a call per name costs more.
    """
    if n == 5 and p[at] == 118:
        return 2 if p[at + 1] == 97 and p[at + 2] == 108 and p[at + 3] == 117 and p[at + 4] == 101 else 0
    if n == 3 and p[at] == 107:
        return 1 if p[at + 1] == 101 and p[at + 2] == 121 else 0
    if n == 3 and p[at] == 112:
        return 6 if p[at + 1] == 105 and p[at + 2] == 100 else 0
    if n == 3 and p[at] == 99:
        return 8 if p[at + 1] == 116 and p[at + 2] == 108 else 0
    if n == 5 and p[at] == 101:
        return 7 if p[at + 1] == 112 and p[at + 2] == 111 and p[at + 3] == 99 and p[at + 4] == 104 else 0
    if n == 2:
        return 3 if p[at] == 116 and p[at + 1] == 115 else 0
    if n >= HEADER_PREFIX_SIZE and _is_header(p, at):
        return 4
    if n >= NULL_PREFIX_SIZE and p[at] == 110 and p[at + 1] == 117 and p[at + 2] == 108 and p[at + 3] == 108:
        return 5 if _is_header(p, at + 4) else 0
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _outcome(p: BytesPointer, at: cython.Py_ssize_t, n: cython.longlong) -> cython.int:
    """What a `ctl` value means: 1 `commit`, 0 `abort`, -1 neither."""
    if n == 6 and p[at] == 99 and p[at + 1] == 111 and p[at + 2] == 109:
        return 1 if p[at + 3] == 109 and p[at + 4] == 105 and p[at + 5] == 116 else -1
    if n == 5 and p[at] == 97 and p[at + 1] == 98:
        return 0 if p[at + 2] == 111 and p[at + 3] == 114 and p[at + 4] == 116 else -1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def next_header(p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> RecordHeader:
    """The first header among fields that `read_fields` has checked; there must be one."""
    header = cython.declare(RecordHeader)
    n: cython.longlong
    size: cython.longlong
    name_at: cython.Py_ssize_t
    prefix: cython.Py_ssize_t = 0
    while prefix == 0:
        n, name_at = bulk(p, at, end)
        size, at = bulk(p, name_at + n + 2, end)
        if n >= HEADER_PREFIX_SIZE and _is_header(p, name_at):
            prefix = HEADER_PREFIX_SIZE
            header.value_size = size
        elif field_kind(p, name_at, n) == 5:
            prefix = NULL_PREFIX_SIZE
            header.value_size = -1
        header.name_at = name_at + prefix
        header.name_size = n - prefix
        header.value_at = at
        at += size + 2
    header.end = at
    return header


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def put_header_fields(
    w: cython.p_uchar, o: cython.Py_ssize_t, p: BytesPointer, fields: Fields
) -> cython.Py_ssize_t:
    """Write the headers of fields that `read_fields` has checked. Returns the position after them."""
    at: cython.Py_ssize_t = fields.headers_at
    i: cython.longlong
    header: RecordHeader
    for i in range(fields.header_count):
        header = next_header(p, at, fields.end)
        o = put_varint(w, o, header.name_size)
        o = copy_short(w, o, p, header.name_at, header.name_size, fields.end)
        o = put_varint(w, o, header.value_size)
        if header.value_size > 0:
            o = copy_short(w, o, p, header.value_at, header.value_size, fields.end)
        at = header.end
    return o


@cython.cfunc
def field_list(
    view: cython.const[cython.uchar][::1],
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    count: cython.longlong,
):
    """Names and values that `read_fields` has checked, as Python objects."""
    p: BytesPointer = buffer_pointer(view)
    i: cython.longlong
    size: cython.longlong
    found = []
    for i in range(count // 2 * 2):
        size, at = bulk(p, at, end)
        found.append(bytes_at(p, at, size))
        at += size + 2
    return found
