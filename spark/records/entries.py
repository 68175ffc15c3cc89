"""Pages of stream entries to columns. Pure: no Redis, no Spark session.

An entry has korvet's own fields (korvet.offsets.entry_fields), or is a whole record batch
(korvet.spark.records.batches). Every other entry was written by a native Redis application and becomes a
record without a key (korvet.offsets.native_entry). No entry can make a read fail.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from korvet.offsets.entry_fields import BATCH, KEY, NULL_HEADER_PREFIX, TIMESTAMP, VALUE
from korvet.offsets.packing import MAX_MS, MAX_OFFSET, MAX_SEQUENCE, SEQUENCE_BITS
from korvet.spark.records.batches import is_damaged, read_batch, read_records
from korvet.spark.records.columns import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Columns,
    HeaderColumns,
    Origin,
)
from korvet.spark.records.fields import header_name, parse_fields
from korvet.spark.records.page import Page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from korvet.spark.records.batches import Row
    from korvet.spark.records.kernel import Rows, Strings
    from korvet.spark.records.page import Entry

_SHORT_DECIMALS = re.compile(rb"-?[0-9]{1,15}(?: -?[0-9]{1,15})*")


def addressable(entries: Sequence[Entry]) -> tuple[Sequence[Entry], NDArray[np.int64], NDArray[np.int64]]:
    """Return the entries that have an offset, with the ms and sequence of their IDs. Others are left out."""
    numbers = _numbers(b"-".join([entry[0] for entry in entries]), "-")
    # NumPy reads a number beyond int64 as the largest int64: a sequence that is left out anyway, or a time.
    if len(numbers) and np.max(numbers[0::2]) > MAX_MS:
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
    end_offset: int = MAX_OFFSET,
    *,
    headers: bool = True,
) -> Columns:
    """Return the columns of one page of XRANGE, without markers and entries that have no offset.

    An entry with a sequence above 1023 has no offset. Record batches contribute only their records from
    start_offset to end_offset - 1, because the first and the last batch may hold others. With headers=False
    headers may be left out.
    """
    wanted = range(start_offset, end_offset)
    if isinstance(entries, Page):
        compiled = _kernel_columns(entries, origin, wanted, headers=headers)
        if compiled is not None:
            return compiled
    entries, ms, sequence = addressable(entries)
    offsets = ((ms << SEQUENCE_BITS) | sequence) - origin.bias
    fields = [entry[1] for entry in entries]
    found = _uniform_columns(fields, ms, offsets)
    if found is None:
        if any(entry[0] == BATCH for entry in fields if entry):
            return _batch_columns(fields, ms, offsets, origin, wanted)
        return _mixed_columns(fields, ms, offsets, origin)
    if origin.has_append_time:
        found.timestamps_ms = ms
    return found


def _kernel_columns(page: Page, origin: Origin, wanted: range, *, headers: bool) -> Columns | None:
    """The columns that the compiled kernel builds; None if it refuses the page."""
    batches = page.batches(origin.bias)
    if batches is None:
        rows = page.rows(origin.bias, append_times=origin.has_append_time, headers=headers)
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
    """The column in the buffers that the kernel filled."""
    validity = pa.py_buffer(strings.validity) if strings.nulls else None
    buffers = [validity, pa.py_buffer(strings.ends), pa.py_buffer(strings.data[: strings.size])]
    return pa.Array.from_buffers(kind, strings.count, buffers, strings.nulls)


def _uniform_columns(
    fields: list[list[bytes]], ms: NDArray[np.int64], offsets: NDArray[np.int64]
) -> Columns | None:
    """The columns of a page whose entries all have the same korvet fields in the same order; else None."""
    if not fields:
        return Columns([], [], offsets, ms, None)
    shape = fields[0][::2]
    names = [header_name(name) for name in shape]
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
    timestamps = _shifted(ms, _joined(found[TIMESTAMP])) if TIMESTAMP in found else ms
    if timestamps is None:
        return None
    if any(
        any(column)
        for name, column in zip(shape, columns[1::2], strict=True)
        if name.startswith(NULL_HEADER_PREFIX)
    ):
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


def _shifted(ms: NDArray[np.int64], relative: bytes) -> NDArray[np.int64] | None:
    """The timestamps of entries: `ms` plus the relative times, one for each entry or one for all.

    None if a relative time is not a short number.
    """
    return None if _SHORT_DECIMALS.fullmatch(relative) is None else ms + _numbers(relative, " ")


def _joined(numbers: Sequence[bytes]) -> bytes:
    """The numbers for `_shifted`; only one if all are equal, as they often are for records of one batch."""
    same = numbers.count(numbers[0]) == len(numbers)
    return numbers[0] if same else b" ".join(numbers)


def _mixed_columns(
    fields: list[list[bytes]], ms: NDArray[np.int64], offsets: NDArray[np.int64], origin: Origin
) -> Columns:
    parsed = [
        parse_fields(entry, entry_ms, origin.native_field)
        for entry, entry_ms in zip(fields, ms.tolist(), strict=True)
    ]
    rows = [row for row in parsed if row is not None]
    if len(rows) < len(parsed):
        is_row = [row is not None for row in parsed]
        ms, offsets = ms[is_row], offsets[is_row]
    times = ms if origin.has_append_time else np.array([row[2] for row in rows], dtype=np.int64)
    producers = [row[4] for row in rows]
    return Columns(
        keys=[row[0] for row in rows],
        values=[row[1] for row in rows],
        offsets=offsets,
        timestamps_ms=times,
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
            elif (parsed := parse_fields(entry, entry_ms, origin.native_field)) is not None:
                key, value, timestamp_ms, headers, producer = parsed
                if origin.has_append_time:
                    timestamp_ms = entry_ms
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
        timestamps_ms=[row[3] for row in rows],
        headers=[row[4] for row in rows],
        timestamp_types=types,
        producers=producers if max(producers, default=-1) >= 0 else None,
        damaged=damaged,
    )
