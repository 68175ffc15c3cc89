"""Rows of records, from entries and from record batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython  # the uncompiled form is for tests only
import numpy as np

from korvet.spark.records.kernel.fields import (
    HAS_HEADER,
    HAS_NULL_HEADER,
    HEADER_PREFIX_BYTES,
    NULL_PREFIX_BYTES,
    Fields,
    field_of,
    is_marker,
    is_record,
    no_fields,
    with_field,
)
from korvet.spark.records.kernel.memory import (
    BytesPointer,
    buffer_pointer,
    is_utf8,
    nullable_bytes,
    text_of_line,
    varint,
)
from korvet.spark.records.kernel.replies import (
    ARRAY_MARK,
    MAX_INT32,
    SEQUENCE_BITS,
    bulk,
    entry_start,
    length_line,
)
from korvet.spark.records.kernel.strings import Strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    BytesLike = bytes | bytearray | memoryview | NDArray[np.uint8]

# Spark's timestamps, the years 1 to 9999.
MIN_SPARK_MS = cython.declare(cython.longlong, -62_135_596_800_000)
MAX_SPARK_MS = cython.declare(cython.longlong, 253_402_300_799_999)
# A record's timestamp is a base plus a difference. If one of them exceeds this, the sum is none of Spark's;
# the limit also keeps the sum within 64 bits.
FAR_MS = cython.declare(cython.longlong, 1 << 61)


@cython.final
@cython.cclass
class Rows:
    """Records as columns, filled from replies or from batches.

    header_ends: the end of each row's headers in header_names and header_values.
    producers: -1 for a record outside transactions. transactional: whether any record is in a transaction.
    """

    count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    offsets = cython.declare(object, visibility="readonly")
    timestamps_ms = cython.declare(object, visibility="readonly")
    producers = cython.declare(object, visibility="readonly")
    transactional = cython.declare(cython.bint, visibility="readonly")
    keys = cython.declare(object, visibility="readonly")
    values = cython.declare(object, visibility="readonly")
    header_ends = cython.declare(object, visibility="readonly")
    header_names = cython.declare(object, visibility="readonly")
    header_values = cython.declare(object, visibility="readonly")
    last_id = cython.declare(bytes, visibility="readonly")
    _most: cython.Py_ssize_t
    _with_headers: cython.bint
    _offsets: cython.longlong[::1]
    _timestamps_ms: cython.longlong[::1]
    _producers: cython.longlong[::1]
    _header_ends: cython.int[::1]
    _keys: Strings
    _values: Strings
    _header_names: Strings
    _header_values: Strings

    def __init__(self, most: int, room: int, headers: int, with_headers: bool) -> None:
        """Reserve memory for `most` rows, `room` bytes in each column of strings, and `headers` headers.

        Without with_headers, headers are checked but left out.
        """
        self.count = 0
        self.transactional = False
        self.last_id = b""
        self._most, self._with_headers = most, with_headers
        self.offsets, self.timestamps_ms, self.producers = (np.empty(most, dtype=np.int64) for _ in range(3))
        self._offsets, self._timestamps_ms = self.offsets, self.timestamps_ms
        self._producers = self.producers
        self.keys, self.values = Strings(most, room), Strings(most, room)
        self.header_ends = np.empty(most + 1, dtype=np.int32)
        self._header_ends = self.header_ends
        self._header_ends[0] = 0
        self.header_names = Strings(headers if with_headers else 0, room if with_headers else 0)
        self.header_values = Strings(headers if with_headers else 0, room if with_headers else 0)
        self._keys, self._values = self.keys, self.values
        self._header_names, self._header_values = self.header_names, self.header_values

    def take_entries(self, reply: BytesLike, size: int, skipped: int, bias: int, append_times: bool) -> bool:
        """Take the records of reply[:size], an XRANGE reply (RESP2), after `skipped` entries; skip markers.

        The entry ms-seq has the offset pack(ms, seq) - bias; entries without an offset are left out. With
        append_times a record's timestamp is the ms. Returns False if an entry is neither a record nor a
        marker of korvet, or is unusual; the rows are then unusable.
        """
        view: cython.const[cython.uchar][::1] = reply
        if size < 1 or size > len(reply):
            return False
        p: BytesPointer = buffer_pointer(view)
        end: cython.Py_ssize_t = size
        dropped: cython.Py_ssize_t = skipped
        shift: cython.longlong = bias
        by_id: cython.bint = append_times
        entries: cython.longlong
        number: cython.longlong
        position: cython.longlong
        strings: cython.longlong
        id_at: cython.Py_ssize_t = 0
        at: cython.Py_ssize_t
        fields_at: cython.Py_ssize_t
        entries, at = length_line(p, 0, end, ARRAY_MARK)
        if at < 0 or entries < 1:
            return False
        for number in range(entries):
            position, id_at, strings, fields_at = entry_start(p, at, end)
            if fields_at < 0:
                return False
            at = self._take(p, fields_at, end, strings, -1 if number < dropped else position, shift, by_id)
            if at < 0:
                return False
        if at != end:
            return False
        self.last_id = text_of_line(p, id_at)
        return True

    @cython.cfunc
    @cython.exceptval(-2)
    def _take(
        self,
        p: BytesPointer,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        strings: cython.longlong,
        position: cython.longlong,
        bias: cython.longlong,
        append_times: cython.bint,
    ) -> cython.Py_ssize_t:
        """Take one entry, or skip it if its position is negative. Returns the position after it, or -1."""
        fields: Fields = no_fields()
        field: cython.longlong
        name_at: cython.Py_ssize_t
        name_size: cython.Py_ssize_t
        size: cython.Py_ssize_t
        while strings > 0:
            strings -= 2
            name_at, name_size = bulk(p, at, end)
            if name_size < 0:
                return -1
            at, size = bulk(p, name_at + name_size + 2, end)
            field = field_of(p, name_at, name_size)
            if size < 0 or (field == HAS_NULL_HEADER and size > 0):
                return -1
            if field < HAS_HEADER:
                fields = with_field(fields, field, p, at, size)
                if field == 0 or fields.seen < 0:
                    return -1
            elif (
                self._with_headers
                and position >= 0
                and not self._take_header(p, field, name_at, name_size, at, size)
            ):
                return -1
            fields.seen |= field
            at += size + 2
        if is_marker(fields):
            return at
        if not is_record(fields):
            return -1
        if position < 0:
            return at
        if append_times:
            fields.relative_ms = 0
        if not self._add_row(
            position - bias, (position >> SEQUENCE_BITS) + fields.relative_ms, fields.producer
        ):
            return -1
        if not self._keys.add(p, fields.key_at, fields.key_size):
            return -1
        return at if self._values.add(p, fields.value_at, fields.value_size) else -1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _take_header(
        self,
        p: BytesPointer,
        field: cython.longlong,
        name_at: cython.Py_ssize_t,
        name_size: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        size: cython.Py_ssize_t,
    ) -> cython.bint:
        """A record header of the next row, from its field's name and value."""
        if field == HAS_NULL_HEADER:
            return self._add_header(p, name_at + NULL_PREFIX_BYTES, name_size - NULL_PREFIX_BYTES, at, -1)
        return self._add_header(p, name_at + HEADER_PREFIX_BYTES, name_size - HEADER_PREFIX_BYTES, at, size)

    def take_records(
        self,
        section: BytesLike,
        count: int,
        base_offset: int,
        base_ms: int,
        append_ms: int | None,
        producer: int,
        first: int,
        stop: int,
    ) -> bool:
        """Take the records with offsets first .. stop - 1 of a batch's `count` records.

        append_ms, if not None, is the timestamp of all records. Returns False if the section is malformed or
        unusual; the rows are then unusable.
        """
        view: cython.const[cython.uchar][::1] = section
        end: cython.Py_ssize_t = len(section)
        if end < 1:
            return False
        p: BytesPointer = buffer_pointer(view)
        records: cython.longlong = count
        number: cython.longlong
        base: cython.longlong = base_offset
        time_ms: cython.longlong = base_ms
        one_time: cython.bint = append_ms is not None
        one_ms: cython.longlong = append_ms if append_ms is not None else 0
        owner: cython.longlong = producer
        from_offset: cython.longlong = first
        to_offset: cython.longlong = stop
        at: cython.Py_ssize_t = 0
        size: cython.longlong
        wanted: cython.bint
        if time_ms > FAR_MS or time_ms < -FAR_MS or base < 0 or records > MAX_INT32:
            return False
        for number in range(records):
            size, at = varint(p, at, end)
            if at < 0 or size < 1 or size > end - at:
                return False
            wanted = from_offset <= base + number < to_offset
            if not self._take_record(
                p, at + 1, at + size, number, base, time_ms, one_time, one_ms, owner, wanted
            ):
                return False
            at += size
        return at == end

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _take_record(
        self,
        p: BytesPointer,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        number: cython.longlong,
        base: cython.longlong,
        base_ms: cython.longlong,
        one_time: cython.bint,
        one_ms: cython.longlong,
        producer: cython.longlong,
        wanted: cython.bint,
    ) -> cython.bint:
        """Take one record, from after its attributes to its end."""
        delta_ms: cython.longlong
        delta: cython.longlong
        headers: cython.longlong
        key_at: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        value_at: cython.Py_ssize_t
        value_size: cython.Py_ssize_t
        delta_ms, at = varint(p, at, end)
        if at < 0 or delta_ms > FAR_MS or delta_ms < -FAR_MS:
            return False
        delta, at = varint(p, at, end)
        if at < 0 or delta != number:
            return False
        key_at, key_size, at = nullable_bytes(p, at, end)
        if at < 0:
            return False
        value_at, value_size, at = nullable_bytes(p, at, end)
        if at < 0:
            return False
        headers, at = varint(p, at, end)
        if at < 0 or headers < 0:
            return False
        if wanted and not (self._keys.add(p, key_at, key_size) and self._values.add(p, value_at, value_size)):
            return False
        while headers > 0:
            headers -= 1
            key_at, key_size, at = nullable_bytes(p, at, end)
            if at < 0:
                return False
            value_at, value_size, at = nullable_bytes(p, at, end)
            if at < 0:
                return False
            if (
                wanted
                and self._with_headers
                and not self._add_header(p, key_at, max(key_size, 0), value_at, value_size)
            ):
                return False
        if at != end:
            return False
        return not wanted or self._add_row(
            base + number, one_ms if one_time else base_ms + delta_ms, producer
        )

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _add_row(
        self, offset: cython.longlong, time_ms: cython.longlong, producer: cython.longlong
    ) -> cython.bint:
        """Add a row without its strings, after its headers. False without room or a valid time."""
        if self.count >= self._most or time_ms < MIN_SPARK_MS or time_ms > MAX_SPARK_MS:
            return False
        self._offsets[self.count] = offset
        self._timestamps_ms[self.count] = time_ms
        self._producers[self.count] = producer
        if producer >= 0:
            self.transactional = True
        self.count += 1
        self._header_ends[self.count] = self._header_names.count
        return True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _add_header(
        self,
        p: BytesPointer,
        name_at: cython.Py_ssize_t,
        name_size: cython.Py_ssize_t,
        value_at: cython.Py_ssize_t,
        value_size: cython.Py_ssize_t,
    ) -> cython.bint:
        """Add a header of the next row. A negative size is a null value."""
        return (
            is_utf8(p, name_at, name_size)
            and self._header_names.add(p, name_at, name_size)
            and self._header_values.add(p, value_at, value_size)
        )
