"""Columns as an Arrow batch in the layout of Spark's Kafka source."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from korvet.spark.records.columns import MAX_SPARK_MS, MIN_SPARK_MS, HeaderColumns

if TYPE_CHECKING:
    from korvet.spark.records.columns import Columns, Origin


def record_batch(columns: Columns, origin: Origin, schema: pa.Schema) -> pa.RecordBatch:
    """Return the page as an Arrow batch with the fields of `schema`: columns of the source in any order.

    Raises ValueError for a field that is not a column of the source.
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
    """The same value in all rows. Cached: most pages of a partition have the same number of rows."""
    return pa.repeat(pa.scalar(value, type=kind), rows)


def _timestamp_array(columns: Columns, kind: pa.DataType) -> pa.Array:
    times = columns.timestamps_ms
    if isinstance(times, np.ndarray):
        if not len(times) or (np.min(times) >= MIN_SPARK_MS and np.max(times) <= MAX_SPARK_MS):
            return pa.array((times * 1000).view("datetime64[us]"), type=kind)
        times = times.tolist()
    micros = [ms * 1000 if MIN_SPARK_MS <= ms <= MAX_SPARK_MS else None for ms in times]
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
    """The headers as lists of structs, null for a row without headers."""
    fields = [kind.value_type.field("key"), kind.value_type.field("value")]
    pairs = pa.StructArray.from_arrays([headers.names, headers.values], fields=fields)
    some = np.diff(headers.ends) > 0
    validity = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    buffers = [validity, pa.py_buffer(headers.ends)]
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
        # Row by row, each row's headers in order.
        order = np.arange(rows * width).reshape(width, rows).T.ravel()
        values = pa.concat_arrays(given).take(pa.array(order))
    pairs = pa.StructArray.from_arrays([names, values], fields=fields)
    ends = np.arange(0, rows * width + 1, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pairs, type=kind)
