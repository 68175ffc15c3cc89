"""The rig of a benchmark: the servers, and how long and how often to measure."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved
from benchmarks.rig.records import LAYOUTS
from benchmarks.rig.servers import Korvet
from korvet.spark.session.jars import JarsMissing, find_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from benchmarks.rig.kafka import Kafka
    from benchmarks.rig.servers import Cluster, Store


# Other ways than korvet's defaults to store the same records.
WITHOUT_MODULE, BATCH_LAYOUT = "without module", "batch layout"


@dataclass(frozen=True, slots=True)
class Rig:
    """`plain`: a korvet on a Redis without the server module, None if the module is not built.

    `seconds`: length of one measurement; `repeat`: rounds; `scale`: 1, or less for a quick run; `wanted`:
    whether a benchmark of this name is measured; `note`: prints what cannot be measured here, and why.
    """

    store: Store
    korvet: Cluster
    plain: Cluster | None
    kafka: Kafka | None
    seconds: float
    repeat: int
    scale: float
    wanted: Callable[[str], bool]
    note: Callable[[str], None]

    def connector_jars(self) -> list[Path]:
        """Returns the jars of Spark's Kafka connector. Without them, prints the reason and returns none."""
        try:
            return find_jars()
        except JarsMissing as reason:
            self.note(f"without the official connector: {reason}")
            return []

    def clusters(self) -> dict[str, Cluster]:
        """Every broker to measure, by the name of its side."""
        return {KORVET: self.korvet} | ({"kafka": self.kafka.cluster} if self.kafka is not None else {})

    def layouts(self) -> dict[str, Cluster]:
        """Like `clusters`, with the other ways of korvet to store the records."""
        plain = {WITHOUT_MODULE: self.plain} if self.plain is not None else {}
        return self.clusters() | plain | {BATCH_LAYOUT: self.korvet.in_layout(LAYOUTS[1])}

    @contextlib.contextmanager
    def clusters_reading(self) -> Iterator[dict[str, Cluster]]:
        """Like `clusters`, with a korvet without a tail cache, so that consumers read from Redis."""
        settings = {"tail.cache.bytes": 0}
        with contextlib.closing(Korvet(self.store, "bench-reading", settings=settings)) as korvet:
            yield self.clusters() | {KORVET: korvet.cluster}

    def scaled(self, count: int) -> int:
        """Returns a number of operations, fewer in a quick run."""
        return max(1, int(count * self.scale))

    def lasting(self, least_s: float) -> float:
        """Returns the length of a measurement that needs at least this time, less in a quick run."""
        return max(self.seconds, least_s * self.scale)

    def rows(
        self, benchmark: str, sides: Mapping[str, Callable[[], Sample]], units: Mapping[str, str]
    ) -> Iterator[Row]:
        """Returns the rows of interleaved rounds; none if the benchmark is not to be measured."""
        if not self.wanted(benchmark):
            return iter(())
        return interleaved(benchmark, sides, self.repeat, units)
