"""Records as columns: one row for each record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cython  # the uncompiled form is for tests only
import numpy as np

from korvet.records.kernel.entry_ids import EntryStart, entry_start, is_addressable, packed
from korvet.records.kernel.fields import Fields, next_header, read_fields
from korvet.records.kernel.octets import BytesPointer, buffer_pointer, bytes_at
from korvet.records.kernel.record import Record, RecordHeader, read_header, read_record
from korvet.records.kernel.resp import ARRAY_TYPE, bulk, length_line
from korvet.spark.records.kernel.strings import Strings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    BytesLike = bytes | bytearray | memoryview | NDArray[np.uint8]

# Spark's timestamps, the years 1 to 9999.
MIN_SPARK_MS = cython.declare(cython.longlong, -62_135_596_800_000)
MAX_SPARK_MS = cython.declare(cython.longlong, 253_402_300_799_999)


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
        at: cython.Py_ssize_t
        last_at: cython.Py_ssize_t = 0
        entries, at = length_line(p, 0, end, ARRAY_TYPE)
        if at < 0 or entries < 1:
            return False
        for number in range(entries):
            last_at = at
            at = self._take(p, at, end, number >= dropped, shift, by_id)
            if at < 0:
                return False
        if at != end:
            return False
        self.last_id = entry_id(p, last_at, end)
        return True

    @cython.cfunc
    @cython.exceptval(-2)
    def _take(
        self,
        p: BytesPointer,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        wanted: cython.bint,
        bias: cython.longlong,
        append_times: cython.bint,
    ) -> cython.Py_ssize_t:
        """Take one entry, or only check it if it isn't wanted. Returns the position after it, or -1."""
        entry: EntryStart = entry_start(p, at, end)
        fields: Fields
        header: RecordHeader
        i: cython.longlong
        if entry.fields_at < 0:
            return -1
        wanted = wanted and is_addressable(entry)
        fields = read_fields(p, entry.fields_at, end, entry.strings, entry.ms if wanted else 0)
        if fields.end < 0 or not fields.is_korvet_entry:
            return -1
        if fields.outcome >= 0 or not wanted:
            return fields.end
        if self._with_headers:
            at = fields.headers_at
            for i in range(fields.header_count):
                header = next_header(p, at, end)
                if not self._add_header(p, header, end):
                    return -1
                at = header.end
        if append_times:
            fields.timestamp = entry.ms
        if (
            self._add_row(packed(entry.ms, entry.sequence) - bias, fields.timestamp, fields.producer)
            and self._keys.add(p, fields.key_at, fields.key_size, end)
            and self._values.add(p, fields.value_at, fields.value_size, end)
        ):
            return fields.end
        return -1

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
        i: cython.longlong
        wanted: cython.bint
        record: Record
        header: RecordHeader
        for number in range(records):
            record = read_record(p, at, end, number, time_ms)
            if record.end < 0:
                return False
            wanted = from_offset <= base + number < to_offset
            at = record.headers_at
            for i in range(record.header_count):
                header = read_header(p, at, record.end)
                if header.end < 0:
                    return False
                if wanted and self._with_headers and not self._add_header(p, header, end):
                    return False
                at = header.end
            if at != record.end:
                return False
            if wanted and not (
                self._add_row(base + number, one_ms if one_time else record.timestamp, owner)
                and self._keys.add(p, record.key_at, record.key_size, end)
                and self._values.add(p, record.value_at, record.value_size, end)
            ):
                return False
        return at == end

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
    def _add_header(self, p: BytesPointer, header: RecordHeader, end: cython.Py_ssize_t) -> cython.bint:
        """Add a header of the next row."""
        return (
            _is_utf8(p, header.name_at, header.name_size)
            and self._header_names.add(p, header.name_at, header.name_size, end)
            and self._header_values.add(p, header.value_at, header.value_size, end)
        )


@cython.cfunc
@cython.exceptval(-1)
def _is_utf8(p: BytesPointer, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Whether n bytes are UTF-8."""
    i: cython.Py_ssize_t
    for i in range(at, at + n):
        if p[i] > 127:
            break
    else:
        return True
    try:
        bytes_at(p, at, n).decode()
    except UnicodeDecodeError:
        return False
    return True


@cython.cfunc
def entry_id(p: BytesPointer, at: cython.Py_ssize_t, end: cython.Py_ssize_t):
    """The ID of an entry that `entry_start` has read."""
    n: cython.longlong
    _, at = length_line(p, at, end, ARRAY_TYPE)
    n, at = bulk(p, at, end)
    return bytes_at(p, at, n)
