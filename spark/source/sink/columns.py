"""The columns that the sink writes: those of Spark's Kafka sink, and the record's timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

Headers = tuple[tuple[str | None, bytes | None], ...]
_HEADERS = "array<struct<key:string,value:binary>>"
TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (_HEADERS,),
    "timestamp": ("timestamp",),
}
# Columns of the source that only Redis assigns: a frame that was read can be written.
_IGNORED = frozenset({"offset", "timestampType"})
_MS = 1000


class SinkRow(NamedTuple):
    """One row. A null partition is chosen by the key; a null timestamp is the time of the append (ms)."""

    key: bytes | None
    value: bytes | None
    topic: str | None
    partition: int | None
    headers: Headers
    timestamp_ms: int | None

    def topic_name(self, option: str | None) -> str:
        """The row's topic; the option takes precedence. Raises SourceError without one."""
        name = self.topic if option is None else option
        if name is None:
            raise SourceError("the column topic is null, and there is no option topic")
        return name


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises SourceError for a column that can't be written, and for a missing one. `topic`: the option."""
    names = [field.name for field in schema]
    has = ", ".join(f"{name} {' or '.join(types)}" for name, types in TYPES.items())
    for field in schema:
        kind = field.dataType.simpleString()
        if field.name in _IGNORED:
            continue
        if kind not in TYPES.get(field.name, ()):
            raise SourceError(
                f"the korvet sink can't write a column {field.name} of type {kind}; it has {has}"
            )
        if names.count(field.name) > 1:
            raise SourceError(f"there are several columns {field.name}")
    if "value" not in names:
        raise SourceError(f"the korvet sink needs a column value; the frame has {', '.join(names) or 'none'}")
    if topic is None and "topic" not in names:
        raise SourceError("give the option topic, or a column topic")


def rows_of(batch: pa.RecordBatch) -> Iterator[SinkRow]:
    """Yield the rows of an Arrow batch whose columns passed check_columns."""
    columns = [_column(batch, name, values) for name, values in _VALUES.items()]
    for row in zip(*columns, strict=True):
        yield SinkRow(*row)


def _column(batch: pa.RecordBatch, name: str, values: Callable[[Any], list[Any]]) -> list[Any]:
    at = batch.schema.get_field_index(name)
    if at < 0:
        return [() if name == "headers" else None] * batch.num_rows
    return values(batch.column(at))


def _octets(column: Any) -> list[Any]:
    """Strings as UTF-8."""
    return column.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


def _plain(column: Any) -> list[Any]:
    return column.to_pylist()  # type: ignore[no-any-return]


def _header_pairs(column: Any) -> list[Any]:
    return [
        tuple((None, None) if one is None else (one["key"], one["value"]) for one in headers or ())
        for headers in column.to_pylist()
    ]


def _milliseconds(column: Any) -> list[Any]:
    """Spark's timestamps are microseconds; the rest of a millisecond is cut off, as in Spark's functions."""
    micros = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return [None if one is None else one // _MS for one in micros]


# In the order of SinkRow.
_VALUES: dict[str, Callable[[Any], list[Any]]] = {
    "key": _octets,
    "value": _octets,
    "topic": _plain,
    "partition": _plain,
    "headers": _header_pairs,
    "timestamp": _milliseconds,
}
