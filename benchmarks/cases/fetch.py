"""Fetch of stored records from offset 0, by a C client that reads batches and counts records."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, in_flight
from benchmarks.rig import programs
from benchmarks.rig.measuring import KORVET, Meter, Row, Sample
from benchmarks.rig.records import LAYOUTS, Shape, produce_requests, size_text, write_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

RECORDS = {Shape(100, 64 << 10): 1_000_000, Shape(1024, 64 << 10): 250_000}
DEADLINE_S = 60


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rates and CPU time per record, for every shape in both layouts."""
    with rig.clusters_reading() as clusters:
        for layout, (shape, count) in itertools.product(LAYOUTS, RECORDS.items()):
            yield from measure_one(rig, clusters, layout, shape, rig.scaled(count))


def measure_one(
    rig: Rig, clusters: Mapping[str, Cluster], layout: str, shape: Shape, count: int
) -> Iterator[Row]:
    """Measure the same records in each cluster, and in Redis."""
    topics = {
        name: filled_topic(cluster.in_layout(layout), shape, count) for name, cluster in clusters.items()
    }
    sides: dict[str, Callable[[], Sample]] = {
        name: functools.partial(fetched, cluster, *topics[name]) for name, cluster in clusters.items()
    }
    topic, records = topics[KORVET]
    sides["redis"] = functools.partial(ranged, rig.store, clusters[KORVET].stream(topic), records)
    name = f"fetch of stored records, {size_text(shape.value_bytes)}{suffix(layout)}"
    yield from rig.rows(name, sides, {RATE: RECORDS_PER_SECOND})
    for name, (topic, _) in topics.items():
        clusters[name].drop_topic(topic)


def suffix(layout: str) -> str:
    """Returns the part of a benchmark's name that names the layout."""
    return "" if layout == LAYOUTS[0] else f", storage.layout={layout}"


def filled_topic(cluster: Cluster, shape: Shape, records: int) -> tuple[str, int]:
    """Create a topic with at least this number of records. Returns it and the actual number."""
    topic = cluster.new_topic()
    batches = 2 * in_flight(shape)
    requests = write_requests("fill", produce_requests(topic, 1, shape, batches))
    rounds = -(-records // (batches * shape.per_batch))
    outcome = programs.run("requests", cluster.bootstrap, requests, "--rounds", rounds)
    requests.unlink()
    return topic, outcome.records


def fetched(cluster: Cluster, topic: str, records: int) -> Sample:
    """Read a topic once, completely."""
    with cluster.meter() as meter:
        options = ("--records", records, "--seconds", DEADLINE_S)
        outcome = programs.run("fetch", cluster.bootstrap, topic, *options)
    return Sample({RATE: outcome.rate}, meter.per_million(outcome.records, outcome.cpu_s))


def ranged(store: Store, stream: str, records: int) -> Sample:
    """Read the entries of this number of records once with XRANGE."""
    with Meter({"redis": store.pid}) as meter:
        # Limits the entries per reply: entries of one batch are large.
        count = 500 if records == store.client.xlen(stream) else 16
        outcome = programs.run("range", store.address, stream, "--count", count)
    return Sample({RATE: records / outcome.seconds}, meter.per_million(records, outcome.cpu_s))
