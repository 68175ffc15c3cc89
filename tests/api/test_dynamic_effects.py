"""What changed settings of brokers do: in one broker at once, in the others soon."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect
from tests.api.batches import batch, now_ms
from tests.api.secured import MODULE, authenticate
from tests.api.test_broker_configs import (
    ALL,
    DELETE,
    INVALID_REQUEST,
    OWN,
    SET,
    described,
    increment,
    replace,
)
from tests.api.test_produce import TOO_LARGE, put
from tests.support.bystander import pids_of
from tests.support.certificates import Authority
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.servers import KorvetServer
from tests.support.stopwatch import Stopwatch
from tests.support.wire import ConnectionClosed, RawConnection, advertised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NOT_ENOUGH_REPLICAS, INVALID_TIMESTAMP, SASL_FAILED, GROUP_MAX_SIZE = 19, 32, 58, 81
OUT_OF_ORDER, UNSUPPORTED_MECHANISM, INVALID_SESSION = 45, 33, 26
DEADLINE_S = 20.0
KEYSTORE = "listener.name.secure.ssl.keystore.location"
TRUSTSTORE = "listener.name.secure.ssl.truststore.location"
CLIENT_AUTH = "listener.name.secure.ssl.client.auth"


class Site:
    """A broker with a listener of each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.keystore = folder / "keystore.pem"
        shutil.copy(self.authority.issue("first", "/CN=first"), self.keystore)
        self.server = KorvetServer()
        self.ports = {"SECURE": free_port(), "LOGIN": free_port()}
        self.pages = Pages(free_port())
        listeners = [f"OPEN://127.0.0.1:{self.server.port}"]
        listeners += [f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()]
        for pair in (
            f"listeners={','.join(listeners)}",
            "listener.security.protocol.map=OPEN:PLAINTEXT,SECURE:SSL,LOGIN:SASL_PLAINTEXT",
            f"ssl.keystore.location={self.keystore}",
            f"admin.listen=127.0.0.1:{self.pages.port}",
            "connection.failed.authentication.delay.ms=0",
            "log.retention.check.interval.ms=100",
            "log.cleaner.backoff.ms=3600000",
        ):
            self.server.options += ["--set", pair]

    def common_name(self, certificate: Path | None = None) -> str:
        """The common name of the certificate that a new connection gets. Raises OSError if it is refused."""
        context = ssl.create_default_context(cafile=self.authority.certificate)
        if certificate is not None:
            context.load_cert_chain(certificate)
        with (
            socket.create_connection(("127.0.0.1", self.ports["SECURE"]), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            # With TLS 1.3, a refusal of the client's certificate arrives with the first read.
            secure.sendall(b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\x00\x00")
            if not secure.recv(1):
                raise ConnectionResetError("the server refuses the client's certificate")
            subject: Any = secure.getpeercert()
            return str(dict(pair[0] for pair in subject["subject"])["commonName"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("dynamic"))
    try:
        site.server.start()
        yield site
    finally:
        site.server.discard()


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with connect(site.server) as asking:
        yield asking
    # The test may have restarted the server.
    with connect(site.server) as asking:
        for name in (ALL, OWN):
            assert replace(asking, name) == (0, None)


@pytest.fixture
def new(client: Client, fresh: Callable[[str], str]) -> Callable[..., str]:
    """Creates topics with dense offsets: new({config: value})."""

    def make(configs: dict[str, str] | None = None) -> str:
        name = fresh("topic")
        given = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": given}
        (made,) = client("CreateTopics", 7, topics=[wanted], timeout=10_000).topics
        assert made.error_code == 0
        return name

    return make


def change(client: Client, name: str, **values: Any) -> None:
    """Set settings, with underscores for dots; None deletes."""
    changes = [
        (key.replace("_", "."), DELETE if value is None else SET, None if value is None else str(value))
        for key, value in values.items()
    ]
    assert increment(client, name, *changes) == (0, None)


def entries(site: Site, topic: str) -> int:
    return int(site.server.redis.xlen(f"korvet:{topic}:0"))


# Topics


def test_lowered_retention_trims(site, client, new):
    topic, keeping = new(), new({"retention.ms": "-1", "retention.bytes": "-1"})
    # The broker's own value precedes the cluster's.
    change(client, OWN, log_retention_ms=-1)
    change(client, ALL, log_retention_ms=60_000)
    for name in (topic, keeping):
        assert put(client, name, batch(timestamp_ms=now_ms() - 120_000)).error_code == 0
    assert entries(site, topic) == 1
    change(client, OWN, log_retention_ms=None)
    until(lambda: entries(site, topic) == 0, DEADLINE_S, "the old record is gone")
    assert put(client, topic, batch()).error_code == 0
    change(client, ALL, log_retention_bytes=0)
    until(lambda: entries(site, topic) == 0, DEADLINE_S, "the new record is gone")
    assert entries(site, keeping) == 1


def test_the_default_policy_and_the_cleaner(site, client, new):
    """Compaction begins although the cleaner sleeps for an hour."""
    topic = new()
    for _ in range(5):
        assert put(client, topic, batch()).error_code == 0
    change(client, ALL, log_cleanup_policy="compact", log_cleaner_min_cleanable_ratio="0.0")
    time_limits = {"log_cleaner_backoff_ms": 50, "log_cleaner_io_max_bytes_per_second": 1_000_000}
    change(client, OWN, **time_limits, log_cleaner_dedupe_buffer_size=1_000_000)
    until(lambda: entries(site, topic) == 1, DEADLINE_S, "the log is compacted")
    change(client, ALL, log_cleaner_min_compaction_lag_ms=3_600_000)
    for _ in range(3):
        assert put(client, topic, batch()).error_code == 0
    deleted = new({"cleanup.policy": "delete"})
    assert put(client, deleted, batch([(None, b"no key")])).error_code == 0
    assert entries(site, topic) == 4


def test_limits_of_records(client, new):
    topic, own = new(), new({"max.message.bytes": "100000"})
    large = batch([(b"k", b"v" * 2000)])
    change(client, ALL, message_max_bytes=1000)
    assert put(client, topic, large).error_code == TOO_LARGE
    assert put(client, own, large).error_code == 0
    change(client, OWN, message_max_bytes=3000)
    assert put(client, topic, large).error_code == 0
    late = batch(timestamp_ms=now_ms() + 60_000)
    assert put(client, topic, late).error_code == 0
    change(client, ALL, log_message_timestamp_after_max_ms=1000, log_message_timestamp_before_max_ms=60_000)
    assert put(client, topic, late).error_code == INVALID_TIMESTAMP
    early = batch(timestamp_ms=now_ms() - 3_600_000)
    assert put(client, topic, early).error_code == INVALID_TIMESTAMP


def test_the_least_copies(client, new):
    """Of existing topics, too. The server has no replica."""
    topic, own = new(), new({"min.insync.replicas": "1"})
    assert put(client, topic, batch()).error_code == 0
    change(client, ALL, min_insync_replicas=2)
    until(lambda: put(client, topic, batch()).error_code == NOT_ENOUGH_REPLICAS, DEADLINE_S, "the refusal")
    assert put(client, own, batch()).error_code == 0
    assert put(client, topic, batch(), acks=1).error_code == 0
    change(client, ALL, min_insync_replicas=None)
    until(lambda: put(client, topic, batch()).error_code == 0, DEADLINE_S, "records are accepted")


def test_idle_producers_expire(site, client, new):
    """The next batch of a producer whose state has expired is accepted with any sequence."""
    topic = new()
    made = client("InitProducerId", 4, transactional_id=None, transaction_timeout=60_000)
    producer = made.producer_id, made.producer_epoch
    assert put(client, topic, batch(producer=(*producer, 0))).error_code == 0
    assert put(client, topic, batch(producer=(*producer, 9))).error_code == OUT_OF_ORDER
    change(client, ALL, producer_id_expiration_ms=1)

    def accepted() -> bool:
        return put(client, topic, batch(producer=(*producer, 9))).error_code == 0

    until(accepted, DEADLINE_S, "the producer's state has expired")


def test_less_memory(site, client, new):
    """A cache that is turned off is emptied."""
    topic = new()
    assert put(client, topic, batch()).error_code == 0
    change(client, ALL, tail_cache_bytes=0, fetch_readahead_bytes=0)
    fields = {"replica_id": -1, "max_wait": 100, "min_bytes": 1, "max_bytes": 1_000_000, "session_epoch": -1}
    parts = [
        {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000, "current_leader_epoch": -1}
    ]
    answer = client("Fetch", 12, **fields, topics=[{"topic": topic, "partitions": parts}])
    assert answer.responses[0].partitions[0].error_code in (0, 1)
    assert put(client, topic, batch()).error_code == 0


# Connections


def open_connections(port: int, count: int) -> list[RawConnection]:
    """Returns as many of the connections as the broker keeps open."""
    tried = [RawConnection("127.0.0.1", port) for _ in range(count)]
    return [each for each in tried if answers(each)]


def answers(connection: RawConnection) -> bool:
    try:
        return connection.works()
    except (ConnectionClosed, OSError):
        connection.socket.close()
        return False


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max.connections", "4"),
        ("max.connections.per.ip", "4"),
        ("max.connections.per.ip.overrides", "10.1.1.1:1,127.0.0.1:4"),
        ("listener.name.open.max.connections", "4"),
    ],
)
def test_limits_of_connections(site, client, key, value):
    # Connections of earlier tests may be about to end.
    until(lambda: len(close(open_connections(site.server.port, 6))) == 6, DEADLINE_S, "no limit")
    kept = open_connections(site.server.port, 2)
    assert increment(client, ALL, (key, SET, value)) == (0, None)

    def held() -> bool:
        opened = open_connections(site.server.port, 6)
        close(opened)
        return len(opened) == 1

    until(held, DEADLINE_S, "one more connection is admitted beside three")
    assert all(answers(each) for each in kept)
    assert increment(client, ALL, (key, DELETE, None)) == (0, None)
    until(lambda: len(close(open_connections(site.server.port, 6))) == 6, DEADLINE_S, "no limit again")
    close(kept)


def close(connections: list[RawConnection]) -> list[RawConnection]:
    for each in connections:
        each.socket.close()
    return connections


def test_the_rate_of_connections(site, client):
    """Ten seconds' connections are admitted at once; the next ones wait."""
    change(client, ALL, max_connection_creation_rate=1)
    began_s = time.monotonic()
    close(open_connections(site.server.port, 12))
    assert time.monotonic() - began_s > 0.5
    change(client, ALL, max_connection_creation_rate=None)
    close(open_connections(site.server.port, 1))
    watch = Stopwatch(*pids_of(site.server))
    assert len(close(open_connections(site.server.port, 20))) == 20
    assert watch.elapsed_s < 5


# TLS and SASL


def test_certificates(site, client):
    assert site.common_name() == "first"
    second = site.authority.issue("second", "/CN=second")
    assert increment(client, OWN, (KEYSTORE, SET, str(second))) == (0, None)
    assert site.common_name() == "second"
    # The same path with another certificate. Its time of change is the old one.
    stat = second.stat()
    shutil.copy(site.authority.issue("third", "/CN=third"), second)
    os.utime(second, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert increment(client, OWN, (KEYSTORE, SET, str(second))) == (0, None)
    assert site.common_name() == "third"
    assert increment(client, OWN, (KEYSTORE, DELETE, None)) == (0, None)
    assert site.common_name() == "first"


def test_every_page_knows_when_certificates_expire(site, client):
    now = datetime.now(UTC)
    short = site.authority.issue("short", "/CN=short", end=now + timedelta(days=9))
    assert increment(client, OWN, (KEYSTORE, SET, str(short))) == (0, None)
    until(lambda: "certificate CN=short" in site.server.tail(), DEADLINE_S, "the log warns")
    (row,) = [line for line in site.pages.read("/metrics").text.splitlines() if "CN=short" in line]
    name, _, value = row.rpartition(" ")
    assert name == (
        'korvet_certificate_expiry_timestamp_seconds{listener="SECURE",file="keystore",subject="CN=short"}'
    )
    assert float(value) == int((now + timedelta(days=9)).timestamp())

    def findings() -> dict[str, str]:
        status = json.loads(site.pages.read("/status").text)
        assert [each["validity"] for each in status["certificates"]] == ["ending"]
        return {each["subject"]: each["state"] for each in status["findings"]}

    # Findings are renewed every five seconds.
    until(lambda: findings()["certificate, SECURE"] == "warning", DEADLINE_S, "the status warns")


def test_files_that_cannot_be_used_are_refused(site, client):
    broken = site.folder / "broken.pem"
    broken.write_text("no certificate")
    for path in (broken, site.folder / "missing.pem"):
        for key in (KEYSTORE, TRUSTSTORE):
            for validate_only in (True, False):
                change = (key, SET, str(path))
                error, message = increment(client, OWN, change, validate_only=validate_only)
                assert error == INVALID_REQUEST
                assert str(path) in message
    assert site.common_name() == "first"
    assert described(client, OWN, KEYSTORE) == {}


def test_a_file_that_is_gone_at_the_next_start(site, client):
    """The broker starts with the file that its settings name."""
    path = site.authority.issue("passing", "/CN=passing")
    changes = [(KEYSTORE, SET, str(path)), ("log.retention.ms", SET, "77000")]
    assert increment(client, OWN, *changes) == (0, None)
    assert site.common_name() == "passing"
    path.unlink()
    assert site.server.stop() == 0
    site.server.restart()
    assert site.common_name() == "first"
    with connect(site.server) as again:
        assert described(again, OWN, "log.retention.ms")["log.retention.ms"][0] == "77000"
        assert "some dynamic settings have no effect" in site.server.tail()
        # Other changes are possible nevertheless.
        change(again, ALL, log_retention_bytes=5000)
        change(again, OWN, log_retention_ms=78_000)
        assert increment(again, OWN, (KEYSTORE, SET, str(path)))[0] == INVALID_REQUEST


def test_clients_certificates(site, client):
    """The broker can't require any without authorities that sign them."""
    error, message = increment(client, OWN, (CLIENT_AUTH, SET, "required"))
    assert error == INVALID_REQUEST
    assert "ssl.truststore.location" in message
    changes = [(CLIENT_AUTH, SET, "required"), (TRUSTSTORE, SET, str(site.authority.certificate))]
    assert increment(client, OWN, *changes) == (0, None)
    with pytest.raises(OSError):
        site.common_name()
    mine = site.authority.issue("client", "/CN=client")
    assert site.common_name(mine) == "first"
    strangers = Authority(site.folder, "strangers")
    assert increment(client, OWN, (TRUSTSTORE, SET, str(strangers.certificate))) == (0, None)
    with pytest.raises(OSError):
        site.common_name(mine)
    assert increment(client, OWN, *((key, DELETE, None) for key, *_ in changes)) == (0, None)
    assert site.common_name() == "first"


def test_users_and_mechanisms(site, client):
    served = advertised("127.0.0.1", site.ports["LOGIN"])

    def outcome(user: str) -> int:
        asking = Client("127.0.0.1", site.ports["LOGIN"], served)
        with asking.raw:
            return int(authenticate(asking, user, "secret").error_code)

    assert outcome("dynamic") == SASL_FAILED
    users = f'{MODULE} required user_dynamic="secret";'
    for key in ("listener.name.login.plain.sasl.jaas.config", "plain.sasl.jaas.config"):
        assert increment(client, OWN, (key, SET, users)) == (0, None)
        assert outcome("dynamic") == 0
        # Nobody can read the passwords.
        assert described(client, OWN, key)[key][0] is None
        assert increment(client, OWN, (key, DELETE, None)) == (0, None)
        assert outcome("dynamic") == SASL_FAILED
    error, message = increment(client, OWN, ("plain.sasl.jaas.config", SET, "user_dynamic=secret"))
    assert error == INVALID_REQUEST
    assert "secret" not in message
    assert increment(client, OWN, ("sasl.enabled.mechanisms", SET, "SCRAM-SHA-256")) == (0, None)
    asking = Client("127.0.0.1", site.ports["LOGIN"], served)
    with asking.raw:
        shaken = asking("SaslHandshake", 1, mechanism="PLAIN")
        assert (int(shaken.error_code), list(shaken.mechanisms)) == (UNSUPPORTED_MECHANISM, ["SCRAM-SHA-256"])
    assert increment(client, OWN, ("sasl.enabled.mechanisms", SET, "NTLM"))[0] == INVALID_REQUEST


# Groups


def test_limits_of_groups(client, fresh):
    def join(group: str, session_ms: int = 10_000) -> int:
        protocols = [{"name": "range", "metadata": b"x"}]
        fields = {"session_timeout": session_ms, "rebalance_timeout": 100, "member_id": ""}
        answer = client(
            "JoinGroup", 3, group_id=group, **fields, protocol_type="consumer", protocols=protocols
        )
        return int(answer.error_code)

    until(lambda: join(fresh("group")) == 0, DEADLINE_S, "the coordinator has loaded")
    change(client, ALL, group_min_session_timeout_ms=8000, group_max_session_timeout_ms=9000)
    assert [join(fresh("group"), ms) for ms in (7999, 8000, 9000, 9001)] == [26, 0, 0, 26]
    change(client, ALL, group_min_session_timeout_ms=None, group_max_session_timeout_ms=None)
    change(client, ALL, group_initial_rebalance_delay_ms=1500)
    began_s = time.monotonic()
    assert join(fresh("group")) == 0
    assert time.monotonic() - began_s > 1.4


def test_intervals_of_consumer_groups(client, fresh):
    def heartbeat(member: str) -> Any:
        fields = {"group_id": group, "member_epoch": 0, "rebalance_timeout": 1000, "topic_partitions": []}
        return client("ConsumerGroupHeartbeat", 1, **fields, member_id=member, subscribed_topic_names=["t"])

    group = fresh("group")
    until(lambda: heartbeat("a").error_code == 0, DEADLINE_S, "the coordinator has loaded")
    change(client, ALL, group_consumer_heartbeat_interval_ms=7000, group_consumer_max_size=1)
    answer = heartbeat("a")
    assert answer.error_code == 0
    assert answer.heartbeat_interval.total_seconds() == 7
    assert heartbeat("b").error_code == GROUP_MAX_SIZE
    shown = described(client, group, "consumer.heartbeat.interval.ms", kind=32)
    assert shown["consumer.heartbeat.interval.ms"] == (
        "7000",
        3,
        [
            ("group.consumer.heartbeat.interval.ms", "7000", 3),
            ("group.consumer.heartbeat.interval.ms", "5000", 5),
        ],
    )
    change(client, ALL, group_consumer_max_size=None)
    assert heartbeat("b").error_code == 0


# Several brokers


def test_other_brokers_follow(site, client, fresh):
    other = KorvetServer("--node-id=2", redis_url=f"unix://{site.server.socket_path()}")
    key = "log.retention.bytes"
    try:
        other.start()
        with connect(other) as asking:
            change(client, ALL, log_retention_bytes=5000)
            until(
                lambda: described(asking, "2", key)[key][:2] == ("5000", 3), DEADLINE_S, "the cluster's value"
            )
            assert described(asking, ALL)[key][0] == "5000"
            # Each broker has its own value.
            change(asking, "2", log_retention_bytes=6000)
            assert described(asking, "2", key)[key][:2] == ("6000", 2)
            change(client, OWN, log_retention_bytes=7000)
            assert described(client, OWN, key)[key][:2] == ("7000", 2)
            assert described(asking, "2", key)[key][:2] == ("6000", 2)
            refused = increment(asking, OWN, (key, SET, "1"))
            assert refused == (INVALID_REQUEST, "Unexpected broker id, expected 2, but received 1")
            # A change of the cluster through one broker sees what the other one has changed a moment ago.
            change(client, ALL, log_cleanup_policy="compact")
            assert increment(asking, ALL, ("log.cleanup.policy", 3, "compact")) == (0, None)
            assert described(asking, ALL)["log.cleanup.policy"][0] == ""
            assert replace(asking, "2") == (0, None)
    finally:
        other.stop()
        other.discard()
