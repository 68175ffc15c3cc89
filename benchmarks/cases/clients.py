"""Real clients with default settings on both brokers: librdkafka, and Kafka's own performance tools."""

from __future__ import annotations

import functools
import itertools
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.cases.produce import RATE, RECORDS_PER_SECOND
from benchmarks.rig import programs
from benchmarks.rig.goals import Goal
from benchmarks.rig.measuring import KORVET, Row, Sample
from benchmarks.rig.programs import LoadFailed, Outcome, outcome_of
from benchmarks.rig.records import LAYOUTS, size_text
from benchmarks.rig.rig import BATCH_LAYOUT, WITHOUT_MODULE
from benchmarks.rig.servers import rest
from tests.support.processes import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.rig.kafka import Kafka
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster

    # A client's run: broker, topic, number of records, bytes per value.
    Client = Callable[[Cluster, str, int, int], Outcome]

# Number of records by bytes per value: nearly the size of korvet's tail cache. In a shorter run, Java clients
# mostly compile themselves.
RECORDS = {100: 1_500_000, 1_024: 220_000}
JAVA_TIMEOUT_S = 120
PRODUCE, CONSUME, CONSUME_FROM_REDIS = "produce", "consume", "consume from Redis"
CLIENTS = ("librdkafka", "Java")


def benchmark_name(client: str, value_bytes: int, what: str) -> str:
    """Returns the name of a benchmark."""
    return f"{client} with default settings, {size_text(value_bytes)}, {what}"


# The ceiling that the clients set is their rate on a topic whose batches stay whole.
GOALS = (
    *(Goal(benchmark_name(client, 100, PRODUCE), RATE, BATCH_LAYOUT, 0.8) for client in CLIENTS),
    *(Goal(benchmark_name(client, 1_024, PRODUCE), RATE, WITHOUT_MODULE, 1.0) for client in CLIENTS),
)


def measure(rig: Rig) -> Iterator[Row]:
    """Measure the rates of producing a topic, of consuming it from the brokers' memory, and of consuming what
    korvet reads from Redis, and the broker's CPU time per record.
    """
    clients: dict[str, tuple[Client, Client]] = {CLIENTS[0]: (librdkafka_produce, librdkafka_consume)}
    if rig.kafka is not None:
        producing, consuming = (functools.partial(way, rig.kafka) for way in (java_produce, java_consume))
        clients[CLIENTS[1]] = (producing, consuming)
    with rig.clusters_reading() as clusters:
        reading = clusters | {BATCH_LAYOUT: clusters[KORVET].in_layout(LAYOUTS[1])}
        for client, value_bytes in itertools.product(clients, RECORDS):
            name = functools.partial(benchmark_name, client, value_bytes)
            count = rig.scaled(RECORDS[value_bytes])
            in_memory, from_redis = (
                {side: Runs(cluster, *clients[client], count, value_bytes) for side, cluster in each.items()}
                for each in (rig.layouts(), reading)
            )
            yield from rows(rig, name(PRODUCE), Runs.produce, in_memory)
            yield from rows(rig, name(CONSUME), Runs.consume, in_memory)
            yield from rows(rig, name(CONSUME_FROM_REDIS), Runs.consume, from_redis)
            for runs in (*in_memory.values(), *from_redis.values()):
                runs.drop()


def rows(rig: Rig, name: str, way: Callable[[Runs], Sample], runs: Mapping[str, Runs]) -> Iterator[Row]:
    """Returns the rows of one client's way to use its topics."""
    sides = {side: functools.partial(way, each) for side, each in runs.items()}
    yield from rig.rows(name, sides, {RATE: RECORDS_PER_SECOND})


@dataclass(slots=True)
class Runs:
    """Returns the runs of a client on one cluster.

    Each producer run has a new topic. The consumer reads the last one completely.
    """

    cluster: Cluster
    producing: Client
    consuming: Client
    count: int
    value_bytes: int
    topic: str = ""

    def produce(self) -> Sample:
        self.drop()
        self.topic = self.cluster.new_topic()
        return self._timed(self.producing)

    def consume(self) -> Sample:
        if not self.topic:
            self.produce()
        return self._timed(self.consuming)

    def drop(self) -> None:
        """Delete the topic, if it exists."""
        if self.topic:
            self.cluster.drop_topic(self.topic)
            self.topic = ""

    def _timed(self, client: Client) -> Sample:
        rest()
        with self.cluster.meter() as meter:
            outcome = client(self.cluster, self.topic, self.count, self.value_bytes)
        return Sample({RATE: outcome.rate}, meter.per_million(outcome.records))


def librdkafka(what: str, cluster: Cluster, topic: str, count: int, extra: object) -> Outcome:
    """Run the confluent-kafka client in its own process (benchmarks/rig/librdkafka.py)."""
    command = [sys.executable, "-m", "benchmarks.rig.librdkafka", what, cluster.bootstrap, topic]
    process = subprocess.Popen(
        [*command, str(count), str(extra)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=programs.ROOT,
    )
    return outcome_of(process)


librdkafka_produce = functools.partial(librdkafka, "produce")
librdkafka_consume = functools.partial(librdkafka, "consume")


def java_produce(kafka: Kafka, cluster: Cluster, topic: str, count: int, value_bytes: int) -> Outcome:
    """Run `kafka-producer-perf-test`: idempotent, acks=all, values without keys."""
    out = java(
        kafka,
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", count, "--record-size", value_bytes, "--throughput", -1),
        *("--bootstrap-server", cluster.bootstrap),
    )
    rate = re.findall(r"([\d.]+) records/sec", out)[-1]
    return Outcome({"records": count, "seconds": count / float(rate)})


def java_consume(kafka: Kafka, cluster: Cluster, topic: str, count: int, value_bytes: int) -> Outcome:
    """Run `kafka-consumer-perf-test`. The rate excludes the time to join the group."""
    out = java(
        kafka,
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--topic", topic, "--num-records", count, "--bootstrap-server", cluster.bootstrap),
    )
    figures = out.strip().splitlines()[-1].split(",")
    return Outcome({"records": float(figures[4]), "seconds": float(figures[7]) / 1_000})


def java(kafka: Kafka, program: str, *arguments: object) -> str:
    """Returns the output of a tool. Raises LoadFailed."""
    done = run(kafka.command(program, *map(str, arguments)), JAVA_TIMEOUT_S)
    if done.returncode != 0:
        raise LoadFailed(f"{program}: {done.stderr.decode()[-1_000:]}{done.stdout.decode()[-1_000:]}")
    return done.stdout.decode()
