"""Backups while brokers serve clients, and what clients see of a restored keyspace."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import redis
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from korvet.backup.connection import RedisConnection
from korvet.embedded.sockets import socket_of
from korvet.redis.address import parse_url
from tests.api.asking import connect, newest
from tests.api.batches import batch
from tests.api.test_offset_for_leader_epoch import asked, leader_epoch
from tests.api.test_produce import put
from tests.backup.contents import success
from tests.faults.test_lost_data import new_producer_id
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.load import QUICK, LoadProducer
from tests.support.pages import Pages
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.records import NOW_MS, Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.java import JavaTools
    from tests.support.redis_server import Server
    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "orders"
ASSIGNMENTS = ("clock", "dense")


def records(first: int, count: int) -> list[Record]:
    return [Record(b"k%d" % n, b"v%d" % n, (), NOW_MS + n) for n in range(first, first + count)]


def restore(server: KorvetServer, backup: Path) -> None:
    """Replace the data of a server that has its own folder by a backup, and start it."""
    server.stop()
    shutil.rmtree(server.data_dir / "appendonlydir")
    success("restore", backup, "--data-dir", server.data_dir)
    server.restart()


def test_a_backup_under_load_holds_all_that_was_acknowledged(
    own_korvet: Callable[..., KorvetServer], tmp_path: Path
) -> None:
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    load = LoadProducer(server.bootstrap, TOPIC, "load", idempotent=True)
    until(lambda: len(load.acknowledged) > 5000, 30, "records are acknowledged")
    before = dict(load.acknowledged)
    success("backup", tmp_path / "backup", "--data-dir", server.data_dir)
    during = len(load.acknowledged)
    until(lambda: len(load.acknowledged) > during + 1000, 30, "the load continues")
    load.finish()
    assert not load.failed
    after = max(load.acknowledged.values())
    restore(server, tmp_path / "backup")
    found = {each.offset: each.record.value for each in read_all(server.bootstrap, TOPIC)}
    assert {offset: load.value(number) for number, offset in before.items()}.items() <= found.items()
    # All of one moment: what the producer sent first, without gaps.
    assert sorted(found.values()) == sorted(load.value(number) for number in range(len(found)))
    (offset,) = send(producer(server.bootstrap), TOPIC, 0, records(0, 1))
    assert offset > after


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_numbers_that_clients_have_seen_are_not_given_out_again(
    own_korvet: Callable[..., KorvetServer], tmp_path: Path, assignment: str
) -> None:
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1, {"offset.assignment": assignment})
    first = put_some(server, 2)
    success("backup", tmp_path / "backup", "--data-dir", server.data_dir)
    epochs, ids = set(), {new_producer_id(server)}
    for _ in range(3):
        server.stop()
        server.restart()
        epochs.add(epoch_of(server))
        ids.add(new_producer_id(server))
        seen = put_some(server, 2)
    for _ in range(2):
        restore(server, tmp_path / "backup")
        assert epoch_of(server) > max(epochs)
        assert new_producer_id(server) > max(ids)
        with connect(server) as client:
            # Epochs that this log never had ended at the restored log end.
            for epoch in epochs:
                code, _, end = asked(client, TOPIC, epoch, current=epoch_of(server))
                assert (code, end) == (0, first + 2)
        epochs.add(epoch_of(server))
        ids.add(new_producer_id(server))
        again = put_some(server, 2)
        assert again == first + 2 if assignment == "dense" else again > seen + 1
        seen = max(seen, again)


def put_some(server: KorvetServer, count: int) -> int:
    with connect(server) as client:
        return int(put(client, TOPIC, batch([(b"k", b"v")] * count)).base_offset)


def epoch_of(server: KorvetServer) -> int:
    with connect(server) as client:
        return int(leader_epoch(client, TOPIC))


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_consumer_ahead_of_the_backup_misses_no_new_record(
    own_korvet: Callable[..., KorvetServer], tmp_path: Path, assignment: str
) -> None:
    """The consumer runs during the restore, and its group's offsets are those of the backup."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1, {"offset.assignment": assignment})
    send(producer(server.bootstrap), TOPIC, 0, records(0, 5))
    reader = consumer(server.bootstrap, "readers", auto_offset_reset="earliest", enable_auto_commit=False)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    assert [each.record for each in take(reader, 5)] == records(0, 5)
    reader.commit(asynchronous=False)
    success("backup", tmp_path / "backup", "--data-dir", server.data_dir)
    send(producer(server.bootstrap), TOPIC, 0, records(5, 5))
    assert [each.record for each in take(reader, 5)] == records(5, 5)
    reader.commit(asynchronous=False)
    restore(server, tmp_path / "backup")
    send(producer(server.bootstrap), TOPIC, 0, records(10, 10))
    assert [each.record for each in take(reader, 10)] == records(10, 10)
    reader.close()
    second = consumer(server.bootstrap, "readers", auto_offset_reset="earliest", enable_auto_commit=False)
    second.subscribe([TOPIC])
    assert [each.record for each in take(second, 10)] == records(10, 10)
    second.close()


