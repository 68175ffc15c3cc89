"""The collectors of a process: what a scrape reads."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType, Samples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from korvet.metrics.family import Value

_COLLECTOR_FAILURES: Final = declare(
    "korvet_collector_failures_total",
    "Exceptions of collectors, which leave their metrics out of a scrape.",
    "collector",
    kind=MetricType.COUNTER,
)

Collector: TypeAlias = "Callable[[], Iterable[Samples]]"
"""Returns what a part has counted. It awaits nothing and sends nothing.

The event loop runs other work while a page is rendered, between rows too. So rows over something that changes
are a copy (`list(...)`), or look each key up again.
"""

log = logging.getLogger(__name__)


class Registry:
    """Collectors by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._collectors: dict[str, Collector] = {}
        self._failures: Counter[str] = Counter()

    def add(self, collectors: Iterable[tuple[str, Collector]]) -> None:
        """Read these collectors too, from the next scrape on. Each has a name of its own; no two collectors
        report the same family.
        """
        for name, collector in collectors:
            if name in self._collectors:
                raise ValueError(f"there is a collector {name} already")
            self._collectors[name] = collector

    def collect(self) -> Iterator[Samples]:
        """Yield the samples of all collectors. A collector that fails is logged and counted, and the others
        are still read.
        """
        for name, collector in list(self._collectors.items()):
            try:
                for family, rows in collector():
                    # Other rows are made while they are read.
                    yield Samples(family, rows if isinstance(rows, list) else self._readable(name, rows))
            except Exception:
                log.exception("the collector %s failed", name)
                self._failures[name] += 1
        family = _COLLECTOR_FAILURES
        yield Samples(family, [(family.text(name), self._failures[name]) for name in self._collectors])

    def _readable(self, name: str, rows: Iterable[tuple[str, Value]]) -> Iterator[tuple[str, Value]]:
        """The rows up to the first one that fails."""
        try:
            yield from rows
        except Exception:
            log.exception("the rows of the collector %s failed", name)
            self._failures[name] += 1
