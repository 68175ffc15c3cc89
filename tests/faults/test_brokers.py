"""Several brokers on one Valkey: they share partitions and groups, and go on when one ends or hangs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.cli.client import ClientError, Cluster
from korvet.cli.group_requests import committed_offsets, list_groups
from korvet.cli.topic_requests import alter_topic_configs, delete_topic, topic_configs
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.packing import entry_id
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from tests.api.batches import batch
from tests.storage.conftest import Server, server_programs
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.load import QUICK, LoadConsumer, LoadProducer
from tests.support.polling import until
from tests.support.processes import alive
from tests.support.records import NOW_MS, Record
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.api.asking import Client

pytestmark = [pytest.mark.faults, pytest.mark.clients, pytest.mark.timeout(240)]

Connect: TypeAlias = "Callable[[KorvetServer], Client]"

LEASE_MS = 1500
# Nothing can have waited for the end of this one.
LONG_LEASE_MS = 30_000
NOT_LEADER, NOT_COORDINATOR, FENCED_EPOCH = 6, 16, 74
OFFSETS = "__consumer_offsets"
PARTITIONS = 8


class Brokers:
    """Brokers with the node ids 1, 2 and so on, on a Valkey of their own."""

    def __init__(self, folder: Path, count: int) -> None:
        self.store = Server(server_programs()[0], folder)
        self.all = [self.make(node_id) for node_id in range(1, count + 1)]
        for each in self.all:
            each.spawn()
        for each in self.all:
            each.wait_ready()
        self.wait_for(*range(1, count + 1))

    def make(self, node_id: int, lease_ms: int = LEASE_MS) -> KorvetServer:
        timeout = f"broker.session.timeout.ms={lease_ms}"
        return KorvetServer("--node-id", str(node_id), "-s", timeout, redis_url=self.store.url)

    @property
    def bootstrap(self) -> str:
        return ",".join(each.bootstrap for each in self.all)

    def node(self, node_id: int) -> KorvetServer:
        return self.all[node_id - 1]

    def wait_for(self, *node_ids: int, timeout_s: float = 15) -> None:
        """Until each of these brokers says that just these are there."""

        def agreed() -> bool:
            return all(live(self.node(node_id)) == set(node_ids) for node_id in node_ids)

        until(agreed, timeout_s, f"brokers {node_ids} are there, and nobody else")

    def leaders(self, topic: str, node_id: int = 1) -> dict[int, int]:
        """Partition -> node id, as a broker says."""
        with Cluster(self.node(node_id).bootstrap) as cluster:
            return {int(p.partition_index): int(p.leader_id) for p in cluster.topic(topic).partitions}

    def led_by(self, topic: str, node_id: int) -> int:
        """A partition that this broker leads."""
        return next(p for p, leader in self.leaders(topic).items() if leader == node_id)

    def group_at(self, node_id: int) -> str:
        """A group that this broker coordinates."""
        led = self.leaders(OFFSETS)
        return next(
            name for n in range(1000) if led[partition_for(name := f"group-{n}", len(led))] == node_id
        )

    def discard(self) -> None:
        for each in self.all:
            each.discard()
        self.store.stop()


def live(server: KorvetServer) -> set[int]:
    try:
        with Cluster(server.bootstrap, timeout_s=5) as cluster:
            return {int(broker.node_id) for broker in cluster.metadata([]).brokers}
    except ClientError:
        return set()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two brokers that stay."""
    brokers = Brokers(tmp_path_factory.mktemp("redis"), 2)
    yield brokers
    brokers.discard()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Brokers]]:
    """Starts brokers that belong to one test."""
    made: list[Brokers] = []

    def start_some(count: int) -> Brokers:
        made.append(Brokers(tmp_path_factory.mktemp("redis"), count))
        return made[-1]

    yield start_some
    for brokers in made:
        brokers.discard()


def records(partition: int, count: int = 200) -> list[Record]:
    return [Record(b"k", b"%d-%d" % (partition, number), (), NOW_MS) for number in range(count)]


def ask_produce(client: Client, topic: str, partition: int, value: bytes = b"v") -> Any:
    data = [{"index": partition, "records": batch([(b"k", value)])}]
    answer = client("Produce", 9, acks=-1, timeout=1000, topic_data=[{"name": topic, "partition_data": data}])
    return answer.responses[0].partition_responses[0]