@pytest.mark.parametrize("assignment", ["clock", pytest.param("dense", marks=pytest.mark.long)])
def test_javas_producer_and_consumer_go_on(
    own_korvet: Callable[..., KorvetServer], java: JavaTools, tmp_path: Path, assignment: str
) -> None:
    """Both in their default configuration: the producer is idempotent, the consumer ahead of the backup."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1, {"offset.assignment": assignment})
    options = ["--bootstrap-server", server.bootstrap, "--topic", TOPIC]
    log = tmp_path / "read.log"
    reader = java.start("console-consumer", *options, "--from-beginning", log=log)
    command = java.command("console-producer", [*options, "--sync"])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as writer:
        assert writer.stdin is not None
        sent: list[str] = []

        def write(name: str, count: int) -> None:
            lines = [f"{name}{number}" for number in range(count)]
            writer.stdin.write("".join(f"{line}\n" for line in lines).encode())
            writer.stdin.flush()
            sent.extend(lines)
            until(lambda: set(sent) <= set(log.read_text().split()), 30, f"{sent} are read")

        try:
            write("a", 5)
            success("backup", tmp_path / "backup", "--data-dir", server.data_dir)
            write("b", 5)
            restore(server, tmp_path / "backup")
            write("c", 8)
        finally:
            writer.kill()
            reader.kill()
    kept = [each.record.value.decode() for each in read_all(server.bootstrap, TOPIC)]
    assert kept == [line for line in sent if not line.startswith("b")]
    # A member that has to join again reads from the offsets of the backup.
    assert list(dict.fromkeys(line for line in log.read_text().split() if line in sent)) == sent


def transactional(server: KorvetServer) -> Any:
    client = producer(server.bootstrap, transactional_id="payments", **QUICK)
    client.init_transactions(30)
    return client


def test_a_transaction_is_there_as_a_whole_or_not_at_all(
    own_korvet: Callable[..., KorvetServer], tmp_path: Path
) -> None:
    """A producer whose transaction is open at the backup can't commit the part that is left of it."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    client = transactional(server)
    client.begin_transaction()
    send(client, TOPIC, 0, records(0, 3))
    client.commit_transaction(30)
    client.begin_transaction()
    send(client, TOPIC, 0, records(3, 3))
    success("backup", tmp_path / "backup", "--data-dir", server.data_dir)
    send(client, TOPIC, 0, records(6, 3))
    seen = newest_producer(server)
    restore(server, tmp_path / "backup")
    with pytest.raises(KafkaException) as failed:
        client.commit_transaction(30)
    assert failed.value.args[0].code() in {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
    second = transactional(server)
    second.begin_transaction()
    send(second, TOPIC, 0, records(9, 3))
    second.commit_transaction(30)
    assert newest_producer(server) > seen
    found = [each.record for each in read_all(server.bootstrap, TOPIC)]
    assert found == [*records(0, 3), *records(9, 3)]


def newest_producer(server: KorvetServer) -> int:
    with connect(server) as client:
        asked_for = newest("DescribeTransactions")
        (state,) = client(
            "DescribeTransactions", asked_for, transactional_ids=["payments"]
        ).transaction_states
    return int(state.producer_id)


def test_an_idempotent_producer_continues(own_korvet: Callable[..., KorvetServer], tmp_path: Path) -> None:
    """The producer of librdkafka has sent more than the restored partition has."""
    server = own_korvet()
    create_topic(server.bootstrap, TOPIC, 1)
    client = producer(server.bootstrap, enable_idempotence=True, **QUICK)
    send(client, TOPIC, 0, records(0, 5))
    success("backup", tmp_path / "backup", "--data-dir", server.data_dir)
    for number in range(5):
        send(client, TOPIC, 0, records(5 + number, 1))
    restore(server, tmp_path / "backup")
    send(client, TOPIC, 0, records(10, 5))
    send(client, TOPIC, 0, records(15, 5))
    assert [each.record for each in read_all(server.bootstrap, TOPIC)] == [*records(0, 5), *records(10, 10)]


def test_a_server_that_is_restored_from_its_own_backup(
    own_korvet: Callable[..., KorvetServer], start: Callable[..., Any], tmp_path: Path
) -> None:
    """The history of the server's data has the same id as before; former leader epochs end nevertheless."""
    redis = start()
    # The first snapshot changes that id.
    with RedisConnection(parse_url(redis.url)[0]) as connection:
        connection.begin_snapshot()
        assert b"".join(connection.snapshot())
    server = own_korvet(redis_url=redis.url)
    create_topic(server.bootstrap, TOPIC, 1, {"offset.assignment": "dense"})
    put_some(server, 2)
    success("backup", tmp_path / "backup", "--redis", redis.url)
    epoch = epoch_of(server)
    put_some(server, 3)
    redis.client.flushall()
    until(lambda: "does not hold the keyspace" in server.tail(100_000), 20, "the broker has noticed it")
    redis.client.flushall()
    success("restore", tmp_path / "backup", "--redis", redis.url)
    until(lambda: epoch_of(server) > epoch, 20, "the broker leads again")
    assert put_some(server, 4) == 2
    with connect(server) as client:
        assert asked(client, TOPIC, epoch) == (0, epoch, 2)


def test_brokers_wait_for_a_server_that_is_restored(
    own_korvet: Callable[..., KorvetServer], start: Callable[..., Any], tmp_path: Path
) -> None:
    """Redis loses everything, and is restored while the broker and its clients run."""
    redis = start(kind="redis")
    server = own_korvet(redis_url=redis.url)
    create_topic(server.bootstrap, TOPIC, 1)
    client = producer(server.bootstrap)
    offsets = send(client, TOPIC, 0, records(0, 5))
    success("backup", tmp_path / "backup", "--redis", redis.url)
    offsets += send(client, TOPIC, 0, records(5, 5))
    create_topic(server.bootstrap, "later", 1)
    epoch = epoch_of(server)
    redis.client.flushall()
    until(lambda: "does not hold the keyspace" in server.tail(100_000), 20, "the broker has noticed it")
    redis.client.flushall()
    success("restore", tmp_path / "backup", "--redis", redis.url)
    found = send(producer(server.bootstrap), TOPIC, 0, records(10, 5))
    assert min(found) > max(offsets)
    assert epoch_of(server) > epoch
    assert [each.record for each in read_all(server.bootstrap, TOPIC)] == [*records(0, 5), *records(10, 5)]
    with connect(server) as asking:
        listed = asking("Metadata", newest("Metadata"), topics=None).topics
    assert {each.name for each in listed} == {TOPIC, "__consumer_offsets"} - {"later"}
    assert server.process.running


def test_a_broker_that_waited_for_a_restore_serves_new_transactional_producers(
    own_korvet: Callable[..., KorvetServer], start: Callable[..., Any], tmp_path: Path
) -> None:
    """Producer IDs that the broker took in advance before the restore are not used after it."""
    redis = start(kind="redis")
    server = own_korvet(redis_url=redis.url)
    create_topic(server.bootstrap, TOPIC, 1)
    client = transactional(server)
    client.begin_transaction()
    send(client, TOPIC, 0, records(0, 3))
    client.commit_transaction(30)
    success("backup", tmp_path / "backup", "--redis", redis.url)
    redis.client.flushall()
    until(lambda: "does not hold the keyspace" in server.tail(100_000), 20, "the broker has noticed it")
    redis.client.flushall()
    success("restore", tmp_path / "backup", "--redis", redis.url)
    send(producer(server.bootstrap), TOPIC, 0, records(3, 1))
    second = transactional(server)
    second.begin_transaction()
    send(second, TOPIC, 0, records(9, 3))
    second.commit_transaction(30)
    found = [each.record for each in read_all(server.bootstrap, TOPIC)]
    assert found == [*records(0, 4), *records(9, 3)]


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_consumer_misses_nothing_after_a_return_to_an_older_backup(
    own_korvet: Callable[..., KorvetServer], tmp_path: Path, assignment: str
) -> None:
    """Monday is restored, Tuesday is a backup of that keyspace and is restored, then Monday again."""
    server = own_korvet()
    monday, tuesday = tmp_path / "monday", tmp_path / "tuesday"
    create_topic(server.bootstrap, TOPIC, 1, {"offset.assignment": assignment})
    send(producer(server.bootstrap), TOPIC, 0, records(0, 5))
    success("backup", monday, "--data-dir", server.data_dir)
    restore(server, monday)
    success("backup", tuesday, "--data-dir", server.data_dir)
    restore(server, tuesday)
    send(producer(server.bootstrap), TOPIC, 0, records(5, 5))
    epoch = epoch_of(server)
    reader = consumer(server.bootstrap, "readers", auto_offset_reset="earliest", enable_auto_commit=False)
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    assert [each.record for each in take(reader, 10)] == records(0, 10)
    restore(server, monday)
    send(producer(server.bootstrap), TOPIC, 0, records(10, 10))
    assert [each.record for each in take(reader, 10, 20)] == records(10, 10)
    assert epoch_of(server) > epoch


@pytest.mark.parametrize("kind", ["embedded", "valkey", "redis"])
def test_a_backup_raises_no_alarm(
    kind: str, own_korvet: Callable[..., KorvetServer], start: Callable[..., Server], tmp_path: Path
) -> None:
    """The server sees a replica that comes and goes, and forks."""
    pages = Pages(free_port())
    options = ["--set", f"admin.listen=127.0.0.1:{pages.port}", "--set", "broker.session.timeout.ms=2000"]
    store = None if kind == "embedded" else start(kind=kind)
    server = own_korvet(*options) if store is None else own_korvet(*options, redis_url=store.url)
    create_topic(server.bootstrap, TOPIC, 20)
    where = ["--data-dir", server.data_dir] if store is None else ["--redis", store.url]
    path = socket_of(server.data_dir)
    client = redis.Redis(unix_socket_path=str(path)) if store is None else store.client
    # The snapshot takes several looks of the broker.
    client.config_set("rdb-key-save-delay", 4_000_000 // client.dbsize())
    if store is not None:
        # The broker warns after its first look that this server keeps no files.
        until(lambda: any("outlook" in line for line in alarms(server)), 60, "the first look")
    known = alarms(server)
    load = LoadProducer(server.bootstrap, TOPIC, "load", idempotent=True)
    success("backup", tmp_path / "backup", *where)
    client.close()
    renewals = metric(pages, "korvet_lease_renewal_seconds_count")
    until(lambda: metric(pages, "korvet_lease_renewal_seconds_count") >= renewals + 8, 60, "later looks")
    load.finish()
    assert not load.failed
    assert alarms(server) == known
    for name in (
        "kafka_server_replicamanager_underreplicatedpartitions",
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "korvet_lease_expired_total",
    ):
        assert metric(pages, name) == 0, name


def alarms(server: KorvetServer) -> list[str]:
    """The lines of the log that warn."""
    return re.findall(r"^\S+ (?:WARNING|ERROR|CRITICAL) .*$", server.tail(10**6), re.MULTILINE)


def metric(pages: Pages, name: str) -> float:
    (found,) = re.findall(rf"^{name} (\S+)$", pages.read("/metrics").text, re.MULTILINE)
    return float(found)
