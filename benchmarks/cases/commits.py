"""OffsetCommits of a hundred groups. Every commit also moves the Redis group of the same name."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.measuring import Row, Sample
from benchmarks.rig.records import (
    FIND_COORDINATOR,
    OFFSET_COMMIT,
    Request,
    Shape,
    compact_bytes,
    framed,
    produce_requests,
    write_requests,
)
from benchmarks.rig.servers import rest
from tests.support.polling import until
from tests.support.wire import RawConnection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

GROUPS = 100
# Commits in flight per group, each group on its own connection.
IN_FLIGHT = 10
COORDINATOR_TIMEOUT_S = 30
# Number of different offsets that a group commits in turn.
COMMITS = 400
UNITS = {"commits per second": "1/s", "answer, p99": "ms"}


def measure(rig: Rig) -> Iterator[Row]:
    """Measure commits per second and CPU time per commit."""
    sides = {
        name: functools.partial(committed, cluster, rig.seconds) for name, cluster in rig.clusters().items()
    }
    yield from rig.rows(f"OffsetCommit, {GROUPS} groups", sides, UNITS)


def committed(cluster: Cluster, seconds: float) -> Sample:
    """Commit for a while, each group on its own connection."""
    topic = cluster.new_topic()
    filling = write_requests("commits-fill", produce_requests(topic, 1, Shape(100, 64 << 10), 2))
    programs.run("requests", cluster.bootstrap, filling, "--rounds", 1)
    filling.unlink()
    find_coordinators(cluster, topic)
    requests = write_requests("commits", commit_requests(topic))
    rest()
    with cluster.meter() as meter:
        options = ("--seconds", seconds, "--in-flight", IN_FLIGHT, "--connections", GROUPS)
        outcome = programs.run("requests", cluster.bootstrap, requests, *options)
    requests.unlink()
    cluster.drop_topic(topic)
    values = (outcome.rate, outcome.counts["p99_ms"])
    return Sample(dict(zip(UNITS, values, strict=True)), meter.per_million(outcome.records, outcome.cpu_s))


def find_coordinators(cluster: Cluster, topic: str) -> None:
    """Find every group's coordinator, and wait until it accepts commits."""
    host, _, port = cluster.bootstrap.rpartition(":")
    with RawConnection(host, int(port)) as connection:

        def commits(group: str) -> bool:
            name = group.encode()
            body = struct.pack(f">h{len(name)}s", len(name), name)
            connection.ask(framed(FIND_COORDINATOR, 0, body, flexible=False)[4:])
            request = commit_request(group, topic, 0)
            at = request.mark - 4
            return connection.ask(request.data[4:])[at : at + 2] == b"\0\0"

        for group in range(GROUPS):
            until(functools.partial(commits, group_name(group)), COORDINATOR_TIMEOUT_S, "a coordinator")


def group_name(number: int) -> str:
    """Returns the group names, the same in every round."""
    return f"bench-group-{number}"


def commit_requests(topic: str) -> list[Request]:
    """Returns one part of requests per connection: rising offsets of one group."""
    return [
        commit_request(group_name(group), topic, offset)
        for group in range(GROUPS)
        for offset in range(COMMITS)
    ]


def commit_request(group: str, topic: str, offset: int) -> Request:
    """Returns an OffsetCommit v8 of one partition, without membership."""
    name = compact_bytes(topic.encode())
    body = compact_bytes(group.encode()) + struct.pack(">i", -1) + compact_bytes(b"") + b"\0"
    body += b"\x02" + name + b"\x02" + struct.pack(">iqi", 0, offset, -1) + compact_bytes(b"") + b"\0\0\0"
    # Response: size, correlation id, tags, throttle time, topics, name, partitions, index, error code.
    error_at = 4 + 4 + 1 + 4 + 1 + len(name) + 1 + 4
    return Request(framed(OFFSET_COMMIT, 8, body, flexible=True), 1, error_at)