def ask_fetch(client: Client, topic: str, partition: int, offset: int = 0, **fields: Any) -> Any:
    asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **fields}
    if "current_leader_epoch" not in asked:
        asked["current_leader_epoch"] = -1
    client.send(
        "Fetch",
        12,
        max_wait=60_000,
        min_bytes=1,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [asked]}],
    )


def test_clients_produce_to_all_partitions_and_consume_from_them(pair: Brokers) -> None:
    topic = "written-everywhere"
    create_topic(pair.node(2).bootstrap, topic, PARTITIONS)
    leaders = pair.leaders(topic, 1)
    assert leaders == pair.leaders(topic, 2)
    assert set(leaders.values()) == {1, 2}
    client = producer(pair.node(1).bootstrap, enable_idempotence=True)
    for partition in range(PARTITIONS):
        send(client, topic, partition, records(partition))
    for node_id in (1, 2):
        # Each of these groups has its coordinator elsewhere.
        reader = consumer(pair.node(2).bootstrap, pair.group_at(node_id), auto_offset_reset="earliest")
        reader.subscribe([topic])
        found = [read.record.value for read in take(reader, PARTITIONS * 200)]
        assert sorted(found) == sorted(r.value for p in range(PARTITIONS) for r in records(p))
        reader.commit(asynchronous=False)
        reader.close()
    with Cluster(pair.node(1).bootstrap) as cluster:
        names = {group.group_id for group in list_groups(cluster)}
        for node_id in (1, 2):
            group = pair.group_at(node_id)
            assert group in names
            assert len(committed_offsets(cluster, group)) == PARTITIONS


def commits_of(brokers: Brokers, group: str) -> list[int]:
    """Every offset that was ever committed by a group, in order."""
    stream = f"korvet:{OFFSETS}:{partition_for(group, 50)}"
    found = []
    for _, fields in brokers.store.client.xrange(stream):
        key = decode_key(fields[b"key"])
        if isinstance(key, OffsetCommitKey) and key.group == group:
            value = decode_value(key, fields.get(b"value"))
            assert isinstance(value, OffsetCommitValue)
            found.append(value.offset)
    return found


def test_redis_groups_are_committed_once_by_their_coordinator(start: Callable[[int], Brokers]) -> None:
    """Each broker tells of the groups that it coordinates, and of those of one that has died."""
    brokers = start(2)
    groups = [brokers.group_at(1), brokers.group_at(2)]
    create_topic(brokers.bootstrap, "t", 1)
    offsets = send(producer(brokers.bootstrap), "t", 0, records(0, 20))
    native = brokers.store.client

    def read(count: int) -> None:
        for group in groups:
            # In one step, so that it is one commit.
            with native.pipeline(transaction=True) as pipeline:
                pipeline.xreadgroup(group, "me", {"korvet:t:0": ">"}, count=count)
                pipeline.xack("korvet:t:0", group, *(entry_id(offset) for offset in offsets))
                pipeline.execute()

    def all_committed() -> bool:
        found = [commits_of(brokers, group) for group in groups]
        assert all(each == wanted[: len(each)] for each in found), (found, wanted)
        return found == [wanted] * len(groups)

    for group in groups:
        native.xgroup_create("korvet:t:0", group, "0")
    wanted = [0]
    until(all_committed, 20, "groups are known")
    for done in (5, 10, 15):
        if done == 15:
            brokers.node(1).kill()
        read(5)
        wanted.append(offsets[done - 1] + 1)
        until(all_committed, 30, f"commits {wanted}; {brokers.node(2).tail()}")


def test_aiokafka_on_both_brokers(pair: Brokers) -> None:
    topic = "from-aiokafka"
    create_topic(pair.bootstrap, topic, PARTITIONS)

    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=pair.node(2).bootstrap) as sender:
            sent = [await sender.send(topic, b"%d" % n, partition=n % PARTITIONS) for n in range(800)]
            await asyncio.gather(*sent)
        group = pair.group_at(1)
        async with AIOKafkaConsumer(
            topic, bootstrap_servers=pair.node(2).bootstrap, group_id=group, auto_offset_reset="earliest"
        ) as reader:
            found = [(await asyncio.wait_for(reader.getone(), 20)).value for _ in range(800)]
            await reader.commit()
        assert sorted(found) == sorted(b"%d" % n for n in range(800))

    asyncio.run(scenario())


