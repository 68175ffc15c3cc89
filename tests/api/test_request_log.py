"""The request log of a real broker: rules that change while it runs, and lines for requests of any API."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException

from tests.api.asking import Client, newest
from tests.api.batches import batch
from tests.support.confluent import consumer, producer, send
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.records import Record
from tests.support.servers import KorvetServer
from tests.support.wire import advertised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_S = 30
WAIT_MS = 400
# The time of uvloop may be some milliseconds old when a wait begins.
LEAST_WAIT_MS = WAIT_MS - 20
_BROKER = 4
_SET, _DELETE = 0, 1


class Log:
    """A broker with a JSON log, its lines, and its rules."""

    def __init__(self, server: KorvetServer) -> None:
        self.server = server
        self.client = Client(server.host, server.port, advertised(server.host, server.port))

    def rules(self, **rules: str | None) -> None:
        """Set rules for all brokers, or remove those that are None."""
        configs = [
            {
                "name": f"request.log.{name.replace('_', '.')}",
                "config_operation": _DELETE if value is None else _SET,
                "value": value,
            }
            for name, value in rules.items()
        ]
        resource = {"resource_type": _BROKER, "resource_name": "", "configs": configs}
        answer = self.client("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
        assert [each.error_code for each in answer.responses] == [0], answer.responses

    def lines(self, logger: str = "korvet.server.request_log") -> list[dict[str, Any]]:
        # The last line may still be written.
        *whole, _ = self.server.log.read_text().split("\n")
        found = [json.loads(line) for line in whole if line.startswith("{")]
        return [line for line in found if line["logger"] == logger]

    def wait(self, count: int = 1, **fields: Any) -> list[dict[str, Any]]:
        """Wait for lines with these fields."""

        def found() -> list[dict[str, Any]] | None:
            lines = [line for line in self.lines() if all(line.get(name) == fields[name] for name in fields)]
            return lines if len(lines) >= count else None

        return until(found, TIMEOUT_S, f"{count} lines with {fields}")


@pytest.fixture
def log(own_korvet: Callable[..., KorvetServer]) -> Iterator[Log]:
    found = Log(own_korvet("--set", "log.format=json"))
    yield found
    found.client.raw.socket.close()


def record() -> Record:
    return Record(b"secret key", b"secret value", (), time.time_ns() // 1_000_000)


def test_rules_change_while_clients_are_connected(log: Log) -> None:
    bootstrap = log.server.bootstrap
    client = producer(bootstrap, client_id="orders-7")
    send(client, "orders", 0, [record()])
    assert log.lines() == []
    log.rules(clients="client=orders-*,api=Produce")
    send(client, "orders", 0, [record()])
    (line,) = log.wait(api="Produce")
    assert line["reasons"] == ["selected"]
    assert (line["client_id"], line["principal"], line["address"]) == (
        "orders-7",
        "User:ANONYMOUS",
        "127.0.0.1",
    )
    assert (line["topics"], line["errors"]) == (["orders"], [])
    assert line["version"] >= 7
    assert line["duration_ms"] > 0
    assert line["request_bytes"] > 60
    assert line["response_bytes"] > 20
    assert line["message"].startswith(
        f"selected: Produce v{line['version']} of client 'orders-7' (User:ANONYMOUS, "
    )
    log.rules(clients=None)
    send(client, "orders", 0, [record()])
    assert log.lines() == [line]
    assert "secret" not in log.server.log.read_text()


def test_a_fetch_that_waits_as_long_as_it_may_is_not_slow(log: Log) -> None:
    send(producer(log.server.bootstrap), "orders", 0, [record()])
    # Without a session, so that the server recognizes the next one without decoding it.
    version = newest("Fetch") if newest("Fetch") < 12 else 12
    partition = {
        "partition": 0,
        "fetch_offset": 1 << 50,
        "partition_max_bytes": 1000,
        "current_leader_epoch": -1,
    }
    wait = {"replica_id": -1, "max_wait": WAIT_MS, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1}
    ends = log.client(
        "ListOffsets",
        7,
        replica_id=-1,
        topics=[
            {
                "name": "orders",
                "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}],
            }
        ],
    )
    partition["fetch_offset"] = ends.topics[0].partitions[0].offset

    def fetch() -> None:
        began_s = time.monotonic()
        log.client("Fetch", version, topics=[{"topic": "orders", "partitions": [partition]}], **wait)
        assert time.monotonic() - began_s >= LEAST_WAIT_MS / 1000

    fetch()
    log.rules(slow_ms="300")
    fetch()
    assert [line for line in log.lines() if line["api"] == "Fetch"] == []
    log.rules(clients="api=Fetch")
    fetch()
    (line,) = log.wait(api="Fetch")
    assert line["reasons"] == ["selected"]
    assert line["duration_ms"] >= LEAST_WAIT_MS
    assert line["topics"] == ["orders"]


def test_failed_requests_name_the_topics_with_errors(log: Log) -> None:
    log.rules(failed="UNKNOWN_TOPIC_OR_PARTITION,OFFSET_OUT_OF_RANGE")
    send(producer(log.server.bootstrap), "orders", 0, [record()])
    parts = {"index": 0, "records": batch()}
    topics = [{"name": name, "partition_data": [parts]} for name in ("orders", "missing")]
    log.client("Produce", 8, acks=1, timeout=1000, topic_data=topics)
    (line,) = log.wait(api="Produce")
    assert (line["reasons"], line["errors"]) == (["failed"], ["UNKNOWN_TOPIC_OR_PARTITION"])
    assert line["topics"] == ["missing"]
    partition = {"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1000, "current_leader_epoch": -1}
    topics = [{"topic": "orders", "partitions": [partition]}, {"topic": "gone", "partitions": [partition]}]
    limits = {"replica_id": -1, "min_bytes": 1, "max_bytes": 1000, "session_epoch": -1}
    for _ in range(2):
        fetched = log.client("Fetch", 11, max_wait=0, **limits, topics=topics)
    partition["fetch_offset"] = fetched.responses[0].partitions[0].high_watermark
    log.client("Fetch", 11, max_wait=200, **limits, topics=topics)
    for line in log.wait(3, api="Fetch"):
        assert line["errors"] == ["UNKNOWN_TOPIC_OR_PARTITION"]
        assert line["topics"] == ["gone"]
        assert "UNKNOWN_TOPIC_OR_PARTITION, topics gone" in line["message"]


def test_every_request_that_matches_is_logged(log: Log) -> None:
    log.rules(clients="api=ApiVersions")
    for _ in range(50):
        log.client("ApiVersions", 3)
    assert len(log.wait(50, api="ApiVersions")) == 50


def test_wrong_rules_are_refused(log: Log) -> None:
    for rules in ({"failed": "NOT_A_CODE"}, {"clients": "who=x"}, {"slow_ms": "soon"}):
        with pytest.raises(AssertionError, match="request"):
            log.rules(**rules)
    log.rules(slow_ms="0")
    with pytest.raises(KafkaException):
        consumer(log.server.bootstrap, "grp", client_id="line\nforged").committed([], timeout=0.001)
    log.client("Metadata", 9, topics=[], allow_auto_topic_creation=False)
    assert log.wait(api="Metadata")[0]["reasons"] == ["slow"]


def test_changes_are_audited_without_secrets(log: Log) -> None:
    create = {"name": "orders", "num_partitions": 2, "replication_factor": -1}
    create["configs"] = [{"name": "retention.ms", "value": "9"}]
    client = log.client
    client("CreateTopics", 5, topics=[create], timeout=9000, validate_only=True)
    client("CreateTopics", 5, topics=[create], timeout=9000)
    client("CreateTopics", 5, topics=[create], timeout=9000)
    log.rules(slow_ms="30000")
    secret = {"name": "plain.sasl.jaas.config", "config_operation": _SET, "value": "hunter2"}
    unknown = {"name": "plugin.password", "config_operation": _SET, "value": "hunter3"}
    resource = {"resource_type": _BROKER, "resource_name": "1", "configs": [secret, unknown]}
    client("IncrementalAlterConfigs", 1, resources=[resource])
    client(
        "AlterUserScramCredentials",
        0,
        upsertions=[
            {
                "name": "ada",
                "mechanism": 1,
                "iterations": 4096,
                "salt": b"salt",
                "salted_password": b"hunter4" * 5,
            }
        ],
    )
    entry = {"entity": [{"entity_type": "user", "entity_name": None}]}
    entry["ops"] = [{"key": "producer_byte_rate", "value": 2e6, "remove": False}]
    client("AlterClientQuotas", 1, entries=[entry])
    client("DeleteTopics", 5, topic_names=["orders", "missing"], timeout=9000)
    client("DeleteGroups", 2, groups_names=["nobody"])

    def lines() -> list[dict[str, Any]]:
        return log.lines("korvet.audit")

    until(lambda: len(lines()) >= 9, TIMEOUT_S, "all changes")
    results = [line["result"] for line in lines()]
    assert [(line["api"], line["change"], line["result"]) for line in lines()] == [
        ("CreateTopics", "topic orders (2 partitions, retention.ms=9)", "done"),
        ("CreateTopics", "topic orders (2 partitions, retention.ms=9)", "TOPIC_ALREADY_EXISTS"),
        ("IncrementalAlterConfigs", "broker default (request.log.slow.ms=30000)", "done"),
        (
            "IncrementalAlterConfigs",
            "broker 1 (plain.sasl.jaas.config=***, plugin.password=***)",
            results[3],
        ),
        ("AlterUserScramCredentials", "user ada (mechanism 1 set)", results[4]),
        ("AlterClientQuotas", "quotas of user default (producer_byte_rate=2e+06)", "done"),
        ("DeleteTopics", "topic orders", "done"),
        ("DeleteTopics", "topic missing", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("DeleteGroups", "group nobody", "GROUP_ID_NOT_FOUND"),
    ]
    assert {(line["principal"], line["address"], line["client_id"]) for line in lines()} == {
        ("User:ANONYMOUS", "127.0.0.1", "api")
    }
    assert "hunter" not in log.server.log.read_text()


def test_a_join_that_waits_for_other_members_is_not_slow(log: Log) -> None:
    log.rules(slow_ms="100")
    send(producer(log.server.bootstrap), "orders", 0, [record()])
    configs = {"name": "group.initial.rebalance.delay.ms", "config_operation": _SET, "value": "1000"}
    resource = {"resource_type": _BROKER, "resource_name": "", "configs": [configs]}
    log.client("IncrementalAlterConfigs", 1, resources=[resource])
    first = consumer(log.server.bootstrap, "first", auto_offset_reset="earliest")
    first.subscribe(["orders"])
    until(lambda: first.poll(1), TIMEOUT_S, "a record")
    assert [line for line in log.lines() if line["api"] == "JoinGroup"] == []
    log.rules(clients="api=JoinGroup")
    second = consumer(log.server.bootstrap, "second", auto_offset_reset="earliest")
    second.subscribe(["orders"])
    until(lambda: second.poll(1), TIMEOUT_S, "a record")
    # The first one only asks for a member ID.
    joined = log.wait(2, api="JoinGroup", group="second")
    assert [line["reasons"] for line in joined] == [["selected"]] * len(joined)
    # The timers' deadlines are whole milliseconds.
    assert max(line["duration_ms"] for line in joined) >= 999
    first.close()
    second.close()


def test_an_authenticated_client_is_named_and_its_password_is_not() -> None:
    port = free_port()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = (
        "log.format=json",
        "request.log.slow.ms=0",
        "request.log.clients=principal=User:ada",
        f'plain.sasl.jaas.config={module} required user_ada="hunter2";',
    )
    server = KorvetServer(*(word for setting in settings for word in ("--set", setting)))
    listeners = f"PLAINTEXT://127.0.0.1:{server.port},SASL_PLAINTEXT://127.0.0.1:{port}"
    server.options += ["--set", f"listeners={listeners}"]
    try:
        server.start()
        login = {"sasl_mechanism": "PLAIN", "sasl_username": "ada", "sasl_password": "hunter2"}
        client = producer(f"127.0.0.1:{port}", security_protocol="SASL_PLAINTEXT", **login)
        send(client, "orders", 0, [record()])
        log = Log(server)
        (line, *_) = log.wait(api="Produce", principal="User:ada")
        assert line["reasons"] == ["slow", "selected"]
        # It was sent before the client had authenticated, and is named when it is answered.
        assert log.wait(api="SaslAuthenticate")[0]["principal"] == "User:ada"
        assert "hunter2" not in server.log.read_text()
        log.client.raw.socket.close()
    finally:
        server.discard()
