"""Stream entries to Arrow columns in the layout of Spark's Kafka source. Pure: no Redis, no Spark session.

The fields of an entry are korvet's own (key, value, ts, header.*, nullheader.*; pid and epoch where it is in
a transaction), or it is the marker that ends a transaction (ctl, pid, epoch), or a whole record batch
(korvet.spark.records.batches); every other entry was written by a native Redis application and becomes a
record whose value is a JSON object of its fields. No entry can make a read fail.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from korvet.offsets.entry_fields import (
    ABORT,
    BATCH,
    COMMIT,
    CONTROL,
    HEADER_PREFIX,
    KEY,
    NULL_HEADER_PREFIX,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TIMESTAMP,
    VALUE,
)
from korvet.offsets.packing import MAX_SEQUENCE, SEQUENCE_BITS
from korvet.spark.records.batches import Header, Row, is_damaged, outcome_of, read_batch, read_records
from korvet.spark.records.replies import Entry, Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from korvet.spark.records.kernel import Rows, Strings

CREATE_TIME = 0
LOG_APPEND_TIME = 1

OUTCOMES = {COMMIT: True, ABORT: False}
# Marks an encoded field name in the JSON of a native entry.
BINARY_NAME = "base64:"

# A packed offset has 53 bits of milliseconds in front of the sequence; nothing larger has an offset.
MAX_MS = (1 << (63 - SEQUENCE_BITS)) - 1
INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
# The years 1 to 9999, which is all that Python and SQL have; a record time beyond has no timestamp in Spark.
MIN_SPARK_MS = -62_135_596_800_000
MAX_SPARK_MS = 253_402_300_799_999

_DECIMAL = re.compile(rb"-?[0-9]{1,19}")
_SHORT_DECIMALS = re.compile(rb"-?[0-9]{1,15}(?: -?[0-9]{1,15})*")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where entries come from: what is the same for every record of a page.

    `bias` is what an entry's packed ID exceeds its offset by: 1 on topics with dense offsets, else 0.
    `native_field` is the field whose bytes are the value of an entry that a native application wrote; None
    for a JSON object of all its fields. With `append_times` a record's timestamp is the time in its entry's
    ID, whatever the entry says: the topic has LogAppendTime, and its IDs are times.
    """

    topic: str
    partition: int
    bias: int
    timestamp_type: int
    native_field: bytes | None = None
    append_times: bool = False


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """The headers of all rows, one after the other: `ends` is where each row's begin, and the last end."""

    names: pa.Array
    values: pa.Array
    ends: NDArray[np.int32]