def test_who_is_there(pair: Brokers) -> None:
    for each in pair.all:
        admin = AdminClient({"bootstrap.servers": each.bootstrap})
        found = admin.describe_cluster().result()
        assert {(node.id, node.host, node.port) for node in found.nodes} == {
            (1, pair.node(1).host, pair.node(1).port),
            (2, pair.node(2).host, pair.node(2).port),
        }
        assert found.controller.id == 1


def test_the_other_broker_sends_clients_on(pair: Brokers, connected: Connect) -> None:
    topic = "led-elsewhere"
    create_topic(pair.bootstrap, topic, PARTITIONS)
    partition, group = pair.led_by(topic, 1), pair.group_at(1)
    leader, other = connected(pair.node(1)), connected(pair.node(2))
    assert ask_produce(other, topic, partition).error_code == NOT_LEADER
    assert ask_produce(leader, topic, partition).error_code == 0
    ask_fetch(other, topic, partition)
    assert other.receive("Fetch", 12).responses[0].partitions[0].error_code == NOT_LEADER
    asked = [{"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}]
    listed = other("ListOffsets", 5, replica_id=-1, topics=[{"name": topic, "partitions": asked}])
    assert listed.topics[0].partitions[0].error_code == NOT_LEADER
    for client, error in ((leader, 0), (other, NOT_COORDINATOR)):
        committed = client(
            "OffsetCommit",
            7,
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "committed_offset": 5}]}],
        )
        assert committed.topics[0].partitions[0].error_code == error
        assert client("OffsetFetch", 7, group_id=group, topics=None).error_code == error
        assert client("FindCoordinator", 3, key=group, key_type=0).node_id == 1


def test_topics_are_changed_at_any_broker(pair: Brokers) -> None:
    topic = "changed-anywhere"
    one, two = (Cluster(each.bootstrap) for each in pair.all)
    with one, two:
        create_topic(pair.node(2).bootstrap, topic, PARTITIONS)
        groups = [pair.group_at(node_id) for node_id in (1, 2)]
        client = producer(pair.bootstrap)
        for partition in range(PARTITIONS):
            send(client, topic, partition, records(partition, 3))
        for group in groups:
            reader = consumer(pair.bootstrap, group)
            reader.commit(
                offsets=[TopicPartition(topic, p, 2) for p in range(PARTITIONS)], asynchronous=False
            )
            reader.close()
        alter_topic_configs(two, topic, {"retention.ms": "123456789"})

        def known() -> bool:
            values = {config.name: config.value for config in topic_configs(one, topic)}
            return values["retention.ms"] == "123456789"

        until(known, 20, "the other broker knows the setting")
        delete_topic(one, topic)
        # Nothing of it is left, in the groups of both brokers, and it may be made again at once.
        assert not pair.store.client.keys(f"korvet:{topic}:*")
        for group in groups:
            assert all(name != topic for name, _ in committed_offsets(one, group))
        create_topic(pair.node(2).bootstrap, topic, 3)
        assert pair.leaders(topic, 1).keys() == {0, 1, 2}
        assert read_all(pair.bootstrap, topic) == []


def test_a_node_id_in_use_is_refused(pair: Brokers) -> None:
    second = pair.make(2)
    try:
        second.spawn()
        until(lambda: not second.process.running, 20, "the second broker of that node id ends")
        assert second.process.exit_code == 1
        expected = (
            rf"node id 2 of keyspace 'korvet' is taken by a live broker, process {pair.node(2).process.pid} "
        )
        assert re.search(expected, second.tail().replace("\n", " "))
    finally:
        second.discard()
    assert live(pair.node(1)) == {1, 2}


def test_a_waiting_fetch_ends_when_its_partition_gets_another_leader(
    start: Callable[[int], Brokers], connected: Connect
) -> None:
    brokers = start(1)
    create_topic(brokers.bootstrap, "moving", PARTITIONS)
    clients = [connected(brokers.node(1)) for _ in range(PARTITIONS)]
    for partition, client in enumerate(clients):
        ask_fetch(client, "moving", partition)
    brokers.all.append(brokers.make(2, LONG_LEASE_MS))
    began = time.monotonic()
    brokers.node(2).start()
    brokers.wait_for(1, 2)
    moved = [p for p, leader in brokers.leaders("moving").items() if leader == 2]
    assert moved
    for partition in moved:
        (found,) = clients[partition].receive("Fetch", 12).responses[0].partitions
        assert found.error_code == NOT_LEADER
    assert time.monotonic() - began < 30

    # A clean end gives them back at once: the lease need not lapse.
    version = brokers.store.client.hget("{korvet}:cluster", "assignment")
    os.kill(brokers.node(2).process.pid, signal.SIGTERM)
    # However patient: before the lease would have ended.
    brokers.wait_for(1, timeout_s=LONG_LEASE_MS / 6000)
    assert int(brokers.store.client.hget("{korvet}:cluster", "assignment")) == int(version) + 1
    until(lambda: not brokers.node(2).process.running, 20, "the other broker has ended")
    assert brokers.node(2).process.exit_code == 0
    epochs = set()
    with Cluster(brokers.node(1).bootstrap) as cluster:
        for state in cluster.topic("moving").partitions:
            assert state.leader_id == 1
            epochs.add((state.partition_index in moved, state.leader_epoch))
    assert epochs == {(False, 0), (True, int(version) + 1)}
    stale = connected(brokers.node(1))
    ask_fetch(stale, "moving", moved[0], current_leader_epoch=int(version))
    assert stale.receive("Fetch", 12).responses[0].partitions[0].error_code == FENCED_EPOCH


