"""The effect of Redis settings, and of the kind of connection to Redis, on a produce load."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from benchmarks.cases.produce import MEMORY, RATE, RECORDS_PER_SECOND, in_flight, produced
from benchmarks.rig.measuring import KORVET, Row, Sample
from benchmarks.rig.records import Shape, size_text
from benchmarks.rig.servers import Korvet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

SHAPES = (Shape(100, 64 << 10), Shape(1024, 64 << 10))
DEFAULTS = "defaults, unix socket"
# Settings that are changed while the server runs, and then restored.
SETTINGS: dict[str, dict[str, str]] = {
    DEFAULTS: {},
    "stream-node-max-bytes 16384, entries 0": {
        "stream-node-max-bytes": "16384",
        "stream-node-max-entries": "0",
    },
    "appendonly, appendfsync everysec": {"appendfsync": "everysec", "appendonly": "yes"},
    "appendonly, appendfsync always": {"appendfsync": "always", "appendonly": "yes"},
}
TCP = "TCP instead of the unix socket"
UNITS = {RATE: RECORDS_PER_SECOND, MEMORY: "B"}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rates, CPU time and memory per record with each setting, in the same rounds."""
    with contextlib.closing(Korvet(rig.store, "bench-tcp", rig.store.tcp_url)) as tcp:
        for shape in SHAPES:
            sides = {
                name: functools.partial(tuned, rig, rig.korvet, shape, settings)
                for name, settings in SETTINGS.items()
            }
            sides[TCP] = functools.partial(tuned, rig, tcp.cluster, shape, {})
            name = f"tuning, {size_text(shape.value_bytes)}"
            for row in rig.rows(name, sides, UNITS):
                for setting, values in row.values.items():
                    cpu = {KORVET: row.cpu[setting]}
                    yield Row(f"{name}: {setting}", row.figure, row.unit, {KORVET: values}, cpu)


def tuned(rig: Rig, cluster: Cluster, shape: Shape, settings: dict[str, str]) -> Sample:
    """Produce for a while with these settings of Redis."""
    with rig.store.configured(settings):
        return produced(cluster, shape, in_flight(shape), rig.seconds)