@dataclass(slots=True)
class Columns:
    """The columns of one page;
    rows of all lists belong together. `timestamps_ms` holds None where Spark has no such time.
    """

    keys: Sequence[bytes | None] | pa.Array
    values: Sequence[bytes | None] | pa.Array
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64] | list[int | None]
    headers: list[list[Header] | None] | HeaderColumns | None
    timestamp_types: list[int] | NDArray[np.int64] | None = None
    """None where all have the topic's."""
    producers: list[int] | None = None
    """Whose transaction each record is part of, -1 for none's; None where no record is part of one."""
    same_headers: Sequence[tuple[str, Sequence[bytes | None] | pa.Array]] = ()
    """Headers that every record has, in order: the name, and the records' values. Then `headers` is None."""
    damaged: Sequence[int] = ()
    """The offsets of entries that are damaged record batches: they have no rows."""


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction: its records before this offset count, or never did."""

    offset: int
    producer: int
    committed: bool


def native_json(fields: Sequence[bytes]) -> bytes:
    """The value of an entry that a native application wrote: a compact JSON object of its fields, in order.

    A value that is not UTF-8 is `{"base64": "..."}`; a repeated field is a list of its values. A field name
    that is not UTF-8 is "base64:" and its encoding, and so is one that begins that way.
    """
    values: dict[str, list[Any]] = {}
    for name, value in zip(fields[::2], fields[1::2], strict=False):
        values.setdefault(_json_name(name), []).append(_json_text(value))
    document = {name: items[0] if len(items) == 1 else items for name, items in values.items()}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def native_value(fields: Sequence[bytes], wanted: bytes | None) -> bytes:
    """The bytes of the first field of that name; the JSON of all fields where there is none."""
    if wanted is not None:
        for name, value in zip(fields[::2], fields[1::2], strict=False):
            if name == wanted:
                return value
    return native_json(fields)


def _json_name(name: bytes) -> str:
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        return BINARY_NAME + _base64(name)
    return BINARY_NAME + _base64(name) if text.startswith(BINARY_NAME) else text


def _json_text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": _base64(value)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


@dataclass(slots=True)
class _Record:
    key: bytes | None = None
    value: bytes | None = None
    relative_ms: int | None = None
    headers: list[Header] | None = None
    producer: int | None = None
    epoch: int | None = None


def parse_fields(
    fields: Sequence[bytes], entry_ms: int, native_field: bytes | None
) -> tuple[bytes | None, bytes | None, int, list[Header] | None, int]:
    """One entry's key, value, timestamp in ms, headers or None, and its transaction's producer or -1."""
    record = _own_record(fields, entry_ms)
    if record is None:
        return None, native_value(fields, native_field), entry_ms, None, -1
    producer = -1 if record.producer is None else record.producer
    return record.key, record.value, entry_ms + (record.relative_ms or 0), record.headers, producer


def marker_of(fields: Sequence[bytes], offset: int) -> Marker | None:
    """The marker that an entry is: the fields ctl (commit or abort), pid and epoch, once each; else None."""
    if len(fields) != 6 or CONTROL not in fields:
        return None
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    committed = OUTCOMES.get(named.get(CONTROL, b""))
    producer, epoch = (_count(named.get(name, b"")) for name in (PRODUCER_ID, PRODUCER_EPOCH))
    if committed is None or producer is None or epoch is None:
        return None
    return Marker(offset, producer, committed)


def _count(text: bytes) -> int | None:
    """A decimal number that is not negative and fits int64."""
    return int(text) if len(text) <= 18 and text.isdigit() else None


def _own_record(fields: Sequence[bytes], entry_ms: int) -> _Record | None:
    """The entry as one that korvet wrote, or None when its fields are not of that layout."""
    record = _Record()
    for name, value in zip(fields[::2], fields[1::2], strict=False):
        if name == KEY and record.key is None:
            record.key = value
        elif name == VALUE and record.value is None:
            record.value = value
        elif name == TIMESTAMP and record.relative_ms is None:
            record.relative_ms = _relative_ms(value, entry_ms)
            if record.relative_ms is None:
                return None
        elif name == PRODUCER_ID and record.producer is None:
            record.producer = _count(value)
            if record.producer is None:
                return None
        elif name == PRODUCER_EPOCH and record.epoch is None:
            record.epoch = _count(value)
            if record.epoch is None:
                return None
        elif name.startswith(HEADER_PREFIX):
            _add_header(record, name[len(HEADER_PREFIX) :], value)
        elif name.startswith(NULL_HEADER_PREFIX):
            _add_header(record, name[len(NULL_HEADER_PREFIX) :], None)
        else:
            return None
    return record if (record.producer is None) == (record.epoch is None) else None


def _add_header(record: _Record, name: bytes, value: bytes | None) -> None:
    if record.headers is None:
        record.headers = []
    record.headers.append((name.decode("utf-8", "replace"), value))


def _relative_ms(text: bytes, entry_ms: int) -> int | None:
    if _DECIMAL.fullmatch(text) is None:
        return None
    relative = int(text)
    return relative if INT64_MIN <= entry_ms + relative <= INT64_MAX else None


def addressable(entries: Sequence[Entry]) -> tuple[Sequence[Entry], NDArray[np.int64], NDArray[np.int64]]:
    """The entries that have an offset, with the ms and sequence of their IDs; the others are left out."""
    numbers = _numbers(b"-".join([entry[0] for entry in entries]), "-")
    # A number beyond int64 reads as the largest one: a sequence that is left out anyway, or a time.
    if len(numbers) and numbers[0::2].max() > MAX_MS:
        entries = [entry for entry in entries if _has_offset(entry[0])]
        pairs = [[int(part) for part in entry[0].split(b"-")] for entry in entries]
        numbers = np.array(pairs, dtype=np.int64).reshape(-1)
    ms, sequence = numbers[0::2], numbers[1::2]
    fits = sequence <= MAX_SEQUENCE
    if not fits.all():
        entries = [entry for entry, fit in zip(entries, fits, strict=True) if fit]
        ms, sequence = ms[fits], sequence[fits]
    return entries, ms, sequence


def _numbers(text: bytes, separator: str) -> NDArray[np.int64]:
    return np.fromstring(text.decode("ascii"), dtype=np.int64, sep=separator)


def _has_offset(entry_id: bytes) -> bool:
    ms, _, sequence = entry_id.partition(b"-")
    return int(ms) <= MAX_MS and int(sequence) <= MAX_SEQUENCE


def columns_of(
    entries: Sequence[Entry],
    origin: Origin,
    start_offset: int = 0,
    end_offset: int = INT64_MAX,
    *,
    headers: bool = True,
) -> Columns:
    """The columns of one page of XRANGE; no markers, nothing without an offset (a sequence above 1023).

    Of record batches only the records from start_offset to end_offset - 1, since the first and the last one
    may hold others. Headers that are not wanted may be left out.
    """
    wanted = range(start_offset, end_offset)
    if isinstance(entries, Reply):
        taken = _taken_columns(entries, origin, wanted, headers=headers)
        if taken is not None:
            return taken
    entries, ms, sequence = addressable(entries)
    offsets = ((ms << SEQUENCE_BITS) | sequence) - origin.bias
    fields = [entry[1] for entry in entries]
    found = _uniform_columns(fields, ms, offsets)
    if found is None:
        if any(entry[0] == BATCH for entry in fields if entry):
            return _batch_columns(fields, ms, offsets, origin, wanted)
        is_row = [marker_of(entry, 0) is None for entry in fields]
        if not all(is_row):
            fields = [entry for entry, row in zip(fields, is_row, strict=True) if row]
            ms, offsets = ms[is_row], offsets[is_row]
        found = _mixed_columns(fields, ms, offsets, origin.native_field)
    if origin.append_times:
        found.timestamps_ms = _spark_times(ms)
    return found


def markers_of(entries: Sequence[Entry], origin: Origin) -> list[Marker]:
    """The ends of transactions among these entries."""
    if isinstance(entries, Reply):
        batches = entries.batches(origin.bias)
        if batches is not None:
            found = [_batch_marker([BATCH, data], offset) for offset, data in batches]
            return [marker for marker in found if marker is not None]
        rows = entries.rows(origin.bias, append_times=origin.append_times, headers=False)
        if rows is not None:
            return [Marker(*marker) for marker in rows.markers]
    return _general_markers(entries, origin)


def _general_markers(entries: Sequence[Entry], origin: Origin) -> list[Marker]:
    found = []
    for entry_id, fields in entries:
        if CONTROL not in fields and BATCH not in fields[:1]:
            continue
        kept, ms, sequence = addressable([(entry_id, fields)])
        if not kept:
            continue
        offset = (int(ms[0]) << SEQUENCE_BITS | int(sequence[0])) - origin.bias
        marker = marker_of(fields, offset) or _batch_marker(fields, offset)
        if marker is not None:
            found.append(marker)
    return found


def _batch_marker(fields: Sequence[bytes | memoryview], offset: int) -> Marker | None:
    """The marker that an entry is as a whole batch."""
    found = outcome_of(fields, offset)
    return None if found is None else Marker(offset, *found)


def _taken_columns(page: Reply, origin: Origin, wanted: range, *, headers: bool) -> Columns | None:
    """The quickest way, for a page as it came; None where something in it is unusual."""
    batches = page.batches(origin.bias)
    if batches is None:
        rows = page.rows(origin.bias, append_times=origin.append_times, headers=headers)
        return None if rows is None else _columns(rows)
    records = read_records(batches, wanted, headers=headers)
    if records is None:
        return None
    found = _columns(records.rows)
    found.timestamp_types = np.where(records.log_append_times, LOG_APPEND_TIME, CREATE_TIME)
    return found


def _columns(rows: Rows) -> Columns:
    count = rows.count
    return Columns(
        keys=_array_of(rows.keys, pa.binary()),
        values=_array_of(rows.values, pa.binary()),
        offsets=rows.offsets[:count],
        timestamps_ms=rows.timestamps_ms[:count],
        headers=None
        if rows.header_names.count == 0
        else HeaderColumns(
            _array_of(rows.header_names, pa.string()),
            _array_of(rows.header_values, pa.binary()),
            rows.header_ends[: count + 1],
        ),
        producers=rows.producers[:count].tolist() if rows.transactional else None,
    )


def _array_of(strings: Strings, kind: pa.DataType) -> pa.Array:
    """A column of strings in the buffers that it has been written to."""
    there = pa.py_buffer(strings.there) if strings.nulls else None
    buffers = [there, pa.py_buffer(strings.ends), pa.py_buffer(strings.data[: strings.size])]
    return pa.Array.from_buffers(kind, strings.count, buffers, strings.nulls)


def _uniform_columns(
    fields: list[list[bytes]], ms: NDArray[np.int64], offsets: NDArray[np.int64]
) -> Columns | None:
    """The quick way, for a page of entries that have all the same of our fields and headers; else None."""
    if not fields:
        return Columns([], [], offsets, ms, None)
    shape = fields[0][::2]
    names = [_header_name(name) for name in shape]
    plain = [field for field, name in zip(shape, names, strict=True) if name is None]
    if len(plain) != len(set(plain)) or not set(plain) <= {KEY, VALUE, TIMESTAMP}:
        return None
    try:
        columns = list(zip(*fields, strict=True))
    except ValueError:
        return None
    rows = len(fields)
    if any(column.count(name) != rows for name, column in zip(shape, columns[::2], strict=True)):
        return None
    found = dict(zip(shape, columns[1::2], strict=True))
    timestamps = _shifted(ms, _joined(found[TIMESTAMP])) if TIMESTAMP in found else _spark_times(ms)
    if timestamps is None:
        return None
    nulls = [None] * rows
    headers = [
        (name, nulls if field.startswith(NULL_HEADER_PREFIX) else column)
        for field, name, column in zip(shape, names, columns[1::2], strict=True)
        if name is not None
    ]
    return Columns(
        found.get(KEY, nulls), found.get(VALUE, nulls), offsets, timestamps, None, same_headers=headers
    )


def _header_name(field: bytes) -> str | None:
    """The header that a field is; None for any other field."""
    for prefix in (HEADER_PREFIX, NULL_HEADER_PREFIX):
        if field.startswith(prefix):
            return field[len(prefix) :].decode("utf-8", "replace")
    return None


def _shifted(ms: NDArray[np.int64], relative: bytes) -> NDArray[np.int64] | None:
    """The timestamps of entries by what these numbers, or one for all, say; None where one is no short
    number or has no place in Spark's calendar.
    """
    if _SHORT_DECIMALS.fullmatch(relative) is None:
        return None
    timestamps = ms + _numbers(relative, " ")
    if len(timestamps) and (timestamps.min() < MIN_SPARK_MS or timestamps.max() > MAX_SPARK_MS):
        return None
    return timestamps


def _joined(numbers: Sequence[bytes]) -> bytes:
    """For _shifted. Often all are the same: a batch's records have one time, and its entries another."""
    same = numbers.count(numbers[0]) == len(numbers)
    return numbers[0] if same else b" ".join(numbers)


