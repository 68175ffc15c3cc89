"""The families of a broker, from counts that the test makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from korvet.cluster.lease import LeaseCounts
from korvet.embedded.disk_space import DiskSpace
from korvet.log.broker_logs import LossCounts
from korvet.log.counts import LogCounts
from korvet.log.readahead import ReadAheadBudget
from korvet.log.tail_cache import TailBudget
from korvet.observe import brokers
from korvet.observe.lifecycle import Lifecycle, Phase
from korvet.server.backpressure import Backpressure
from korvet.server.connections import Admission, ConnectionLimits, Connections
from korvet.topics.compaction import CompactionCounts
from tests.support.running import run
from tests.unit.observe.pages import page_of

if TYPE_CHECKING:
    from pathlib import Path

TRAFFIC = "kafka_server_brokertopicmetrics_"


@pytest.mark.parametrize(
    ("phase", "state"), [(Phase.STARTING, 1), (Phase.LOADING, 2), (Phase.SERVING, 3), (Phase.DRAINING, 6)]
)
def test_the_state_is_kafkas(phase: Phase, state: int) -> None:
    lifecycle = Lifecycle()
    lifecycle.phase = phase
    assert page_of(brokers.collect_state(lifecycle)) == {"kafka_server_kafkaserver_brokerstate": state}


def test_traffic_by_topic_and_of_all_topics() -> None:
    counts = LogCounts()
    one, other, deleted = (counts.topics[name] for name in ("a", "b", "c"))
    form: Any = SimpleNamespace(record_count=10, payload_bytes=80)
    counts.appended(one, form, 100, duplicate=False)
    counts.appended(one, form, 100, duplicate=True)
    counts.appended(other, form, 0, duplicate=False)
    counts.appended(deleted, form, 1000, duplicate=False)
    other.bytes_out, one.fetches = 7, 3
    counts.forget("c")
    counts.forget("c")
    hidden = counts.topics["hidden"]
    hidden.failed_fetches = 2
    led: Any = SimpleNamespace(shown={"a", "b", "c"})
    page = page_of(brokers.collect_traffic(counts, led))
    assert page[f"{TRAFFIC}failedfetchrequests_total"] == 2
    assert page[f"{TRAFFIC}messagesin_total{{topic=a}}"] == 10
    assert page[f"{TRAFFIC}bytesin_total{{topic=a}}"] == 100
    assert page[f"{TRAFFIC}bytesin_total{{topic=b}}"] == 80
    assert page[f"{TRAFFIC}messagesin_total"] == 30
    assert page[f"{TRAFFIC}bytesin_total"] == 1180
    assert page[f"{TRAFFIC}bytesout_total"] == page[f"{TRAFFIC}bytesout_total{{topic=b}}"] == 7
    assert page[f"{TRAFFIC}totalfetchrequests_total"] == 3
    assert not [name for name in page if "topic=c" in name or "hidden" in name]
    assert counts.duplicates == 1
    # The broker's own records are no batch of a client.
    assert (counts.client_records, one.produces, other.produces) == (20, 2, 0)


def test_appends_by_what_they_add() -> None:
    counts = LogCounts()
    counts.sent(3, own=False)
    counts.sent(1, own=False)
    counts.sent(1, own=True)
    counts.markers, counts.duplicates, counts.resolved = 5, 4, 2
    page = page_of(counts.samples())
    kinds = ("client", "own", "marker")
    assert [page[f"korvet_appends_total{{kind={kind}}}"] for kind in kinds] == [4, 1, 5]
    assert page["korvet_transaction_markers_total"] == 5
    assert page["korvet_duplicate_batches_total"] == 4
    assert page["korvet_appends_resolved_total"] == 2
    # Records of the broker's own are no batch of a client.
    assert page["korvet_append_batches_bucket{le=1.0}"] == 1
    assert page["korvet_append_batches_count"] == 2
    assert page["korvet_append_batches_sum"] == 4


def test_connections_by_listener() -> None:
    connections = Connections(ConnectionLimits(1, 1))

    async def admit() -> Admission | None:
        admission = connections.admit("A", "/1")
        assert connections.admit("B", "/2") is None
        return admission

    admission = run(admit())
    page = page_of(brokers.collect_connections(connections))
    count = "kafka_server_socket_server_metrics_connection_"
    assert (page[f"{count}count{{listener=A}}"], page[f"{count}count{{listener=B}}"]) == (1, 0)
    assert page["korvet_connections_refused_total{listener=B}"] == 1
    assert admission is not None
    admission.leave()
    page = page_of(brokers.collect_connections(connections))
    assert page[f"{count}count{{listener=A}}"] == 0
    assert page[f"{count}creation_total{{listener=A}}"] == page[f"{count}close_total{{listener=A}}"] == 1


def test_backpressure_lease_caches_and_compaction() -> None:
    pressure = Backpressure(10)
    pressure.take(12)
    pressure.blocked(lambda: None)
    page = page_of(pressure.samples())
    assert page["korvet_produce_in_flight_bytes"] == 12
    assert page["korvet_backpressure_waiting_connections"] == page["korvet_backpressure_holds_total"] == 1
    assert page["korvet_backpressure_seconds_total"] > 0

    lease = LeaseCounts()
    lease.renewals.observe(0.002)
    lease.failed, lease.expired, lease.rejoins, lease.versions = 1, 2, 3, 4
    member: Any = SimpleNamespace(counts=lease, assignment=SimpleNamespace(version=9))
    logs: Any = SimpleNamespace(counts=LossCounts())
    logs.counts.fenced, logs.counts.shortened = 5, 6
    page = page_of(brokers.collect_lease(member, logs))
    assert (page["korvet_fenced_appends_total"], page["korvet_shortened_logs_total"]) == (5, 6)
    assert page["korvet_lease_renewal_seconds_count"] == page["korvet_lease_renewal_failures_total"] == 1
    assert page["korvet_lease_expired_total"] == 2
    assert page["kafka_controller_controllerstats_uncleanleaderelections_total"] == 3
    assert (page["korvet_assignment_changes_total"], page["korvet_assignment_version"]) == (4, 9)

    tails, readaheads = TailBudget(1000), ReadAheadBudget(1000)
    tails.hits, tails.misses, tails.hit_bytes, readaheads.held_bytes = 3, 2, 300, 5
    resources: Any = SimpleNamespace(tails=tails, readaheads=readaheads)
    page = page_of(brokers.collect_caches(resources))
    assert (page["korvet_tail_cache_hits_total"], page["korvet_tail_cache_misses_total"]) == (3, 2)
    assert (page["korvet_tail_cache_limit_bytes"], page["korvet_readahead_bytes"]) == (1000, 5)

    compactions = CompactionCounts()
    compactions.ran(10, 0.5)
    compactions.ran(0, 0.25)
    page = page_of(compactions.samples())
    assert (page["korvet_compactions_total"], page["korvet_compaction_removed_records_total"]) == (2, 10)
    assert page["korvet_compaction_seconds_total"] == 0.75


def test_the_disk_is_that_of_an_embedded_server_only() -> None:
    assert page_of(brokers.collect_disk(None)) == {}
    disk: Any = SimpleNamespace(free_bytes=10, reserve_bytes=20, is_short=True)
    assert page_of(brokers.collect_disk(disk)) == {
        "korvet_disk_free_bytes": 10,
        "korvet_disk_reserve_bytes": 20,
    }


def test_the_free_space_is_known_without_a_reserve(tmp_path: Path) -> None:
    disk = DiskSpace(tmp_path, 0)
    assert not disk.check()
    page = page_of(brokers.collect_disk(disk))
    assert page["korvet_disk_free_bytes"] > 0
    assert page["korvet_disk_reserve_bytes"] == 0


def test_idle_time_is_measured_between_scrapes() -> None:
    now_s, used_s = 100.0, 5.0
    idle = brokers.IdleTime(lambda: now_s, lambda: used_s)

    def shown() -> float:
        page = page_of(idle.collect())
        name = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"
        assert page[name] == page["kafka_network_socketserver_networkprocessoravgidle_percent"]
        return page[name]

    now_s, used_s = 102.0, 5.5
    assert shown() == 0.75
    # Too soon for another measurement.
    now_s, used_s = 102.5, 6.0
    assert shown() == 0.75
    now_s, used_s = 104.0, 8.0
    assert shown() == 0
