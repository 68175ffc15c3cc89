"""The batch reader that applies filters, for Spark 4.1 and newer: older ones pass none to Python sources."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.spark.source.planning import since
from korvet.spark.source.reader import KorvetReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType

    from korvet.spark.source.connection import SourceConnection
    from korvet.spark.source.extents import StreamRange
    from korvet.spark.source.planning import Selection
    from korvet.spark.source.settings import SourceOptions

NEVER_NULL = frozenset({"topic", "partition", "offset", "timestampType"})
EPOCH = datetime(1970, 1, 1)
MILLISECOND = timedelta(milliseconds=1)
_COMPARISONS = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


class KorvetPushdownReader(KorvetReader):
    """Also applies filters on topic, partition, offset and timestamp, with the option pushdown=true.

    It is a separate class because Spark fails every read of a reader with the method pushFilters if
    spark.sql.python.filterPushdown.enabled is false, the default.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        """Keep the filters that limit the read; return those that the reader doesn't apply exactly."""
        for pushed in filters:
            exact = _is_exact(pushed)
            if exact or _is_limit(pushed):
                self._pushed.append(pushed)
            if not exact:
                yield pushed

    def _ranges(self, connection: SourceConnection, selection: Selection) -> list[StreamRange]:
        kept = []
        for part in super()._ranges(connection, selection):
            narrowed = part
            for pushed in self._pushed:
                narrowed = self._narrowed(connection, selection, narrowed, pushed)
            if narrowed.start_offset < narrowed.end_offset:
                kept.append(narrowed)
        return kept

    def _narrowed(
        self, connection: SourceConnection, selection: Selection, part: StreamRange, pushed: Filter
    ) -> StreamRange:
        """The part of a range that can contain rows of a pushed filter."""
        if isinstance(pushed, IsNotNull) or part.start_offset >= part.end_offset:
            return part
        name = pushed.attribute[0]  # type: ignore[attr-defined]
        if name == "timestamp":
            least_ms, end_ms = _time_limits(pushed)
            start, end = part.start_offset, part.end_offset
            if least_ms is not None:
                extent = selection.extents[part.origin.topic, part.origin.partition]
                start = since(connection, extent, start, least_ms)
            if end_ms is not None and part.origin.append_times:
                end = min(end, end_ms << SEQUENCE_BITS)
            return replace(part, start_offset=start, end_offset=end)
        listed = pushed.value if isinstance(pushed, In) else (pushed.value,)  # type: ignore[attr-defined]
        # Nothing equals null.
        values = tuple(value for value in listed if value is not None)
        if not values:
            return replace(part, end_offset=part.start_offset)
        if name != "offset":
            value = part.origin.topic if name == "topic" else part.origin.partition
            return part if value in values else replace(part, end_offset=part.start_offset)
        first, last = _offset_limits(pushed, values)
        start = part.start_offset if first is None else max(part.start_offset, first)
        end = part.end_offset if last is None else min(part.end_offset, last + 1)
        return replace(part, start_offset=start, end_offset=end)


def _column(pushed: Filter) -> str | None:
    attribute = getattr(pushed, "attribute", None)
    return attribute[0] if attribute is not None and len(attribute) == 1 else None


def _is_exact(pushed: Filter) -> bool:
    """Whether the offset ranges of a filter contain only rows that pass the filter."""
    name = _column(pushed)
    if isinstance(pushed, IsNotNull):
        return name in NEVER_NULL
    if isinstance(pushed, EqualTo | In):
        return name in {"topic", "partition"} or (name == "offset" and isinstance(pushed, EqualTo))
    return name == "offset" and isinstance(pushed, _COMPARISONS)


def _is_limit(pushed: Filter) -> bool:
    name = _column(pushed)
    if isinstance(pushed, In):
        return name == "offset" and bool(pushed.value)
    return name == "timestamp" and isinstance(pushed, _COMPARISONS)


def _time_limits(pushed: Filter) -> tuple[int | None, int | None]:
    """The lower limit (inclusive) and upper limit (exclusive), in ms, of the timestamps that pass a filter.

    None without a limit, or if it isn't known.
    """
    value = pushed.value  # type: ignore[attr-defined]
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None, None
    elapsed: timedelta = value.replace(tzinfo=None) - value.utcoffset() - EPOCH  # type: ignore[operator]
    floor, ceiling = elapsed // MILLISECOND, -(-elapsed // MILLISECOND)
    least = floor + 1 if isinstance(pushed, GreaterThan) else ceiling
    end = ceiling if isinstance(pushed, LessThan) else floor + 1
    return (
        None if isinstance(pushed, LessThan | LessThanOrEqual) else max(0, least),
        None if isinstance(pushed, GreaterThan | GreaterThanOrEqual) else max(0, end),
    )


def _offset_limits(pushed: Filter, values: tuple[int, ...]) -> tuple[int | None, int | None]:
    """First and last offset that pass a filter on the offset; None without a limit."""
    if isinstance(pushed, EqualTo | In):
        return min(values), max(values)
    (value,) = values
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(pushed, GreaterThan), None
    return None, value - isinstance(pushed, LessThan)
