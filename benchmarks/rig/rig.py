"""The rig of a benchmark: the servers, and how long and how often to measure."""

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
    """`seconds`: length of one measurement; `repeat`: rounds; `scale`: 1, or less for a quick run."""

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
        """Returns the rows of interleaved rounds."""
        return interleaved(benchmark, sides, self.repeat, units)
