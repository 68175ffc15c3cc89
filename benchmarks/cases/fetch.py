"""Fetch of stored records from offset 0, by a C client that reads batches and counts records."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, in_flight
from benchmarks.rig import programs
from benchmarks.rig.measuring import KORVET, Meter, Row, Sample
from benchmarks.rig.records import Shape, produce_requests, size_text, write_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

# Far more than any cache of the newest records holds.
RECORDS = {Shape(100, 64 << 10): 1_000_000, Shape(1024, 64 << 10): 250_000}
DEADLINE_S = 60


def measure(rig: Rig) -> Iterator[Row]:
    """Rates and CPU per record, for every shape."""
    for shape, count in RECORDS.items():
        clusters = rig.clusters()
        topics = {name: filled_topic(cluster, shape, rig.scaled(count)) for name, cluster in clusters.items()}
        sides: dict[str, Callable[[], Sample]] = {
            name: functools.partial(fetched, cluster, *topics[name]) for name, cluster in clusters.items()
        }
        sides["redis"] = functools.partial(ranged, rig.store, rig.korvet.stream(topics[KORVET][0]))
        name = f"fetch of stored records, {size_text(shape.value_bytes)}"
        yield from rig.rows(name, sides, {RATE: RECORDS_PER_SECOND})
        for name, (topic, _) in topics.items():
            clusters[name].drop_topic(topic)


def filled_topic(cluster: Cluster, shape: Shape, records: int) -> tuple[str, int]:
    """A new topic with at least so many records, and how many they are."""
    topic = cluster.new_topic()
    batches = 2 * in_flight(shape)
    requests = write_requests("fill", produce_requests(topic, 1, shape, batches))
    rounds = -(-records // (batches * shape.per_batch))
    outcome = programs.run("requests", cluster.bootstrap, requests, "--rounds", rounds)
    requests.unlink()
    return topic, outcome.records


def fetched(cluster: Cluster, topic: str, records: int) -> Sample:
    """Read all of a topic once."""
    with cluster.meter() as meter:
        options = ("--records", records, "--seconds", DEADLINE_S)
        outcome = programs.run("fetch", cluster.bootstrap, topic, *options)
    return Sample({RATE: outcome.rate}, meter.per_million(outcome.records, outcome.cpu_s))


def ranged(store: Store, stream: str) -> Sample:
    """Read the same entries once with XRANGE."""
    with Meter({"redis": store.pid}) as meter:
        outcome = programs.run("range", store.address, stream)
    return Sample({RATE: outcome.rate}, meter.per_million(outcome.records, outcome.cpu_s))
