"""Several brokers on one Valkey share partitions and groups."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.cli.client import Cluster
from korvet.cli.config_requests import ResourceType, alter, describe
from korvet.cli.group_requests import committed_offsets, list_groups
from korvet.cli.topic_requests import delete_topic
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.packing import entry_id
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from tests.faults.brokers import (
    FENCED_EPOCH,
    LONG_LEASE_MS,
    NOT_COORDINATOR,
    NOT_LEADER,
    OFFSETS,
    PARTITIONS,
    Brokers,
    Connect,
    ask_fetch,
    ask_produce,
    live,
    records,
)
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.polling import until
from tests.support.ports import accepts
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable


UNKNOWN_TOPIC = 3

pytestmark = [pytest.mark.faults, pytest.mark.clients]


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
        # Each of these groups has another coordinator.
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
    """Every offset that a group ever committed, in order."""
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
    """Each broker commits for the groups that it coordinates, and for those of a broker that has died."""
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


async def test_aiokafka_on_both_brokers(pair: Brokers) -> None:
    topic = "from-aiokafka"
    create_topic(pair.bootstrap, topic, PARTITIONS)
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
        alter(two, ResourceType.TOPIC, topic, {"retention.ms": "123456789"})

        def known() -> bool:
            values = {config.name: config.value for config in describe(one, ResourceType.TOPIC, topic)}
            return values["retention.ms"] == "123456789"

        until(known, 20, "the other broker knows the setting")
        delete_topic(one, topic)
        # Nothing of the topic is left in the groups of either broker, and it may be created again at once.
        assert not pair.store.client.keys(f"korvet:{topic}:*")
        for group in groups:
            assert all(name != topic for name, _ in committed_offsets(one, group))
        create_topic(pair.node(2).bootstrap, topic, 3)
        assert pair.leaders(topic, 1).keys() == {0, 1, 2}
        assert read_all(pair.bootstrap, topic) == []


def test_changes_of_one_topic_at_both_brokers_do_not_disturb_each_other(
    pair: Brokers, connected: Connect
) -> None:
    name, made = "changed-everywhere", connected(pair.node(1))
    altering, ended = connected(pair.node(2)), threading.Event()

    def alter_without_end() -> set[int]:
        found = set()
        for value in itertools.count(2_000_000):
            if ended.is_set():
                return found
            config = {"name": "retention.ms", "config_operation": 0, "value": str(value)}
            resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
            answer = altering("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
            found.add(int(answer.responses[0].error_code))
        raise AssertionError

    with ThreadPoolExecutor() as pool:
        altered = pool.submit(alter_without_end)
        try:
            for _ in range(10):
                create_topic(pair.bootstrap, name, 1)
                extended = made(
                    "CreatePartitions",
                    3,
                    topics=[{"name": name, "count": 2, "assignments": None}],
                    timeout=10_000,
                    validate_only=False,
                )
                assert extended.results[0].error_code == 0
                deleted = made("DeleteTopics", 6, topics=[{"name": name, "topic_id": None}], timeout=10_000)
                assert deleted.responses[0].error_code == 0
        finally:
            ended.set()
    assert altered.result() <= {0, UNKNOWN_TOPIC}


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


def test_a_broker_whose_node_id_is_taken_ends_without_draining(start: Callable[[int], Brokers]) -> None:
    brokers = start(0)
    url = brokers.store.url
    first, second = (
        KorvetServer("-s", "broker.session.timeout.ms=1000", "-s", "drain.wait.ms=600000", redis_url=url)
        for _ in range(2)
    )
    try:
        first.start()
        os.kill(first.process.pid, signal.SIGSTOP)

        second.spawn()

        def taken() -> bool:
            if not second.process.running:
                second.spawn()
            return accepts(second.host, second.port)

        until(taken, 30, "the second broker has the node id, after the lease of the first one")
        os.kill(first.process.pid, signal.SIGCONT)
        until(lambda: not first.process.running, 20, "the broker without a node id has ended")
        assert first.process.exit_code == 1
    finally:
        for each in (first, second):
            each.discard()


def test_a_waiting_fetch_ends_when_its_partition_gets_another_leader(
    start: Callable[[int], Brokers], connected: Connect
) -> None:
    brokers = start(1)
    create_topic(brokers.bootstrap, "moving", PARTITIONS)
    clients = [connected(brokers.node(1)) for _ in range(PARTITIONS)]
    for partition, client in enumerate(clients):
        ask_fetch(client, "moving", partition)
    brokers.all.append(brokers.make(2, LONG_LEASE_MS))
    brokers.node(2).start()
    brokers.wait_for(1, 2)
    moved = [p for p, leader in brokers.leaders("moving").items() if leader == 2]
    assert moved
    for partition in moved:
        (found,) = clients[partition].receive("Fetch", 12).responses[0].partitions
        assert found.error_code == NOT_LEADER

    # A clean end returns the partitions at once: the lease need not expire.
    version = brokers.store.client.hget("{korvet}:cluster", "assignment")
    os.kill(brokers.node(2).process.pid, signal.SIGTERM)
    # However long the broker waits: before the lease would have ended.
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
