"""Metrics declared in the class that counts.

    class LeaseCounts(Counted):
        failed = counter("korvet_lease_renewal_failures_total", "Renewals of the lease that failed.")

Each object of the class has a plain attribute `failed`, which starts at 0 and to which code adds: the brokers
of one process count for themselves, and an addition costs as much as to any other attribute.
"""

from __future__ import annotations

import collections
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar, cast

from korvet.metrics.declared import declare
from korvet.metrics.family import NO_LABELS, Family, MetricType, Samples, label_text
from korvet.metrics.histogram import SECONDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.metrics.family import Value

_Method = TypeVar("_Method", bound="Callable[[Any], Value]")


class _Number(NamedTuple):
    """The declaration of an attribute."""

    family: Family
    start: Callable[[], Any]
    values: tuple[str, ...] = ()
    """The values of the family's last labels."""


def counter(name: str, help_text: str, *labels: str) -> int:
    """Declare a number that only grows."""
    return cast("int", _Number(declare(name, help_text, *labels, kind=MetricType.COUNTER), int))


def gauge(name: str, help_text: str, *labels: str) -> int:
    """Declare a number that grows and falls."""
    return cast("int", _Number(declare(name, help_text, *labels), int))


def histogram(name: str, help_text: str, *labels: str, bounds: Sequence[float] = SECONDS) -> Histogram:
    """Declare a histogram with these bounds."""
    family = declare(name, help_text, *labels, kind=MetricType.HISTOGRAM)
    return cast("Histogram", _Number(family, partial(Histogram, bounds)))


def counters(name: str, help_text: str, *labels: str) -> collections.Counter[str]:
    """Declare numbers that only grow, by the value of the last label."""
    family = declare(name, help_text, *labels, kind=MetricType.COUNTER)
    return cast("collections.Counter[str]", _Number(family, collections.Counter))


def part(family: Family, *values: str) -> int:
    """Declare one of several numbers of a family, with the values of its last labels."""
    return cast("int", _Number(family, int, values))


def shown(
    name: str, help_text: str, *labels: str, kind: MetricType = MetricType.GAUGE
) -> Callable[[_Method], _Method]:
    """Declare a number that is computed, by a decorator below `@property`."""

    def decorated(method: _Method) -> _Method:
        method.family = declare(name, help_text, *labels, kind=kind)  # type: ignore[attr-defined]
        return method

    return decorated


class Counted:
    """Has the numbers that its class and the bases of its class declare."""

    _starts: ClassVar[dict[str, Callable[[], Any]]] = {}
    # The attributes of each family, with the text of their own labels.
    _families: ClassVar[dict[Family, list[tuple[str, str]]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._starts = dict(cls._starts)
        cls._families = {family: [*attributes] for family, attributes in cls._families.items()}
        for name, value in list(vars(cls).items()):
            if isinstance(value, _Number):
                # Python finds attributes of an object faster if its class has none of the same name.
                delattr(cls, name)
                cls._starts[name] = value.start
                own = zip(value.family.labels[-len(value.values) :], value.values, strict=False)
                cls._families.setdefault(value.family, []).append((name, label_text(own)))
            elif isinstance(value, property) and isinstance(
                family := getattr(value.fget, "family", None), Family
            ):
                cls._families[family] = [(name, NO_LABELS)]

    def __init__(self) -> None:
        for name, start in self._starts.items():
            setattr(self, name, start())

    def samples(self) -> Iterator[Samples]:
        """Yield the samples of all families of the class, in the order of their declaration."""
        return self.samples_of([(NO_LABELS, self)])

    @classmethod
    def samples_of(cls, rows: Sequence[tuple[str, Self]]) -> Iterator[Samples]:
        """Yield the samples of several objects, each with its label text."""
        for family, attributes in cls._families.items():
            found = [
                (_joined(text, own) if own else text, getattr(each, name))
                for text, each in rows
                for name, own in attributes
            ]
            if cls._starts.get(attributes[0][0]) is collections.Counter:
                label = family.labels[-1]
                found = [
                    (_joined(text, label_text([(label, key)])), count)
                    for text, by_key in found
                    for key, count in sorted(by_key.items())
                ]
            yield Samples(family, found)


def _joined(text: str, more: str) -> str:
    """Returns one label text of two."""
    return f"{text[:-1]},{more[1:]}" if text else more