@contextmanager
def load(brokers: Brokers, topic: str) -> Iterator[tuple[list[LoadProducer], list[LoadConsumer]]]:
    """Idempotent producers to one partition of each broker, and a group with a coordinator of each."""
    create_topic(brokers.bootstrap, topic, PARTITIONS)
    nodes = range(1, len(brokers.all) + 1)
    # A broker that hangs answers nothing and closes nothing.
    patience = {"socket_timeout_ms": 4000}
    senders = [
        LoadProducer(
            brokers.bootstrap,
            topic,
            f"to{n}",
            idempotent=True,
            partition=brokers.led_by(topic, n),
            **patience,
        )
        for n in nodes
    ]
    timing = patience | {"session_timeout_ms": 6000, "heartbeat_interval_ms": 500}
    members = [LoadConsumer(brokers.bootstrap, topic, brokers.group_at(n), **timing) for n in nodes]
    yield senders, members
    for each in senders:
        each.finish()
        assert not each.failed
    for member in members:
        member.close()


def get_on(senders: list[LoadProducer], members: list[LoadConsumer], what: str, count: int = 1000) -> None:
    """Wait until every client has got on by so much from now."""
    sent = [len(each.acknowledged) + count for each in senders]
    seen = [len(each.seen.values) + count for each in members]
    until(
        lambda: (
            all(len(each.acknowledged) >= goal for each, goal in zip(senders, sent, strict=True))
            and all(len(each.seen.values) >= goal for each, goal in zip(members, seen, strict=True))
        ),
        60,
        what,
    )


def all_is_there(
    brokers: Brokers, topic: str, senders: list[LoadProducer], members: list[LoadConsumer]
) -> None:
    """Every acknowledged record is in the log once, at the offset that was told; commits are kept."""
    for each in senders:
        stored = read_all(brokers.bootstrap, topic, each.partition)
        assert [read.record.value for read in stored] == [
            each.value(n) for n in range(len(each.acknowledged))
        ]
        assert [read.offset for read in stored] == [each.acknowledged[n] for n in range(len(stored))]
    for node_id, member in enumerate(members, 1):
        with Cluster(brokers.node(node_id).bootstrap) as cluster:
            kept = committed_offsets(cluster, member.group)
        commits = {partition: offset for partition, offset in member.seen.committed.items() if offset >= 0}
        assert commits
        for partition, offset in commits.items():
            assert kept[topic, partition].committed_offset >= offset


def test_a_killed_broker_costs_nothing_that_was_acknowledged(start: Callable[[int], Brokers]) -> None:
    brokers = start(2)
    with load(brokers, "load") as (senders, members):
        get_on(senders, members, "the load runs")
        brokers.node(2).kill()
        brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
        get_on(senders, members, "all clients go on at the broker that is left")
        brokers.node(2).restart()
        brokers.wait_for(1, 2)
        get_on(senders, members, "all clients go on at both brokers")
    all_is_there(brokers, "load", senders, members)


