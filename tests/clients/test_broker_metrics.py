"""The counters of a broker, compared with what real clients did."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from korvet.cli.app import korvet
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.unit.observe.pages import Page, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.clients

RECORDS = 500
VALUE = b"x" * 100
TRAFFIC = "kafka_server_brokertopicmetrics_"
REQUESTS = "kafka_network_requestmetrics_requests_total"


class Scraped:
    """A broker with an admin endpoint, and the growth of its counters."""

    def __init__(self) -> None:
        self.port = free_port()
        self.server = KorvetServer("--set", f"admin.listen=127.0.0.1:{self.port}").start()

    def page(self) -> Page:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=20) as response:
            return parsed(response.read().decode())


@pytest.fixture(scope="module")
def scraped() -> Iterator[Scraped]:
    made = Scraped()
    yield made
    made.server.stop()
    made.server.discard()


def growth(before: Page, after: Page, name: str) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def requests_of(page: Page, api: str) -> dict[str, float]:
    """The requests of an API by version."""
    pattern = re.compile(re.escape(f"{REQUESTS}{{request={api},version=") + r"(\d+)}")
    return {found[1]: value for name, value in page.items() if (found := pattern.fullmatch(name))}


def make_topic(server: KorvetServer, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1, config=configs)])[name].result(20)


def produce(server: KorvetServer, topic: str) -> dict[str, int]:
    """Send records to two partitions. Returns librdkafka's own counts."""
    told: dict[str, int] = {}

    def delivered(error: object, message: object) -> None:
        assert error is None
        told["records"] = told.get("records", 0) + 1

    client = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5, "enable.idempotence": True})
    for number in range(RECORDS):
        client.produce(topic, VALUE, str(number).encode(), number % 2, on_delivery=delivered)
    assert client.flush(30) == 0
    return told


def consume(server: KorvetServer, topic: str, group: str) -> int:
    """Read all records and commit. Returns their number."""
    client = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    client.subscribe([topic])
    found = 0

    def all_there() -> bool:
        nonlocal found
        for message in client.consume(100, 1.0):
            assert message.error() is None
            found += 1
        return found >= RECORDS

    until(all_there, 30, "all records are read")
    client.commit(asynchronous=False)
    client.close()
    return found


