"""What every benchmark of the suite gets: the servers, and how long and how often to measure."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved
from benchmarks.rig.servers import Korvet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.rig.kafka import Kafka
    from benchmarks.rig.servers import Cluster, Store


@dataclass(frozen=True, slots=True)
class Rig:
    """`seconds`: of one measurement; `repeat`: rounds; `scale`: 1, or less for a quick run."""

    store: Store
    korvet: Cluster
    kafka: Kafka | None
    seconds: float
    repeat: int
    scale: float

    def clusters(self) -> dict[str, Cluster]:
        """Every broker to measure, by the name of its side."""
        return {KORVET: self.korvet} | ({"kafka": self.kafka.cluster} if self.kafka is not None else {})

    @contextlib.contextmanager
    def clusters_reading(self) -> Iterator[dict[str, Cluster]]:
        """As `clusters`, with a korvet that keeps nothing in memory: consumers cost it and Redis a read."""
        settings = {"tail.cache.bytes": 0}
        with contextlib.closing(Korvet(self.store, "bench-reading", settings=settings)) as korvet:
            yield self.clusters() | {KORVET: korvet.cluster}

    def scaled(self, count: int) -> int:
        """A number of things to do, less of them in a quick run."""
        return max(1, int(count * self.scale))

    def lasting(self, least_s: float) -> float:
        """The length of a measurement that needs a certain time to mean something, less in a quick run."""
        return max(self.seconds, least_s * self.scale)

    def rows(
        self, benchmark: str, sides: Mapping[str, Callable[[], Sample]], units: Mapping[str, str]
    ) -> Iterator[Row]:
        """Rows of interleaved rounds."""
        return interleaved(benchmark, sides, self.repeat, units)