def test_a_paused_broker_writes_nothing_when_it_comes_back(
    start: Callable[[int], Brokers], connected: Connect
) -> None:
    brokers = start(2)
    create_topic(brokers.bootstrap, "paused", PARTITIONS)
    partition, group = brokers.led_by("paused", 2), brokers.group_at(2)
    idle = next(p for p, leader in brokers.leaders("paused").items() if leader == 2 and p != partition)
    clients = [connected(brokers.node(2)) for _ in range(3)]
    for each in (partition, idle):
        assert ask_produce(clients[0], "paused", each, b"before").error_code == 0
    os.kill(brokers.node(2).process.pid, signal.SIGSTOP)
    try:
        # These wait in its receive buffers.
        for client, where in zip(clients, (partition, idle), strict=False):
            data = [{"index": where, "records": batch([(b"k", b"late")])}]
            client.send(
                "Produce", 9, acks=-1, timeout=1000, topic_data=[{"name": "paused", "partition_data": data}]
            )
        clients[2].send(
            "OffsetCommit",
            7,
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[{"name": "paused", "partitions": [{"partition_index": 0, "committed_offset": 5}]}],
        )
        brokers.wait_for(1, timeout_s=LEASE_MS / 1000 + 5)
        taken_over = connected(brokers.node(1))

        def writes() -> bool:
            return bool(ask_produce(taken_over, "paused", partition, b"after").error_code == 0)

        until(writes, 10, "the other broker has taken over")
    finally:
        os.kill(brokers.node(2).process.pid, signal.SIGCONT)
    for client in clients[:2]:
        (answer,) = client.receive("Produce", 9).responses[0].partition_responses
        assert answer.error_code == NOT_LEADER
    assert clients[2].receive("OffsetCommit", 7).topics[0].partitions[0].error_code == NOT_COORDINATOR
    brokers.wait_for(1, 2)
    for each, expected in ((partition, [b"before", b"after"]), (idle, [b"before"])):
        stored = read_all(brokers.bootstrap, "paused", each)
        assert [read.record.value for read in stored] == expected
    with Cluster(brokers.node(1).bootstrap) as cluster:
        assert committed_offsets(cluster, group) == {}


@pytest.mark.long
def test_three_brokers_come_and_go_under_load(start: Callable[[int], Brokers]) -> None:
    brokers = start(3)
    with load(brokers, "load") as (senders, members):
        get_on(senders, members, "the load runs")
        for _ in range(2):
            for node_id in (2, 3, 1):
                others = {1, 2, 3} - {node_id}
                victim = brokers.node(node_id)
                if node_id == 3:
                    os.kill(victim.process.pid, signal.SIGSTOP)
                    brokers.wait_for(*others)
                    get_on(senders, members, "all clients go on without the paused one")
                    os.kill(victim.process.pid, signal.SIGCONT)
                else:
                    victim.kill() if node_id == 2 else victim.stop()
                    brokers.wait_for(*others)
                    get_on(senders, members, "all clients go on without the one that ended")
                    victim.restart()
                brokers.wait_for(1, 2, 3)
                get_on(senders, members, "all clients go on")
    all_is_there(brokers, "load", senders, members)


def test_processes_of_one_command(own_korvet: Callable[..., KorvetServer]) -> None:
    server = own_korvet("--processes", "2")
    ready = f"korvet is ready on {server.bootstrap} (data in {server.data_dir})"
    until(lambda: ready in server.tail() or not server.process.running, 40, "both processes are ready")
    assert ready in server.tail()
    assert live(server) == {1, 2}
    with Cluster(server.bootstrap) as cluster:
        ports = {broker.node_id: broker.port for broker in cluster.metadata([]).brokers}
    assert ports == {1: server.port, 2: server.port + 1}
    create_topic(server.bootstrap, "shared", PARTITIONS)
    client = producer(server.bootstrap, **QUICK)
    for partition in range(PARTITIONS):
        send(client, "shared", partition, records(partition, 50))
    pids = {int(node): int(pid) for node, pid in re.findall(r"node (\d) is process (\d+)", server.tail())}
    os.kill(pids[2], signal.SIGKILL)
    until(lambda: "restarting it" in server.tail(), 20, "the killed process is restarted")
    for partition in range(PARTITIONS):
        send(client, "shared", partition, records(partition, 50))
        assert len(read_all(server.bootstrap, "shared", partition)) == 100
    store = server.store_pid()
    assert server.stop() == 0
    pids |= {int(node): int(pid) for node, pid in re.findall(r"node (\d) is process (\d+)", server.tail())}
    assert not any(alive(pid) for pid in [*pids.values(), store])
    assert "Traceback" not in server.tail(100_000)