def _spark_times(ms: NDArray[np.int64]) -> NDArray[np.int64] | list[int | None]:
    """These times, None for those that Spark does not have."""
    if not len(ms) or (ms.min() >= MIN_SPARK_MS and ms.max() <= MAX_SPARK_MS):
        return ms
    return [one if MIN_SPARK_MS <= one <= MAX_SPARK_MS else None for one in ms.tolist()]


def _mixed_columns(
    fields: list[list[bytes]], ms: NDArray[np.int64], offsets: NDArray[np.int64], native_field: bytes | None
) -> Columns:
    rows = [
        parse_fields(entry, entry_ms, native_field)
        for entry, entry_ms in zip(fields, ms.tolist(), strict=True)
    ]
    producers = [row[4] for row in rows]
    return Columns(
        keys=[row[0] for row in rows],
        values=[row[1] for row in rows],
        offsets=offsets,
        timestamps_ms=[row[2] if MIN_SPARK_MS <= row[2] <= MAX_SPARK_MS else None for row in rows],
        headers=[row[3] for row in rows],
        producers=producers if max(producers, default=-1) >= 0 else None,
    )


def _batch_columns(
    fields: list[list[bytes]],
    ms: NDArray[np.int64],
    offsets: NDArray[np.int64],
    origin: Origin,
    wanted: range,
) -> Columns:
    rows: list[Row] = []
    types: list[int] = []
    producers: list[int] = []
    damaged: list[int] = []
    for entry, entry_ms, offset in zip(fields, ms.tolist(), offsets.tolist(), strict=True):
        batch = read_batch(entry, offset)
        if batch is None:
            if is_damaged(entry, offset):
                damaged.append(offset)
            elif marker_of(entry, offset) is None:
                key, value, timestamp_ms, headers, producer = parse_fields(
                    entry, entry_ms, origin.native_field
                )
                rows.append((key, value, offset, timestamp_ms, headers))
                types.append(origin.timestamp_type)
                producers.append(producer)
            continue
        found = batch.rows
        if batch.base_offset < wanted.start or offset >= wanted.stop:
            found = [row for row in found if row[2] in wanted]
        rows += found
        types += [LOG_APPEND_TIME if batch.log_append_time else CREATE_TIME] * len(found)
        producers += [batch.producer] * len(found)
    return Columns(
        keys=[row[0] for row in rows],
        values=[row[1] for row in rows],
        offsets=np.array([row[2] for row in rows], dtype=np.int64),
        timestamps_ms=[row[3] if MIN_SPARK_MS <= row[3] <= MAX_SPARK_MS else None for row in rows],
        headers=[row[4] for row in rows],
        timestamp_types=types,
        producers=producers if max(producers, default=-1) >= 0 else None,
        damaged=damaged,
    )