def test_counters_are_what_the_clients_did(scraped: Scraped) -> None:
    topic = "counted"
    make_topic(scraped.server, topic)
    before = scraped.page()
    told = produce(scraped.server, topic)
    assert consume(scraped.server, topic, "readers") == RECORDS == told["records"]
    after = until(
        lambda: page if f"{TRAFFIC}messagesin_total{{topic={topic}}}" in (page := scraped.page()) else None,
        20,
        "the topic is shown",
    )

    def grown(name: str) -> float:
        return growth(before, after, name)

    assert grown(f"{TRAFFIC}messagesin_total{{topic={topic}}}") == RECORDS
    bytes_in = grown(f"{TRAFFIC}bytesin_total{{topic={topic}}}")
    assert bytes_in > RECORDS * len(VALUE)
    # Every batch was read once, as it was produced.
    assert grown(f"{TRAFFIC}bytesout_total{{topic={topic}}}") == bytes_in
    # The commits are records of the internal topic, and count in the sum of all topics.
    internal = grown(f"{TRAFFIC}messagesin_total{{topic=__consumer_offsets}}")
    assert internal >= 2
    assert grown(f"{TRAFFIC}messagesin_total") == RECORDS + internal
    for name in ("failedproducerequests", "failedfetchrequests"):
        assert grown(f"{TRAFFIC}{name}_total") == 0
    batches = grown(f"{TRAFFIC}totalproducerequests_total{{topic={topic}}}")
    assert grown("korvet_appended_records_total") == RECORDS
    assert grown("korvet_appends_total{kind=client}") == batches
    for api in ("Produce", "Fetch", "OffsetCommit", "JoinGroup", "SyncGroup", "FindCoordinator"):
        versions = requests_of(after, api)
        assert len(versions) == 1, versions
        count = growth(before, after, f"{REQUESTS}{{request={api},version={next(iter(versions))}}}")
        assert count >= 1
        assert growth(before, after, f"korvet_request_seconds_count{{request={api}}}") == count
    assert grown(f"{REQUESTS}{{request=Produce,version={next(iter(requests_of(after, 'Produce')))}}}") >= 1
    assert grown("korvet_redis_round_trip_seconds_count{link=write}") >= 1
    assert after["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert after["kafka_controller_kafkacontroller_globaltopiccount"] == 2
    assert after["kafka_server_replicamanager_leadercount"] == 50 + 2


def test_errors_are_counted_by_their_names(scraped: Scraped) -> None:
    topic = "refusing"
    make_topic(scraped.server, topic, **{"max.message.bytes": "100"})
    before = scraped.page()
    client = Producer({"bootstrap.servers": scraped.server.bootstrap, "enable.idempotence": False})
    errors = []
    for _ in range(3):
        client.produce(
            topic, VALUE * 10, partition=0, on_delivery=lambda error, _: errors.append(error.name())
        )
        client.flush(20)
    assert errors == ["MSG_SIZE_TOO_LARGE"] * 3
    reader = Consumer({"bootstrap.servers": scraped.server.bootstrap, "group.id": "unused"})
    with pytest.raises(KafkaException):
        reader.commit(offsets=[TopicPartition("absent", 0, 5)], asynchronous=False)
    reader.close()
    after = scraped.page()
    shown = "kafka_network_requestmetrics_errors_total"
    assert growth(before, after, f"{shown}{{error=MESSAGE_TOO_LARGE,request=Produce}}") == 3
    unknown = f"{shown}{{error=UNKNOWN_TOPIC_OR_PARTITION,request=OffsetCommit}}"
    # The client tries again: one error for each request.
    (version,) = requests_of(after, "OffsetCommit")
    commits = growth(before, after, f"{REQUESTS}{{request=OffsetCommit,version={version}}}")
    assert growth(before, after, unknown) == commits > 0
    assert growth(before, after, f"{TRAFFIC}failedproducerequests_total") == 3
    assert growth(before, after, f"{TRAFFIC}totalproducerequests_total") == 3
    assert growth(before, after, f"{TRAFFIC}messagesin_total") == 0


def test_transactions_and_connections_are_counted(scraped: Scraped) -> None:
    make_topic(scraped.server, "transacted")
    before = scraped.page()
    client = Producer({"bootstrap.servers": scraped.server.bootstrap, "transactional.id": "one"})
    client.init_transactions(20)
    for ends in (client.commit_transaction, client.abort_transaction, client.commit_transaction):
        client.begin_transaction()
        client.produce("transacted", VALUE, partition=0)
        assert client.flush(20) == 0
        ends(20)
    del client

    # A page is made in slices: one number may be newer than another.
    counted = "korvet_transaction_markers_total", "korvet_transaction_markers_seconds_count"

    def marked() -> Page | None:
        page = scraped.page()
        return page if all(growth(before, page, name) == 3 for name in counted) else None

    after = until(marked, 20, "all markers are written")
    ended = {
        outcome: growth(before, after, f"korvet_transactions_ended_total{{outcome={outcome}}}")
        for outcome in ("committed", "aborted", "fenced", "timed_out")
    }
    assert ended == {"committed": 2, "aborted": 1, "fenced": 0, "timed_out": 0}
    assert growth(before, after, "korvet_transactions_begun_total") == 3
    sockets = "kafka_server_socket_server_metrics_connection_"
    listener = "{listener=PLAINTEXT}"
    assert growth(before, after, f"{sockets}creation_total{listener}") >= 1
    for page in (before, after):
        opened, closed = (page[f"{sockets}{name}_total{listener}"] for name in ("creation", "close"))
        assert page[f"{sockets}count{listener}"] == opened - closed


def test_what_redis_reports_is_shown(scraped: Scraped) -> None:
    def known() -> Page | None:
        page = scraped.page()
        return page if any(name.startswith("korvet_redis_memory_used_bytes") for name in page) else None

    page = until(known, 20, "a reading of Redis")
    server = f"{{server={scraped.server.socket_path()}}}"
    info = scraped.server.redis.info()
    assert page[f"korvet_redis_aof_enabled{server}"] == info["aof_enabled"] == 1
    assert page[f"korvet_redis_up{server}"] == 1
    assert page[f"korvet_redis_memory_max_bytes{server}"] == info["maxmemory"]
    assert 0 < page[f"korvet_redis_memory_used_bytes{server}"] <= info["used_memory_peak"]
    assert page[f"korvet_redis_evicted_keys_total{server}"] == 0
    assert page["korvet_disk_free_bytes"] > page["korvet_disk_reserve_bytes"] > 0


def test_the_memory_that_topics_need_is_forecast(scraped: Scraped) -> None:
    """In metrics, in the log at the start, and by `korvet doctor`."""

    def known() -> Page | None:
        page = scraped.page()
        return page if any(name.startswith("korvet_memory_needed_bytes") for name in page) else None

    page = until(known, 20, "a forecast")
    server = f"{{server={scraped.server.socket_path()}}}"
    info = scraped.server.redis.info("memory")
    assert page[f"korvet_memory_limit_bytes{server}"] == info["maxmemory"]
    assert page[f"korvet_memory_needed_bytes{server}"] > 0
    assert page[f"korvet_memory_full_seconds{server}"] > 0
    assert "memory of Redis at" in scraped.server.log.read_text()
    asked = CliRunner().invoke(korvet, ["doctor", "--json", "--data-dir", str(scraped.server.data_dir)])
    (found,) = [each for each in json.loads(asked.output) if each["subject"] == "memory"]
    assert found["state"] == "ok"
    assert " of " in found["text"]