def test_a_process_that_cannot_start_ends_the_command(own_korvet: Callable[..., KorvetServer]) -> None:
    taken = own_korvet()
    server = KorvetServer("--processes", "2")
    server.port = taken.port - 1
    try:
        server.spawn()
        until(lambda: not server.process.running, 30, "the command ends")
        assert server.process.exit_code == 1
        assert f"cannot listen on 127.0.0.1:{taken.port}: " in server.tail()
        assert "the broker process of node 2 exited with status 1" in server.tail()
        pids = re.findall(r"process (\d+)$", server.tail(), re.MULTILINE)
        assert len(pids) == 3
        assert not any(alive(int(pid)) for pid in pids)
    finally:
        server.discard()


# Transactions


def transactional_id_at(brokers: Brokers, node_id: int, size: int = 0) -> str:
    """A transactional id of at least that many bytes that this broker coordinates."""
    led = brokers.leaders("__transaction_state")
    names = (f"t{number}".ljust(size, "x") for number in range(1000))
    return next(name for name in names if led[partition_for(name, len(led))] == node_id)


def committed(brokers: Brokers, topic: str) -> list[bytes]:
    """What readers of committed records find in all partitions, up to the ends that they are told."""
    client = consumer(brokers.bootstrap, "any", isolation_level="read_committed", enable_partition_eof=True)
    try:
        client.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        values, ends = [], 0
        while ends < PARTITIONS:
            message = client.poll(20)
            assert message is not None, values
            ends += message.error() is not None
            if message.error() is None:
                values.append(message.value())
        return sorted(values)
    finally:
        client.close()


@pytest.mark.parametrize(("coordinator", "id_bytes"), [(1, 0), (2, 32_767)])
def test_a_transaction_over_partitions_of_several_brokers(
    pair: Brokers, coordinator: int, id_bytes: int
) -> None:
    topic = f"transactions-{coordinator}"
    create_topic(pair.bootstrap, topic, PARTITIONS)
    assert set(pair.leaders(topic).values()) == {1, 2}
    first = producer(pair.bootstrap, transactional_id="any")
    first.init_transactions(60)  # makes the coordinator's topic
    name = transactional_id_at(pair, coordinator, id_bytes)
    client = producer(pair.bootstrap, transactional_id=name)
    client.init_transactions(60)
    expected: list[bytes] = []
    for number in range(4):
        client.begin_transaction()
        values = {partition: b"%d-%d" % (number, partition) for partition in range(PARTITIONS)}
        for partition, value in values.items():
            client.produce(topic, value, partition=partition)
        for node_id in (1, 2):
            reader = consumer(pair.bootstrap, pair.group_at(node_id))
            client.send_offsets_to_transaction(
                [TopicPartition(topic, 0, number)], reader.consumer_group_metadata(), 60
            )
            reader.close()
        if number % 2:
            assert client.flush(60) == 0
            client.abort_transaction(60)
        else:
            client.commit_transaction(60)
            expected += values.values()
    until(lambda: committed(pair, topic) == sorted(expected), 60, "the markers")
    for node_id in (1, 2):
        reader = consumer(pair.bootstrap, pair.group_at(node_id), isolation_level="read_committed")
        (found,) = reader.committed([TopicPartition(topic, 0)], 60)
        reader.close()
        assert found.offset == 2


def test_a_java_producer_of_protocol_2_at_several_brokers(pair: Brokers, java: Any) -> None:
    topic = "java-transactions"
    create_topic(pair.bootstrap, topic, PARTITIONS)
    settings = [f"bootstrap.servers={pair.bootstrap}", "transactional.id=java"]
    java.run(
        "producer-perf-test",
        *("--topic", topic, "--num-records", "500", "--record-size", "10", "--throughput", "500"),
        *("--transaction-duration-ms", "100", "--producer-props", *settings),
    )
    until(lambda: len(committed(pair, topic)) == 500, 60, "the markers")


def test_a_transaction_outlives_its_coordinator(start: Callable[[int], Brokers]) -> None:
    brokers = start(2)
    topic = "outlives"
    create_topic(brokers.bootstrap, topic, PARTITIONS)
    first = producer(brokers.bootstrap, transactional_id="any")
    first.init_transactions(60)
    client = producer(brokers.bootstrap, transactional_id=transactional_id_at(brokers, 2))
    client.init_transactions(60)
    client.begin_transaction()
    for partition in range(PARTITIONS):
        client.produce(topic, b"%d" % partition, partition=partition)
    assert client.flush(60) == 0
    brokers.node(2).kill()
    client.commit_transaction(60)
    expected = [b"%d" % partition for partition in range(PARTITIONS)]
    until(lambda: committed(brokers, topic) == expected, 60, "the markers")
