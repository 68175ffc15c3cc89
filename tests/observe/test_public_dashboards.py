"""What public dashboards for Kafka show of korvet: Grafana's 7589 and Strimzi's subtract and differentiate
offsets, which are ordinals of records here.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.observe.records import KINDS, PARTITIONS, prepared, read
from tests.support.confluent import producer
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.observe.cluster import ObservedCluster

pytestmark = pytest.mark.clients

RATE = 100
TOPICS = "{topic=~'public-.*'}"
# The window of the dashboards is minutes long.
WINDOW = "10s"
SHOWN_S = 60
TOLERANCE = 0.3


class SteadyProducer:
    """Sends `RATE` records per second to each topic, until it is closed."""

    def __init__(self, bootstrap: str, topics: list[str]) -> None:
        self._client = producer(bootstrap, linger_ms=20)
        self._topics = topics
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, sent = time.monotonic(), 0
        while not self._closing.wait(0.01):
            due = int((time.monotonic() - began) * RATE)
            for number in range(sent, due):
                for topic in self._topics:
                    self._client.produce(topic, b"%d" % number, partition=number % PARTITIONS)
            self._client.poll(0)
            sent = max(sent, due)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        assert self._client.flush(30) == 0


@pytest.fixture(scope="module")
def topics(observed: ObservedCluster) -> Iterator[list[str]]:
    """Topics of every kind that Kafka clients write to, under a steady load."""
    made = [prepared(observed, kind, "public") for kind in KINDS if kind != "native"]
    load = SteadyProducer(observed.bootstrap, made)
    yield made
    load.close()


@pytest.mark.parametrize(
    "expression",
    [
        # Grafana 7589, messages in per second.
        f"sum(delta(kafka_topic_partition_current_offset{TOPICS}[{WINDOW}]) / 10) by (topic)",
        f"sum(rate(kafka_topic_partition_current_offset{TOPICS}[{WINDOW}])) by (topic)",
        # The JMX exporter's name.
        f"sum(rate(kafka_server_brokertopicmetrics_messagesin_total{TOPICS}[{WINDOW}])) by (topic)",
    ],
)
def test_message_rates_are_those_of_the_producer(
    observed: ObservedCluster, topics: list[str], expression: str
) -> None:
    """Differences of raw offsets would be about a million per second."""

    def right() -> bool:
        rates = observed.prometheus.by(expression, "topic")
        return {topic for (topic,) in rates} == set(topics) and all(
            rate == pytest.approx(RATE, rel=TOLERANCE) for rate in rates.values()
        )

    until(right, SHOWN_S, f"{RATE} records per second in each of {topics}: {expression}")


def test_consumption_rates_and_lag_sums(observed: ObservedCluster, topics: list[str]) -> None:
    group = "public-readers"
    read(observed, group, topics, 20)
    prometheus = observed.prometheus
    of_group = f"consumergroup='{group}'"
    lag = f"sum(kafka_consumergroup_lag{{{of_group}}}) by (consumergroup, topic)"
    until(lambda: len(prometheus.by(lag, "topic")) == len(topics), SHOWN_S, "the lag of every topic")
    # Nobody reads, so lag grows as fast as the topics.
    growth = f"sum(deriv(kafka_consumergroup_lag{{{of_group}}}[{WINDOW}])) by (topic)"

    def grows() -> bool:
        rates = prometheus.by(growth, "topic").values()
        return len(rates) == len(topics) and all(rate == pytest.approx(RATE, rel=TOLERANCE) for rate in rates)

    until(grows, SHOWN_S, f"{growth} is {RATE}")
    committed = prometheus.by(f"kafka_consumergroup_current_offset_sum{{{of_group}}}", "topic")
    summed = prometheus.by(
        f"sum(kafka_consumergroup_current_offset{{{of_group}}}) by (consumergroup, topic)", "topic"
    )
    assert committed == summed
    # Redpanda's dashboards and others compute the lag themselves.
    computed = prometheus.by(
        "sum by (topic) (kafka_topic_partition_current_offset - on (topic, partition) group_right "
        f"kafka_consumergroup_current_offset{{{of_group}}})",
        "topic",
    )
    for topic, value in prometheus.by(lag, "topic").items():
        assert computed[topic] == pytest.approx(value, rel=TOLERANCE, abs=2 * RATE), topic


def test_counts_of_the_cluster_are_right(observed: ObservedCluster, topics: list[str]) -> None:
    """Strimzi's single figures. Every partition is reported by one broker."""
    prometheus = observed.prometheus
    expected = {
        "sum(kafka_brokers)": 2,
        f"count(kafka_topic_partitions{TOPICS})": len(topics),
        f"sum(kafka_topic_partitions{TOPICS})": len(topics) * PARTITIONS,
        f"sum(kafka_topic_partition_replicas{TOPICS})": len(topics) * PARTITIONS,
        f"sum(kafka_topic_partition_in_sync_replica{TOPICS})": len(topics) * PARTITIONS,
        f"sum(kafka_topic_partition_under_replicated_partition{TOPICS})": 0,
        "sum(kafka_controller_kafkacontroller_activecontrollercount)": 1,
        "sum(kafka_controller_kafkacontroller_offlinepartitionscount)": 0,
        "sum(kafka_server_replicamanager_underreplicatedpartitions)": 0,
        "count(kafka_topic_partition_current_offset) - sum(kafka_server_replicamanager_leadercount)": 0,
    }
    for expression, value in expected.items():
        until(
            lambda expression=expression, value=value: prometheus.value(expression) == value,
            SHOWN_S,
            f"{expression} == {value}",
        )
    assert prometheus.by("kafka_broker_info", "id").keys() == {("1",), ("2",)}
