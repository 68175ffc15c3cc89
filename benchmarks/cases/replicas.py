"""Produce with acks=all on a Redis with one replica: waiting for the replica, and not."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND, in_flight, produced
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import KORVET
from benchmarks.rig.records import Shape
from benchmarks.rig.servers import Korvet, Store
from korvet.redis.module import find_module
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.measuring import Row
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

SINGLE = Shape(200, 0)
BATCHES = Shape(200, 16 << 10)
DEPTHS = {SINGLE: (1, 32), BATCHES: (1, in_flight(BATCHES))}
NOT_WAITING = "not waiting"
ALL = -1


def _name(shape: Shape, depth: int) -> str:
    return f"acks=all with a replica, {shape}, {depth} in flight"


GOALS = tuple(Goal(_name(shape, depths[-1]), RATE, NOT_WAITING, 0.75) for shape, depths in DEPTHS.items())


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rates, for single records and batches, one in flight and several."""
    if not any(rig.wanted(_name(shape, depth)) for shape, depths in DEPTHS.items() for depth in depths):
        return
    with replicated() as cluster:
        clusters = {
            KORVET: cluster.with_topics({"min.insync.replicas": "2"}),
            NOT_WAITING: cluster.with_topics({"min.insync.replicas": "1"}),
        }
        for shape, depths in DEPTHS.items():
            for depth in depths:
                sides = {
                    name: functools.partial(produced, one, shape, depth, rig.seconds, acks=ALL)
                    for name, one in clusters.items()
                }
                yield from rig.rows(_name(shape, depth), sides, {RATE: RECORDS_PER_SECOND})


@contextlib.contextmanager
def replicated() -> Iterator[Cluster]:
    """A korvet on a server with one replica."""
    module = find_module()
    with (
        contextlib.closing(Store(module=module)) as primary,
        contextlib.closing(Store(module=module)) as replica,
    ):
        replica.client.replicaof("127.0.0.1", primary.port)
        until(
            lambda: replica.client.info("replication")["master_link_status"] == "up",
            60,
            "the replica follows",
        )
        with contextlib.closing(Korvet(primary, "bench-replicas")) as korvet:
            yield korvet.cluster


def _follows(replica: Store) -> bool:
    return str(replica.client.info("replication")["master_link_status"]) == "up"