def record_batch(columns: Columns, origin: Origin, schema: pa.Schema) -> pa.RecordBatch:
    """The page as an Arrow batch with exactly the fields of `schema` (any subset of the source's columns,
    any order).
    """
    return pa.RecordBatch.from_arrays([_array(field, columns, origin) for field in schema], schema=schema)


def _array(field: pa.Field, columns: Columns, origin: Origin) -> pa.Array:
    rows = len(columns.keys)
    name = field.name
    if name in {"key", "value"}:
        data = columns.keys if name == "key" else columns.values
        return data if isinstance(data, pa.Array) else pa.array(data, type=field.type)
    if name == "topic":
        return _constant(origin.topic, field.type, rows)
    if name == "partition":
        return _constant(origin.partition, field.type, rows)
    if name == "offset":
        return pa.array(columns.offsets, type=field.type)
    if name == "timestamp":
        return _timestamp_array(columns, field.type)
    if name == "timestampType":
        if columns.timestamp_types is not None:
            return pa.array(columns.timestamp_types, type=field.type)
        return _constant(origin.timestamp_type, field.type, rows)
    if name == "headers":
        return _header_array(columns, field.type)
    raise ValueError(f"the korvet source has no column {name!r}")


@lru_cache(maxsize=64)
def _constant(value: str | int, kind: pa.DataType, rows: int) -> pa.Array:
    """The same value for all rows; pages of one partition mostly have as many."""
    return pa.repeat(pa.scalar(value, type=kind), rows)


