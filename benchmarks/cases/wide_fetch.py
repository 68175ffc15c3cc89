"""One Fetch of a thousand partitions: at their ends, waiting there, and with a record in each.

At their ends, a client without a session sends the same request again, or names the partitions in another
order each time, as librdkafka does. A client with a session (KIP-227) names no partition.
"""

from __future__ import annotations

import functools
import socket
import struct
from typing import TYPE_CHECKING

from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import Row, Sample
from benchmarks.rig.records import Shape, fetch_request, produce_requests, write_requests
from benchmarks.rig.servers import rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.rig.records import Request
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

PARTITIONS = 1_000
RECORD = Shape(100, 0)
# Consumers' defaults.
WAIT_MS = 500
LEAST_WAITING_S = 2.0
# Requests before the measurements, after which a JVM has compiled what they use.
WARM_UP_REQUESTS = 2_000
SESSION_REQUESTS = 5_000
ORDERS = 20
# Session ID in a Fetch response v11: after size, correlation id, throttle time and error code.
SESSION_ID_AT = 4 + 4 + 4 + 2
P50, P99 = "answer, p50", "answer, p99"
UNITS = {P50: "ms", P99: "ms"}
CPU = {"CPU of all processes, one request": "ms"}
NAME = f"Fetch, {PARTITIONS:,} partitions"
EMPTY = f"{NAME}, no records"
REORDERED = f"{EMPTY}, in turning order"
IN_SESSION = f"{EMPTY}, in a session"
GOALS = tuple(Goal(name, P50, "kafka", 1.2) for name in (EMPTY, REORDERED, IN_SESSION))


def measure(rig: Rig) -> Iterator[Row]:
    """Measure response times; for responses after a wait, the CPU time of the broker."""
    count = rig.scaled(PARTITIONS)
    clusters = rig.clusters()
    topics = {name: cluster.new_topic(count) for name, cluster in clusters.items()}

    def rows(benchmark: str, measured: Callable[..., Sample], units: dict[str, str]) -> Iterator[Row]:
        sides = {
            name: functools.partial(measured, cluster, topics[name], count)
            for name, cluster in clusters.items()
        }
        return rig.rows(benchmark, sides, units)

    for name, cluster in clusters.items():
        sent(
            cluster, [fetch_request(topics[name], range(count), 0)], "--rounds", rig.scaled(WARM_UP_REQUESTS)
        )
    yield from rows(EMPTY, functools.partial(repeated, seconds=rig.seconds), UNITS)
    yield from rows(REORDERED, functools.partial(reordered, seconds=rig.seconds), UNITS)
    in_session = functools.partial(continued, requests=rig.scaled(SESSION_REQUESTS))
    yield from rows(IN_SESSION, in_session, UNITS)
    waiting = functools.partial(repeated, seconds=rig.lasting(LEAST_WAITING_S), wait_ms=WAIT_MS)
    yield from rows(f"{EMPTY}, waits {WAIT_MS} ms", waiting, CPU)
    for name, cluster in clusters.items():
        fill(cluster, topics[name], count)
    yield from rows(f"{NAME}, one record in each", functools.partial(filled, seconds=rig.seconds), UNITS)
    for name, cluster in clusters.items():
        cluster.drop_topic(topics[name])


def fill(cluster: Cluster, topic: str, count: int) -> None:
    """Produce one record into each partition."""
    requests = write_requests("wide-fill", produce_requests(topic, count, RECORD, count))
    programs.run("requests", cluster.bootstrap, requests, "--rounds", 1)
    requests.unlink()
    rest()


def repeated(cluster: Cluster, topic: str, count: int, *, seconds: float, wait_ms: int = 0) -> Sample:
    """Send the same request again and again."""
    _, sample = sent(cluster, [fetch_request(topic, range(count), wait_ms)], "--seconds", seconds)
    return sample


def reordered(cluster: Cluster, topic: str, count: int, *, seconds: float) -> Sample:
    """Begin each request with another partition."""
    firsts = range(0, count, -(-count // ORDERS))
    orders = ([*range(first, count), *range(first)] for first in firsts)
    _, sample = sent(cluster, [fetch_request(topic, order, 0) for order in orders], "--seconds", seconds)
    return sample


def continued(cluster: Cluster, topic: str, count: int, *, requests: int) -> Sample:
    """Open a session with all partitions, and continue it without changes."""
    session_id = opened_session(cluster, fetch_request(topic, range(count), 0, (0, 0)))
    following = [fetch_request(topic, (), 0, (session_id, epoch)) for epoch in range(1, requests + 1)]
    _, sample = sent(cluster, following, "--rounds", 1)
    return sample


def filled(cluster: Cluster, topic: str, count: int, *, seconds: float) -> Sample:
    """Send the same request again and again, and get a record of each partition each time."""
    outcome, sample = sent(cluster, [fetch_request(topic, range(count), 0)], "--seconds", seconds)
    if outcome.counts["reply_bytes"] < outcome.requests * count * RECORD.value_bytes:
        raise programs.LoadFailed(f"{topic}: not every partition was answered with its record")
    return sample


def sent(cluster: Cluster, requests: list[Request], *options: object) -> tuple[programs.Outcome, Sample]:
    """Send requests one after the other."""
    file = write_requests("wide-fetch", requests)
    with cluster.meter() as meter:
        outcome = programs.run("requests", cluster.bootstrap, file, "--in-flight", 1, *options)
    file.unlink()
    counts = outcome.counts
    values = (counts["p50_ms"], counts["p99_ms"], 1000 * sum(meter.used.values()) / outcome.requests)
    sample = Sample(dict(zip((*UNITS, *CPU), values, strict=True)), meter.per_million(outcome.requests))
    return outcome, sample


def opened_session(cluster: Cluster, request: Request) -> int:
    """Returns the ID of the session that a request opens. Raises LoadFailed."""
    host, _, port = cluster.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), programs.GRACE_S) as connection:
        connection.sendall(request.data)
        with connection.makefile("rb") as answers:
            head = answers.read(SESSION_ID_AT + 4)
            (size,) = struct.unpack_from(">i", head)
            answers.read(4 + size - len(head))
    (session_id,) = struct.unpack_from(">i", head, SESSION_ID_AT)
    if session_id == 0:
        raise programs.LoadFailed(f"{cluster.bootstrap} opened no session")
    return int(session_id)
