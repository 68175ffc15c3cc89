"""KorvetBroker: what it offers to tests, across stops and restarts."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import ssl
import sys
import tempfile
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, ConfigResource

from korvet.testing import KorvetBroker, KorvetBrokerError, Record
from tests.support.polling import until
from tests.support.processes import children
from tests.testing.conftest import WAIT_S, descendants, until_ended

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def ours() -> set[int]:
    """Process IDs of the children of the tests."""
    return set(children(os.getpid()))


@pytest.fixture(scope="module")
def shared() -> Iterator[KorvetBroker]:
    with KorvetBroker() as broker:
        yield broker


def config_of(broker: KorvetBroker, **more: Any) -> dict[str, Any]:
    """The configuration of a client of librdkafka."""
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": broker.security_protocol,
        **more,
    }


def produce(broker: KorvetBroker, topic: str, values: Sequence[bytes], **config: Any) -> None:
    producer = Producer(config_of(broker, **config))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


def consumer_of(broker: KorvetBroker, group: str, topic: str, **config: Any) -> Consumer:
    consumer = Consumer(config_of(broker, **{"group.id": group, "auto.offset.reset": "earliest", **config}))
    consumer.subscribe([topic])
    return consumer


def read(consumer: Consumer, count: int) -> list[tuple[int | None, Any]]:
    """Offsets and values of the next records."""
    messages = consumer.consume(count, WAIT_S)
    return [(message.offset(), message.value()) for message in messages]


@pytest.mark.short
def test_records_groups_and_commits_can_be_asserted(shared: KorvetBroker) -> None:
    shared.create_topic("orders", partitions=2, configs={"retention.ms": "-1"})
    producer = Producer(config_of(shared))
    producer.produce("orders", b"paid", key=b"a", partition=1, timestamp=1_700_000_000_000)
    producer.produce("orders", b"", partition=0, headers={"trace": b"7", "empty": None})
    producer.produce("orders", None, key=b"a", partition=1, timestamp=1_700_000_000_001)
    assert producer.flush(WAIT_S) == 0
    first, *others = shared.records("orders")
    assert (first.partition, first.offset, first.key, first.value) == (0, 0, None, b"")
    assert dict(first.headers) == {"trace": b"7", "empty": None}
    assert others == [
        Record(1, 0, 1_700_000_000_000, b"a", b"paid"),
        Record(1, 1, 1_700_000_000_001, b"a", None),
    ]
    assert shared.committed("billing") == {}
    consumer = consumer_of(shared, "billing", "orders")
    try:
        assert len(read(consumer, 3)) == 3
        shared.wait_for_group("billing", members=1, timeout_s=WAIT_S)
        consumer.commit(asynchronous=False)
        assert shared.committed("billing") == {("orders", 0): 1, ("orders", 1): 2}
        with pytest.raises(
            KorvetBrokerError, match=r"expected 2 members .* now it has 1 and is in state Stable"
        ):
            shared.wait_for_group("billing", members=2, timeout_s=0.1)
    finally:
        consumer.close()
    shared.wait_for_group("billing", members=0, timeout_s=WAIT_S)


@pytest.mark.short
def test_queues_can_be_asserted(shared: KorvetBroker) -> None:
    """A share group begins at the end: what is produced after wait_for_group is delivered."""
    shared.create_topic("jobs", partitions=2)
    assert shared.depth("workers") == {}
    worker = ShareConsumer({"bootstrap.servers": shared.bootstrap_servers, "group.id": "workers"})
    worker.subscribe(["jobs"])
    shared.wait_for_group("workers", timeout_s=WAIT_S)
    assert shared.depth("workers") == {("jobs", 0): 0, ("jobs", 1): 0}
    producer = Producer(config_of(shared))
    for number in range(3):
        producer.produce("jobs", b"%d" % number, partition=1)
    assert producer.flush(WAIT_S) == 0
    assert shared.depth("workers") == {("jobs", 0): 0, ("jobs", 1): 3}
    values: list[bytes | None] = []

    def are_read() -> bool:
        values.extend(message.value() for message in worker.poll(0.1))
        return len(values) >= 3

    until(are_read, WAIT_S, "three records")
    worker.commit_sync(WAIT_S)
    worker.close()
    assert values == [b"0", b"1", b"2"]
    assert shared.depth("workers") == {("jobs", 0): 0, ("jobs", 1): 0}
    shared.wait_for_group("workers", members=0, timeout_s=WAIT_S)


def test_a_group_of_the_new_protocol_is_waited_for(shared: KorvetBroker) -> None:
    shared.create_topic("new-protocol")
    consumer = consumer_of(shared, "new", "new-protocol", **{"group.protocol": "consumer"})
    try:
        consumer.poll(0.0)
        shared.wait_for_group("new", timeout_s=WAIT_S)
    finally:
        consumer.close()


def test_processes_that_were_forked_ask_at_the_same_time(shared: KorvetBroker) -> None:
    shared.create_topic("forked")
    forking = multiprocessing.get_context("fork")
    processes = [forking.Process(target=ask_often, args=(shared, "forked")) for _ in range(3)]
    for process in processes:
        process.start()
    ask_often(shared, "forked")
    for process in processes:
        process.join(WAIT_S)
        assert process.exitcode == 0


def ask_often(broker: KorvetBroker, topic: str) -> None:
    for _ in range(50):
        assert broker.records(topic) == []
        assert broker.committed(topic) == {}


def test_configs_of_a_topic_may_be_numbers(shared: KorvetBroker) -> None:
    shared.create_topic("numbers", configs={"retention.ms": 60_000})
    client = AdminClient(config_of(shared))
    (described,) = client.describe_configs([ConfigResource("topic", "numbers")]).values()
    assert described.result(WAIT_S)["retention.ms"].value == "60000"


def test_what_a_broker_refuses_is_said(shared: KorvetBroker) -> None:
    with pytest.raises(KorvetBrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        shared.records("nowhere")
    shared.create_topic("twice")
    with pytest.raises(KorvetBrokerError, match="TOPIC_ALREADY_EXISTS"):
        shared.create_topic("twice")


def test_its_data_and_its_pages_can_be_read(shared: KorvetBroker) -> None:
    shared.create_topic("seen")
    with redis.Redis.from_url(shared.redis_url) as client:
        assert client.ping()
    with urllib.request.urlopen(f"{shared.admin_url}/metrics", timeout=WAIT_S) as page:
        assert b"korvet_" in page.read()


@pytest.mark.short
@pytest.mark.parametrize("abruptly", [False, True])
def test_data_and_addresses_outlive_a_restart(abruptly: bool) -> None:
    with KorvetBroker() as broker:
        before = broker.bootstrap_servers, broker.redis_url
        produce(broker, "kept", [b"before"])
        consumer = consumer_of(broker, "readers", "kept")
        try:
            assert read(consumer, 1) == [(0, b"before")]
            consumer.commit(asynchronous=False)
            broker.stop(abruptly=abruptly)
            with pytest.raises(KorvetBrokerError, match="no broker answers"):
                broker.records("kept")
            broker.start()
            assert (broker.bootstrap_servers, broker.redis_url) == before
            assert broker.committed("readers") == {("kept", 0): 1}
            produce(broker, "kept", [b"after"])
            assert read(consumer, 1) == [(1, b"after")]
        finally:
            consumer.close()
        assert [record.value for record in broker.records("kept")] == [b"before", b"after"]


def test_a_start_that_fails_can_be_repeated() -> None:
    with KorvetBroker() as broker:
        produce(broker, "kept", [b"before"])
        port = int(broker.bootstrap_servers.partition(":")[2])
        broker.stop()
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            for start in (broker.start, partial(broker.restart, node_id=1)):
                with pytest.raises(KorvetBrokerError, match=f"(?s)ended with status 1 .*:{port}: Address"):
                    start()
            assert broker.bootstrap_servers == f"127.0.0.1:{port}"
            with pytest.raises(KorvetBrokerError, match="no broker runs"):
                broker.faults.clear()
        broker.start()
        assert [record.value for record in broker.records("kept")] == [b"before"]


def test_several_brokers_share_the_data() -> None:
    with KorvetBroker(brokers=3) as broker:
        assert len(broker.bootstrap_servers.split(",")) == 3
        broker.create_topic("shared", partitions=6)
        produce(broker, "shared", [b"%d" % number for number in range(60)])
        assert len(broker.records("shared")) == 60
        leaders = Producer(config_of(broker)).list_topics("shared", WAIT_S).topics["shared"].partitions
        assert {partition.leader for partition in leaders.values()} == {1, 2, 3}
        broker.restart()
        assert len(broker.records("shared")) == 60
        broker.stop(abruptly=True, node_id=2)
        # The others lead its partitions once its lease has expired.
        assert len(broker.records("shared")) == 60
        produce(broker, "shared", [b"beside"])
        broker.start()
        assert len(broker.records("shared")) == 61
        with pytest.raises(ValueError, match="node_id=4: expected a number from 1 to 3"):
            broker.stop(node_id=4)


@pytest.mark.short
def test_it_can_be_used_beside_clients_of_one_event_loop() -> None:
    async def session() -> None:
        async with KorvetBroker() as broker:
            await broker.aio.create_topic("async")
            consumer = AIOKafkaConsumer(
                "async",
                bootstrap_servers=broker.bootstrap_servers,
                group_id="readers",
                auto_offset_reset="earliest",
            )
            producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers)
            async with consumer, producer:
                # The consumer joins in the loop that waits.
                await broker.aio.wait_for_group("readers", timeout_s=WAIT_S)
                await producer.send_and_wait("async", b"first")
                message = await asyncio.wait_for(consumer.getone(), WAIT_S)
                assert (message.offset, message.value) == (0, b"first")
                await consumer.commit()
            assert await broker.aio.committed("readers") == {("async", 0): 1}
            assert [record.value for record in await broker.aio.records("async")] == [b"first"]
            await broker.aio.restart()
            assert len(await broker.aio.records("async")) == 1
            await broker.aio.stop()
            await broker.aio.start()

    asyncio.run(session())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_authenticate_over_tls(mechanism: str, secured: KorvetBroker) -> None:
    def login(password: str) -> dict[str, str]:
        return {
            "ssl.ca.location": secured.ca_file,
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }

    assert secured.security_protocol == "SASL_SSL"
    produce(secured, "secured", [b"first"], **login("secret"))
    assert secured.records("secured")[-1].value == b"first"
    stranger = Producer(config_of(secured, **login("wrong")))
    with pytest.raises(KafkaException):
        stranger.list_topics(timeout=5)


@pytest.fixture(scope="module")
def secured() -> Iterator[KorvetBroker]:
    with KorvetBroker(tls=True, users={"alice": "secret"}) as broker:
        # Users and certificates outlive a restart.
        broker.restart()
        yield broker


def test_the_authority_of_one_broker_trusts_no_other(secured: KorvetBroker) -> None:
    with KorvetBroker(tls=True) as other:
        assert other.security_protocol == "SSL"
        assert ssl.create_default_context(cafile=other.ca_file).cert_store_stats()["x509_ca"] >= 1
        stranger = Producer(config_of(other, **{"ssl.ca.location": secured.ca_file}))
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=5)
        produce(other, "topic", [b"first"], **{"ssl.ca.location": other.ca_file})


def test_with_acls_users_may_do_what_they_are_allowed() -> None:
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
    }
    users = {"alice": "secret", "root": "secret"}
    with KorvetBroker(settings=settings, users=users) as broker:
        broker.create_topic("guarded")
        login = {"sasl.mechanism": "PLAIN", "sasl.password": "secret"}
        produce(broker, "guarded", [b"by root"], **login, **{"sasl.username": "root"})
        failed: list[Any] = []
        producer = Producer(config_of(broker, **login, **{"sasl.username": "alice"}))
        producer.produce("guarded", b"by alice", on_delivery=lambda error, _: failed.append(error))
        producer.flush(WAIT_S)
        assert failed[0] is not None
        assert [record.value for record in broker.records("guarded")] == [b"by root"]


def test_settings_of_all_types_reach_the_brokers() -> None:
    with KorvetBroker(settings={"num.partitions": 3, "log.offset.assignment": "clock"}) as broker:
        produce(broker, "auto", [b"first"])
        assert broker.records("auto")[0].offset > 1 << 50
        described = Producer(config_of(broker)).list_topics("auto", WAIT_S)
        assert len(described.topics["auto"].partitions) == 3
    with KorvetBroker(settings={"auto.create.topics.enable": False}) as broker:
        assert Producer(config_of(broker)).list_topics("new", WAIT_S).topics["new"].error is not None


def test_a_broker_that_does_not_start_shows_the_end_of_its_log() -> None:
    before = ours()
    broker = KorvetBroker(settings={"num.partitons": 3})
    with pytest.raises(KorvetBrokerError, match=r"(?s)ended with status 1 while starting.*num\.partitons"):
        broker.start()
    assert ours() == before


def test_a_broker_that_was_not_started_says_so() -> None:
    broker = KorvetBroker()
    with pytest.raises(KorvetBrokerError, match="was not started"):
        broker.records("topic")
    with pytest.raises(KorvetBrokerError, match="was not started"):
        _ = broker.bootstrap_servers
    with pytest.raises(KorvetBrokerError, match="was not started"):
        _ = broker.security_protocol
    with pytest.raises(KorvetBrokerError, match="tls=True"):
        _ = broker.ca_file
    with pytest.raises(ValueError, match="brokers=0"):
        KorvetBroker(brokers=0)
    with pytest.raises(ValueError, match="settings: listeners, node_id: a KorvetBroker sets this itself"):
        KorvetBroker(settings={"listeners": "PLAINTEXT://127.0.0.1:0", "node_id": 7})
    broker.close()


def test_settings_of_the_environment_are_those_of_other_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KORVET_REDIS", "redis://127.0.0.1:1")
    monkeypatch.setenv("KORVET_NUM_PARTITIONS", "7")
    with KorvetBroker() as broker:
        described = Producer(config_of(broker)).list_topics("new", WAIT_S)
        assert len(described.topics["new"].partitions) == 1


def test_modules_of_the_working_folder_are_not_those_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("korvet", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the tests')\n")
    monkeypatch.chdir(tmp_path)
    with KorvetBroker() as broker:
        broker.create_topic("topic")


@pytest.mark.skipif(sys.platform != "linux", reason="the log needs a folder elsewhere")
def test_it_needs_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deleted))
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    with KorvetBroker() as broker:
        broker.create_topic("topic")


@pytest.mark.short
def test_nothing_is_left_after_the_block() -> None:
    before = ours()
    with KorvetBroker(brokers=2) as broker:
        made = ours() - before
        assert len(made) == 3  # two brokers, and what watches the server
        started = made.union(*map(descendants, made))
        assert len(started) == 4
        broker.create_topic("topic")
    until_ended(started)
    broker.close()