def _timestamp_array(columns: Columns, kind: pa.DataType) -> pa.Array:
    if isinstance(columns.timestamps_ms, np.ndarray):
        return pa.array((columns.timestamps_ms * 1000).view("datetime64[us]"), type=kind)
    micros = [None if ms is None else ms * 1000 for ms in columns.timestamps_ms]
    return pa.array(micros, type=pa.int64()).cast(kind)


def _header_array(columns: Columns, kind: pa.DataType) -> pa.Array:
    if columns.same_headers:
        return _same_header_array(columns, kind)
    if columns.headers is None:
        return pa.nulls(len(columns.keys), type=kind)
    if isinstance(columns.headers, HeaderColumns):
        return _header_lists(columns.headers, kind)
    rows = [
        None if headers is None else [{"key": key, "value": value} for key, value in headers]
        for headers in columns.headers
    ]
    return pa.array(rows, type=kind)


def _header_lists(headers: HeaderColumns, kind: pa.DataType) -> pa.Array:
    """Null for a row without headers."""
    fields = [kind.value_type.field("key"), kind.value_type.field("value")]
    pairs = pa.StructArray.from_arrays([headers.names, headers.values], fields=fields)
    some = np.diff(headers.ends) > 0
    there = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    buffers = [there, pa.py_buffer(headers.ends)]
    return pa.Array.from_buffers(kind, len(some), buffers, len(some) - int(some.sum()), children=[pairs])


def _same_header_array(columns: Columns, kind: pa.DataType) -> pa.Array:
    rows, width = len(columns.keys), len(columns.same_headers)
    fields = [kind.value_type.field("key"), kind.value_type.field("value")]
    given = [
        one if isinstance(one, pa.Array) else pa.array(one, type=fields[1].type)
        for _, one in columns.same_headers
    ]
    if width == 1:
        names, values = _constant(columns.same_headers[0][0], fields[0].type, rows), given[0]
    else:
        names = pa.array([name for name, _ in columns.same_headers] * rows, type=fields[0].type)
        # Row by row, the headers of each in order.
        places = np.arange(rows * width).reshape(width, rows).T.ravel()
        values = pa.concat_arrays(given).take(pa.array(places))
    pairs = pa.StructArray.from_arrays([names, values], fields=fields)
    ends = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=kind)
