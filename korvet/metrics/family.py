"""Metric families: names with a meaning, and the samples that a scrape finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Value: TypeAlias = int | float | Histogram

NO_LABELS: Final = ""
"""The label text of a family without labels."""

_ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class MetricType(StrEnum):
    """The type of a family. A summary is a histogram that is written as quantiles."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    INFO = "info"


@dataclass(frozen=True)
class Family:
    """A metric as users know it. The name of a counter ends in `_total`, that of an info in `_info`."""

    name: str
    kind: MetricType
    help: str
    """What it counts, in one sentence, with the unit."""
    labels: tuple[str, ...] = ()
    by_one_broker: bool = False
    """Whether exactly one broker of the cluster reports each series, for example a partition's leader. A page
    of several brokers shows the node ID in the series of all other families.
    """
    declared_in: str = ""
    """The module that declares it; empty for a family of a test."""

    def text(self, *values: object) -> str:
        """Returns the label text of a sample, `{topic="orders",partition="0"}`, for these label values.
        Collectors keep the texts of long-lived samples.
        """
        return label_text(zip(self.labels, values, strict=True))

    def single(self, value: Value) -> Samples:
        """Returns the sample of a family without labels."""
        return Samples(self, [(NO_LABELS, value)])

    def by_label(self, values: Mapping[str, Value]) -> Samples:
        """Returns the samples of a family with one label, by its values."""
        return Samples(self, [(self.text(name), value) for name, value in values.items()])


class Samples(NamedTuple):
    """What a scrape finds for a family: label texts with their values, a Histogram for the kinds that are
    made from one.
    """

    family: Family
    rows: Iterable[tuple[str, Value]]


def label_text(labels: Iterable[tuple[str, object]]) -> str:
    """Returns the labels as Prometheus writes them; empty without labels."""
    pairs = ",".join(f'{name}="{str(value).translate(_ESCAPED)}"' for name, value in labels)
    return f"{{{pairs}}}" if pairs else NO_LABELS
