"""From two polls to rows: rates, sums, what is unknown."""

from __future__ import annotations

from msgspec.structs import replace

from korvet.cli.lag import Commit, Lag
from korvet.cli.top.facts import Appended, Facts, Group, Partition, Place
from korvet.cli.top.metrics import Metrics
from korvet.cli.top.rows import report
from korvet.config.address import Address

PLACES = [Place("orders", 0), Place("orders", 1), Place("audit", 0)]
BEFORE = Facts(
    at_s=100.0,
    now_ms=1_000_000,
    cluster_id="id",
    controller=2,
    brokers={1: Address("a", 9092), 2: Address("b", 9092)},
    partitions={
        PLACES[0]: Partition(1, 2, 2),
        PLACES[1]: Partition(2, 2, 1),
        PLACES[2]: Partition(None, 1, 1, internal=True),
    },
    groups={"grp": Group("Stable", "consumer", 3, 1, {PLACES[0]: 10, PLACES[1]: 20})},
)
NOW = replace(
    BEFORE,
    at_s=104.0,
    now_ms=1_004_000,
    groups={"grp": Group("Stable", "consumer", 3, 1, {PLACES[0]: 18, PLACES[1]: 20})},
)
PAGE = """\
# HELP kafka_topic_partition_current_offset Records ever appended.
# TYPE kafka_topic_partition_current_offset gauge
kafka_topic_partition_current_offset{topic="orders",partition="0"} %(ordinal)s
kafka_topic_partition_oldest_offset{topic="orders",partition="0"} 40
kafka_server_brokertopicmetrics_bytesin_total %(bytes)s
kafka_server_brokertopicmetrics_bytesin_total{topic="orders"} %(bytes)s
kafka_network_requestmetrics_requests_total{request="Produce",version="13"} %(requests)s
kafka_network_requestmetrics_requests_total{request="Fetch",version="18"} 5
kafka_server_socket_server_metrics_connection_count{listener="PLAINTEXT"} 7
kafka_server_brokertopicmetrics_messagesin_total{topic="orders"} %(ordinal)s
kafka_consumergroup_group_sum_lag{cluster_name="id",group="grp"} 12
kafka_consumergroup_group_max_lag_seconds{cluster_name="id",group="grp"} 2.5
korvet_consumergroup_commits_total{consumergroup="grp"} %(requests)s
"""


def page(ordinal: int, produced: int, requests: int) -> Metrics:
    return Metrics(PAGE % {"ordinal": ordinal, "bytes": produced, "requests": requests})


def test_without_counts_and_metrics_the_protocol_alone_makes_rows() -> None:
    found = report(BEFORE, NOW)
    first, second = found.brokers
    assert (first.node_id, first.address, first.controller, first.leaders, first.groups) == (
        1,
        "a:9092",
        False,
        1,
        1,
    )
    assert (second.controller, second.leaders, second.groups) == (True, 1, 0)
    assert (first.records_per_s, first.bytes_in_per_s, first.connections) == (None, None, None)
    audit, orders = found.topics
    assert (orders.partitions, orders.under_replicated, orders.leaderless, orders.internal) == (
        2,
        1,
        0,
        False,
    )
    assert (audit.leaderless, audit.internal) == (1, True)
    assert orders.records_per_s is orders.size_bytes is orders.oldest_ms is None
    (group,) = found.groups
    assert (group.state, group.members, group.partitions, group.record_lag, group.lag_ms) == (
        "Stable",
        3,
        2,
        None,
        None,
    )
    # One of two offsets changed in 4 s.
    assert group.commits_per_s == 0.25


def test_the_first_poll_has_no_rates() -> None:
    found = report(None, replace(NOW, metrics={"a": page(50, 1, 1)}))
    assert {row.records_per_s for row in (*found.topics, *found.brokers)} == {None}
    assert found.groups[0].commits_per_s is None
    assert found.topics[1].records == 10


def test_counts_in_redis_make_rates_and_lag() -> None:
    lags = {Commit("orders", 0, 18): Lag(5, 700), Commit("orders", 1, 20): Lag(2, 900)}
    appended = {PLACES[0]: Appended(30, 3.0), PLACES[1]: Appended(0, 3.0)}
    now = replace(
        NOW,
        lags=lags,
        appended=appended,
        sizes={PLACES[0]: 100, PLACES[1]: 1},
        oldest_ms={PLACES[1]: 900_000},
    )
    found = report(BEFORE, now)
    orders = found.topics[1]
    assert (orders.records_per_s, orders.size_bytes, orders.oldest_ms) == (10.0, 101, 104_000)
    assert [broker.records_per_s for broker in found.brokers] == [10.0, 0.0]
    assert (found.groups[0].record_lag, found.groups[0].lag_ms) == (7, 900)
    # A partition that isn't counted makes sums unknown, not smaller.
    partly = report(
        BEFORE,
        replace(now, lags={Commit("orders", 0, 18): Lag(5, 700)}, appended={PLACES[0]: appended[PLACES[0]]}),
    )
    assert (partly.topics[1].records_per_s, partly.groups[0].record_lag) == (None, None)


def test_metrics_make_rates_lag_and_more_columns() -> None:
    before = replace(BEFORE, metrics={"a:1": page(100, 1_000, 10)})
    now = replace(NOW, metrics={"a:1": page(140, 5_000, 18), "b:1": page(7, 7, 7)})
    found = report(before, now)
    orders = found.topics[1]
    assert (orders.records_per_s, orders.bytes_in_per_s, orders.records) == (10.0, 1_000.0, 140 + 7 - 80)
    first = found.brokers[0]
    assert (first.bytes_in_per_s, first.requests_per_s, first.connections) == (1_000.0, 2.0, 7)
    # Both pages of this test report the same group.
    assert (found.groups[0].record_lag, found.groups[0].lag_ms) == (24, 5_000)
    assert found.groups[0].commits_per_s == 2.0


def test_a_counter_that_appears_began_with_zero() -> None:
    found = report(replace(BEFORE, metrics={"a": Metrics("")}), replace(NOW, metrics={"a": page(100, 8, 10)}))
    assert (found.topics[1].records_per_s, found.topics[1].bytes_in_per_s) == (25.0, 2.0)


def test_a_broker_that_has_restarted_has_no_rate_for_one_poll() -> None:
    found = report(
        replace(BEFORE, metrics={"a": page(100, 9, 9)}), replace(NOW, metrics={"a": page(100, 3, 10)})
    )
    assert (found.brokers[0].bytes_in_per_s, found.brokers[0].requests_per_s) == (None, 0.25)


def test_a_merged_page_names_the_brokers_of_its_samples() -> None:
    text = (
        'kafka_server_brokertopicmetrics_bytesin_total{{node_id="1"}} {}\n'
        'kafka_server_brokertopicmetrics_bytesin_total{{node_id="2"}} {}\n'
    )
    before = replace(BEFORE, metrics={"a": Metrics(text.format(10, 20))})
    now = replace(NOW, metrics={"a": Metrics(text.format(14, 28))})
    assert [row.bytes_in_per_s for row in report(before, now).brokers] == [1.0, 2.0]


def test_a_page_may_hold_escapes_exponents_and_lines_that_are_no_samples() -> None:
    found = Metrics(
        'a{topic="q\\"b\\\\s\\nl",partition="0"} 1.5e3\n# EOF\nnonsense\n'
        'a{topic="other",} NaN\nb +Inf 1700000000\n\n'
    )
    assert found.sums("a", "topic")[('q"b\\s\nl',)] == 1500.0
    assert found.sums("a", "missing") == {}
    assert found.sums("b") == {(): float("inf")}
