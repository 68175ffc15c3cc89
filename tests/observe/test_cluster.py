"""korvet's own rules and dashboards on real brokers, and the form of their pages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import ShareConsumer
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics

from tests.deploy.observed import DASHBOARDS, RULES, filled, panels
from tests.observe.cluster import BROKERS, ObservedCluster
from tests.observe.records import prepared, read, stream
from tests.support.admin import create_topic
from tests.support.polling import DeadlineMissed, until
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus, page, promtool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = pytest.mark.clients

SHOWN_S = 40
# Panels whose series appear with the first failure.
EMPTY_WHEN_HEALTHY = {"Failures"}
# The server of this cluster has no maxmemory and no append-only file, and it is not the embedded one.
EMPTY_HERE = {"Memory used of maxmemory", "Append-only file", "Disk"}
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
# Series of other programs, whose names korvet takes as they are.
TAKEN = ("kafka_", "process_", "python_")


@pytest.fixture(scope="module")
def loaded(observed: ObservedCluster) -> ObservedCluster:
    """The cluster after every usual kind of request."""
    topic = prepared(observed, "mixed", "loaded")
    read(observed, "loaded-readers", [topic], 20)
    # A native consumer with a pending entry.
    client = observed.store.client
    client.xgroup_create(stream(topic, 0), "native-readers", "0")
    client.xreadgroup("native-readers", "one", {stream(topic, 0): ">"}, count=1)
    take(observed, "loaded-workers", topic)
    observed.prometheus.wait_for_scrape()
    return observed


def take(cluster: ObservedCluster, group: str, topic: str) -> None:
    """Let a share group take the records of a topic from now on."""
    worker = ShareConsumer({"bootstrap.servers": cluster.bootstrap, "group.id": group})
    worker.subscribe([topic])
    lag = f"korvet_share_group_lag{{consumergroup='{group}'}}"

    def is_shown() -> bool:
        worker.poll(0.1)
        return bool(cluster.prometheus.vector(lag))

    until(is_shown, SHOWN_S, "the group's queues")
    worker.close()


def test_promtool_finds_nothing_wrong_with_the_pages(loaded: ObservedCluster) -> None:
    for address in loaded.admin.values():
        done = promtool("check", "metrics", stdin=page(address).encode())
        found = [line for line in done.stderr.decode().splitlines() if line and not line.startswith(TAKEN)]
        assert found == []


def test_both_formats_have_the_same_series(loaded: ObservedCluster) -> None:
    for address in loaded.admin.values():
        text, open_metrics = page(address), page(address, accept=OPEN_METRICS)
        names = {family.name for family in parse_open_metrics(open_metrics)}
        of_text = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        shortened = {name.removesuffix("_total").removesuffix("_info") for name in of_text}
        assert shortened == {name.removesuffix("_info") for name in names}


def test_brokers_count_nothing_twice(loaded: ObservedCluster) -> None:
    """Only the labels `instance` and `job` tell a broker's own series apart; others have one broker."""
    names = '{__name__=~"kafka_(topic|consumergroup).*|korvet_share_group.*"}'
    twice = f"count by (__name__, topic, partition, consumergroup, group) ({names}) > 1"
    assert loaded.prometheus.vector(twice) == {}


def test_metrics_of_empty_partitions_cause_no_errors_in_redis(loaded: ObservedCluster) -> None:
    """Operators watch the number of error replies."""
    client, prometheus = loaded.store.client, loaded.prometheus
    looks = "sum(korvet_record_counts_round_seconds_count)"

    def errors() -> int:
        return sum(int(each["count"]) for each in client.info("errorstats").values())

    before, first = errors(), prometheus.value(looks) or 0.0
    until(lambda: (prometheus.value(looks) or 0.0) >= first + 2 * len(BROKERS), SHOWN_S, "two looks")
    assert errors() == before


def test_every_panel_has_data(loaded: ObservedCluster) -> None:
    empty = {
        panel["title"]: [filled(target["expr"], "10s") for target in panel["targets"]]
        for path in DASHBOARDS
        for panel in panels(path)
        if panel["title"] not in EMPTY_WHEN_HEALTHY | EMPTY_HERE
    }

    def all_found() -> bool:
        for title, expressions in list(empty.items()):
            if any(loaded.prometheus.vector(expression) for expression in expressions):
                del empty[title]
        return not empty

    with contextlib.suppress(DeadlineMissed):
        until(all_found, SHOWN_S, "data in every panel")
    assert list(empty) == []


def test_no_alert_fires_in_a_healthy_cluster(loaded: ObservedCluster) -> None:
    evaluated = loaded.prometheus.api("rules")["groups"]
    wrong = [rule["name"] for group in evaluated for rule in group["rules"] if rule["health"] == "err"]
    assert wrong == []
    expected_later = {"KorvetGroupStalled", "KorvetGroupWithoutMembers"}
    assert loaded.prometheus.alerts().keys() - expected_later == set()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[ObservedCluster]:
    made = ObservedCluster(tmp_path, RULES)
    yield made
    made.discard()


def test_one_page_of_several_processes(own_korvet: Callable[..., KorvetServer], tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    server = own_korvet("--processes", "2", "--set", f"admin.listen={address}")
    create_topic(server.bootstrap, "shared", 8)
    prometheus = Prometheus(tmp_path / "prometheus", [address])
    try:
        led = "sum(kafka_server_replicamanager_leadercount) - count(kafka_topic_partition_current_offset)"
        until(lambda: prometheus.value(led) == 0, SHOWN_S, f"{led} is 0")
        shared = "count(kafka_topic_partition_leader{topic='shared'})"
        until(lambda: prometheus.value(shared) == 8, SHOWN_S, "the partitions of both brokers")
        for family in ("korvet_broker_up", "korvet_ready"):
            assert prometheus.by(family, "node_id") == {("1",): 1.0, ("2",): 1.0}
        assert prometheus.value("sum(kafka_controller_kafkacontroller_activecontrollercount)") == 1
    finally:
        prometheus.stop()
    done = promtool("check", "metrics", stdin=page(address).encode())
    assert [line for line in done.stderr.decode().splitlines() if not line.startswith(TAKEN)] == []


@pytest.mark.faults
def test_a_lost_broker_is_noticed_and_nothing_is_missing(own_cluster: ObservedCluster) -> None:
    prometheus = own_cluster.prometheus
    topic = prepared(own_cluster, "sparse", "lost")
    read(own_cluster, "lost-readers", [topic], 20)
    lag = "sum(kafka_consumergroup_lag{consumergroup='lost-readers'})"
    before = until(lambda: prometheus.value(lag), SHOWN_S, "the group's lag")
    until(lambda: prometheus.value("sum(kafka_brokers)") == len(BROKERS), SHOWN_S, "both brokers")
    own_cluster.brokers[1].kill()
    until(lambda: prometheus.value("sum(kafka_brokers)") == 1, SHOWN_S, "one broker is left")
    until(lambda: prometheus.value(lag) == before, SHOWN_S, "the other broker reports the group")
    one = "sum(kafka_controller_kafkacontroller_activecontrollercount)"
    until(lambda: prometheus.value(one) == 1, SHOWN_S, "the other broker is the controller")
    until(lambda: prometheus.alerts().get("KorvetBrokerDown") == "pending", SHOWN_S, "an alert")
