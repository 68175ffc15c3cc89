"""Scrapes of brokers that have served every kind of client: all declared metrics are there, and no others."""

from __future__ import annotations

import gzip
import http.client
import os
import re
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from korvet.metrics.exposition import name_of
from korvet.metrics.family import Family, MetricType
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, send, take
from tests.support.families import all_families
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.clients]

OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
# A family without a broker of its own: the main process of `--processes` reports it.
OF_PROCESSES = {"korvet_broker_up"}
COUNT = 20


def use(server: KorvetServer) -> None:
    """Let clients of every kind work: plain and transactional producers, a group that commits, Redis."""
    create_topic(server.bootstrap, "used", 2)
    records = [Record(b"k", b"v%d" % number, (), NOW_MS) for number in range(COUNT)]
    send(producer(server.bootstrap), "used", 0, records)
    writer = producer(server.bootstrap, transactional_id="writer")
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce("used", b"v", partition=1)
    writer.commit_transaction(20)
    server.redis.xadd("korvet:used:1", {"value": "native"})
    member = consumer(server.bootstrap, "members", auto_offset_reset="earliest", enable_auto_commit="false")
    member.subscribe(["used"])
    take(member, COUNT + 2)
    member.commit(asynchronous=False)
    member.close()
    server.drop_redis()


def names(families: Iterable[Family], *, open_metrics: bool) -> dict[str, Family]:
    """Families by their name in a page. The parsers name counters without `_total`."""
    found = {name_of(family, open_metrics=open_metrics): family for family in families}
    return {
        name.removesuffix("_total") if family.kind is MetricType.COUNTER else name: family
        for name, family in found.items()
    }


def check(text: str, *, open_metrics: bool, more: frozenset[str] = frozenset()) -> set[str]:
    """Check that all samples are declared, with their labels, and none appears twice. Returns the names of
    the families. `more`: labels that every sample may have.
    """
    known = names(all_families().values(), open_metrics=open_metrics)
    parse: Any = parse_open_metrics if open_metrics else parse_text
    found = list(parse(text))
    assert {family.name for family in found} - set(known) == set()
    series: Counter[Any] = Counter()
    for family in found:
        labels = set(known[family.name].labels)
        of_kind = {"histogram": {"le"}, "summary": {"quantile"}}.get(family.type, set())
        for sample in family.samples:
            series[sample.name, frozenset(sample.labels.items())] += 1
            # The counts of a whole broker have no topic, as in Kafka.
            assert set(sample.labels) - of_kind - (more - labels) in (labels, labels - {"topic"}), sample
    assert [each for each, count in series.items() if count > 1] == []
    heads = Counter(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert set(heads.values()) == {1}
    return {known[family.name].name for family in found}


@pytest.fixture
def start(own_korvet: Callable[..., KorvetServer]) -> Callable[..., tuple[KorvetServer, Pages]]:
    def started(*options: str) -> tuple[KorvetServer, Pages]:
        port = free_port()
        return own_korvet("--set", f"admin.listen=127.0.0.1:{port}", *options), Pages(port)

    return started


def test_a_scrape_has_all_declared_metrics(start: Callable[..., tuple[KorvetServer, Pages]]) -> None:
    server, pages = start()
    use(server)

    def missing() -> set[str]:
        found = check(pages.read("/metrics").text, open_metrics=False)
        return set(all_families()) - found - OF_PROCESSES

    # Some are refreshed in the background.
    until(lambda: not missing(), 20, "no metric is missing")
    page = pages.read("/metrics", Accept=OPEN_METRICS)
    assert page.fields["content-type"].startswith("application/openmetrics-text")
    assert set(all_families()) - check(page.text, open_metrics=True) == OF_PROCESSES
    assert 'korvet_collector_failures_total{collector="process"} 0\n' in page.text
    assert not re.search(r"^korvet_collector_failures_total\S* [1-9]", page.text, re.MULTILINE)
    assert "Traceback" not in server.tail(100_000)


def test_a_token_guards_what_probes_do_not_need(start: Callable[..., tuple[KorvetServer, Pages]]) -> None:
    server, pages = start("--set", "admin.token=s3cret")
    for path, status in (("/metrics", 401), ("/status", 401), ("/livez", 200), ("/readyz", 200), ("/", 401)):
        assert pages.read(path).status == status
    allowed = {"Authorization": "Bearer s3cret"}
    assert pages.read("/metrics", **allowed).status == 200
    assert pages.read("/metrics", "HEAD", **allowed).text == ""
    assert pages.read("/x", **allowed).status == 404
    assert pages.read("/metrics", "DELETE", **allowed).status == 405
    status = pages.read("/status", **allowed)
    assert status.fields["content-type"] == "application/json"
    assert "s3cret" not in server.tail(100_000)


def test_a_compressed_page_is_the_same(start: Callable[..., tuple[KorvetServer, Pages]]) -> None:
    start_port = start()[1]
    connection = http.client.HTTPConnection("127.0.0.1", start_port.port, timeout=10)
    # Both on one connection.
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    assert answer.getheader("Content-Encoding") == "gzip"
    packed = check(gzip.decompress(answer.read()).decode(), open_metrics=False)
    connection.request("GET", "/metrics")
    assert check(connection.getresponse().read().decode(), open_metrics=False) == packed
    connection.close()


def test_the_main_process_serves_all_brokers(start: Callable[..., tuple[KorvetServer, Pages]]) -> None:
    server, pages = start("--processes", "2")
    use(server)
    until(pages.is_ready, 20, "both brokers are ready")
    for accept, open_metrics in (("", False), (OPEN_METRICS, True)):
        page = pages.read("/metrics", Accept=accept)
        found = check(page.text, open_metrics=open_metrics, more=frozenset({"node_id"}))
        # The controller reports these for all brokers.
        assert "\nkafka_brokers 2\n" in page.text
        assert found >= {*OF_PROCESSES, "korvet_ready", "process_open_fds"}
        for node_id in (1, 2):
            assert f'\nkorvet_broker_up{{node_id="{node_id}"}} 1\n' in page.text
            assert f'\nkorvet_ready{{node_id="{node_id}"}} 1\n' in page.text
    brokers = pages.status()["brokers"]
    assert [each["ready"] for each in brokers.values()] == [True, True]
    assert sum(each["partitions"]["led"] for each in brokers.values()) == brokers["1"]["partitions"]["all"]
    own = Pages(pages.port + 2).read("/metrics")
    assert "\nkorvet_ready 1\n" in own.text
    pid = int(re.findall(r"node 2 is process (\d+)", server.tail(100_000))[-1])
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: "node 2: serving" in (pages.problems() or {}), 20, "the stopped broker is not ready")
        assert pages.read("/livez").status == 200
        assert '\nkorvet_broker_up{node_id="2"} 0\n' in pages.read("/metrics").text
        assert pages.status()["brokers"]["2"] is None
    finally:
        os.kill(pid, signal.SIGKILL)
    until(pages.is_ready, 40, "the broker is started again, and both are ready")
    assert pages.status()["brokers"]["2"]["node_id"] == 2
