"""A replica that lacks the newest records takes over while a broker and its clients run."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import TopicPartition

from korvet.cli.client import Cluster
from korvet.redis.keys import TRANSACTIONS_TOPIC, Keyspace
from tests.api.asking import connect
from tests.api.batches import batch
from tests.api.test_share import OPEN, Member, values
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send, take
from tests.support.java import JavaTools
from tests.support.load import LoadProducer
from tests.support.polling import until
from tests.support.proxy import CuttingProxy
from tests.support.records import NOW_MS, Record
from tests.support.redis_server import server_programs
from tests.support.sentinel import ReplicatedServer
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.faults, pytest.mark.clients]

TOPIC = "orders"
NONE, NOT_LEADER, OUT_OF_ORDER, UNKNOWN_PRODUCER = 0, 6, 45, 59
WAIT_S = 30


class Pair:
    """A primary behind one proxy and its replica behind another one, and a broker."""

    def __init__(self, folder: Path) -> None:
        self._made: list[Any] = []
        self.primary = self._keep(ReplicatedServer(server_programs()[0], folder / "primary", None, None))
        self.replica = self._keep(ReplicatedServer(server_programs()[0], folder / "replica", None, None))
        self._replication = self._keep(CuttingProxy(self.primary.port))
        self._door = self._keep(CuttingProxy(self.primary.port))
        self.replica.client.replicaof("127.0.0.1", self._replication.port)
        until(lambda: self.replica.replication().get("master_link_status") == "up", WAIT_S, "it follows")
        self.broker = KorvetServer(redis_url=f"redis://{self._door.address}")
        self.broker.start()

    def _keep(self, made: Any) -> Any:
        self._made.append(made)
        return made

    def fall_behind(self) -> None:
        """The replica has everything up to now, and gets nothing more."""
        # WAIT is about the writes of its own connection.
        with self.primary.client.pipeline(transaction=False) as pipeline:
            pipeline.set("up to here", 1)
            pipeline.execute_command("WAIT", 1, 10_000)
            assert pipeline.execute()[1] == 1
        self._replication.freeze()

    def fail_over(self) -> None:
        """The primary is killed, and the replica takes its place."""
        self.primary.kill()
        self.replica.client.replicaof("NO", "ONE")
        self._door.target_port = self.replica.port
        self._door.cut()

    def discard(self) -> None:
        self.broker.discard()
        for made in self._made:
            made.close() if isinstance(made, CuttingProxy) else made.stop()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.discard()


def epoch_of(pair: Pair) -> int:
    with Cluster(pair.broker.bootstrap) as cluster:
        return int(cluster.topic(TOPIC).partitions[0].leader_epoch)


def end_of(pair: Pair, epoch: int) -> tuple[int, int]:
    """The answer to OffsetForLeaderEpoch: epoch and end. Asks again as clients do if the broker does not lead
    the partition for a moment.
    """
    client = connect(pair.broker)
    asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}

    def answered() -> Any:
        answer = client(
            "OffsetForLeaderEpoch", 4, replica_id=-1, topics=[{"topic": TOPIC, "partitions": [asked]}]
        )
        found = answer.topics[0].partitions[0]
        return None if found.error_code == NOT_LEADER else found

    with client.raw:
        found = until(answered, WAIT_S, "the broker answers as the leader")
    assert found.error_code == NONE
    return int(found.leader_epoch), int(found.end_offset)


@pytest.mark.parametrize("assignment", ["clock", "dense"])
@pytest.mark.short
def test_consumers_are_told_of_the_truncation(pair: Pair, assignment: str) -> None:
    create_topic(pair.broker.bootstrap, TOPIC, 1, {"offset.assignment": assignment})
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(20)]
    kept = send(producer(pair.broker.bootstrap), TOPIC, 0, records[:5])
    pair.fall_behind()
    send(producer(pair.broker.bootstrap), TOPIC, 0, records[5:10])
    reader = consumer(pair.broker.bootstrap, "readers", auto_offset_reset="earliest")
    reader.assign([TopicPartition(TOPIC, 0, 0)])
    assert [read.record.value for read in take(reader, 10)] == [each.value for each in records[:10]]
    before = epoch_of(pair)
    pair.fail_over()
    until(lambda: epoch_of(pair) > before, WAIT_S, "the leader epoch rises")
    after = send(producer(pair.broker.bootstrap), TOPIC, 0, records[10:])
    assert end_of(pair, before) == (before, kept[-1] + 1)
    found = take(reader, 10)
    assert [(read.offset, read.record.value) for read in found] == [
        (offset, each.value) for offset, each in zip(after, records[10:], strict=True)
    ]
    if assignment == "dense":
        assert after[0] == 5
    reader.close()


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_an_idempotent_producer_of_librdkafka_continues(pair: Pair, assignment: str) -> None:
    create_topic(pair.broker.bootstrap, TOPIC, 1, {"offset.assignment": assignment})
    loaded = LoadProducer(pair.broker.bootstrap, TOPIC, "p", idempotent=True, in_flight=200)
    until(lambda: len(loaded.acknowledged) > 1000, WAIT_S, "records are acknowledged")
    pair.fall_behind()
    sent = len(loaded.acknowledged)
    until(
        lambda: len(loaded.acknowledged) > sent + 1000, WAIT_S, "records are acknowledged that will be lost"
    )
    pair.fail_over()
    sent = len(loaded.acknowledged)
    until(lambda: len(loaded.acknowledged) > sent + 1000, WAIT_S, "the producer continues")
    loaded.finish()
    assert loaded.failed == {}
    stored = [int(read.record.value[2:]) for read in read_all(pair.broker.bootstrap, TOPIC)]
    in_order_with_one_gap(stored, set(loaded.acknowledged))


def test_the_log_names_what_is_lost(pair: Pair) -> None:
    for topic in ("kept", TOPIC):
        create_topic(pair.broker.bootstrap, topic, 1)
        send(producer(pair.broker.bootstrap), topic, 0, [Record(b"k", b"1", (), NOW_MS)])
    pair.fall_behind()
    send(producer(pair.broker.bootstrap), TOPIC, 0, [Record(b"k", b"2", (), NOW_MS)])
    end = read_all(pair.broker.bootstrap, TOPIC)[-1].offset + 1
    pair.fail_over()

    def told() -> list[str]:
        said = "ERROR .*: records that clients could read are lost: (.*)$"
        return re.findall(said, pair.broker.tail(100_000), re.MULTILINE)

    (line,) = until(told, WAIT_S, "the log names the partition")
    assert re.fullmatch(rf"{TOPIC}-0 \(offsets \d+ to {end - 1}\)", line), line


def test_a_failover_to_a_replica_with_all_data_has_lost_nothing(pair: Pair) -> None:
    create_topic(pair.broker.bootstrap, TOPIC, 1)
    send(producer(pair.broker.bootstrap), TOPIC, 0, [Record(b"k", b"1", (), NOW_MS)])
    pair.fall_behind()
    pair.fail_over()
    said = "nothing that clients could read before is lost"
    until(lambda: said in pair.broker.tail(100_000), WAIT_S, "the log says so")
    assert len(read_all(pair.broker.bootstrap, TOPIC)) == 1
    assert "are lost" not in pair.broker.tail(100_000)


def test_an_idempotent_producer_of_aiokafka_continues(pair: Pair) -> None:
    create_topic(pair.broker.bootstrap, TOPIC, 1)
    acknowledged: list[int] = []
    failures: list[BaseException] = []
    ending = threading.Event()

    async def produce() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=pair.broker.bootstrap, enable_idempotence=True
        ) as client:
            number = 0
            while not ending.is_set():
                futures = [
                    await client.send(TOPIC, b"p-%d" % each, partition=0)
                    for each in range(number, number + 20)
                ]
                await asyncio.gather(*futures)
                acknowledged.extend(range(number, number + 20))
                number += 20

    def run() -> None:
        try:
            asyncio.run(produce())
        except Exception as error:  # noqa: BLE001 - reported by the test
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def further(count: int, what: str) -> None:
        goal = len(acknowledged) + count
        until(lambda: len(acknowledged) > goal or bool(failures), WAIT_S, what)
        assert failures == []

    further(200, "records are acknowledged")
    pair.fall_behind()
    further(200, "records are acknowledged that will be lost")
    pair.fail_over()
    further(200, "the producer continues")
    ending.set()
    thread.join(WAIT_S)
    assert failures == []
    stored = [int(read.record.value[2:]) for read in read_all(pair.broker.bootstrap, TOPIC)]
    in_order_with_one_gap(stored, set(acknowledged))


def test_kafkas_verifiable_producer_continues(pair: Pair, tmp_path: Path) -> None:
    java = JavaTools.resolve()
    create_topic(pair.broker.bootstrap, TOPIC, 1)
    at = "--bootstrap-server", pair.broker.bootstrap, "--topic", TOPIC
    log, config = tmp_path / "producer.log", tmp_path / "producer.properties"
    # The tool's own default is not to retry.
    config.write_text("enable.idempotence=true\nretries=2147483647\n")
    options = "--throughput", "500", "--acks", "-1", "--command-config", str(config)
    child = java.start("verifiable-producer", *at, *options, log=log)

    def events(name: str) -> list[int]:
        # The tool may be writing its last line.
        *whole, _ = log.read_text().split("\n")
        lines = [json.loads(line) for line in whole if line.startswith("{")]
        return [int(line["value"]) for line in lines if line["name"] == name]

    def stored() -> int:
        return int(pair.primary.client.xlen(Keyspace().stream(TOPIC, 0)))

    def further(than: int, what: str) -> None:
        # The tool numbers its records, and prints late on a busy machine.
        until(lambda: max(events("producer_send_success"), default=0) > than + 300, WAIT_S, what)

    try:
        further(0, "records are acknowledged")
        pair.fall_behind()
        further(stored(), "records are acknowledged that will be lost")
        before = stored()
        pair.fail_over()
        further(before, "the producer continues")
    finally:
        child.terminate()
    assert events("producer_send_error") == []
    found = [int(read.record.value) for read in read_all(pair.broker.bootstrap, TOPIC)]
    in_order_with_one_gap(found, set(events("producer_send_success")))


def in_order_with_one_gap(stored: list[int], acknowledged: set[int]) -> None:
    """Every record is there once and in order; what was lost was acknowledged in one piece."""
    assert [number for number, count in Counter(stored).items() if count > 1] == []
    assert stored == sorted(stored)
    lost = sorted(acknowledged - set(stored))
    assert lost
    assert lost == list(range(lost[0], lost[-1] + 1))


def test_transactions_begin_although_their_topic_was_lost(pair: Pair) -> None:
    """The first transactional producer of the cluster creates `__transaction_state`."""
    create_topic(pair.broker.bootstrap, TOPIC, 1)
    pair.fall_behind()
    transactional = producer(pair.broker.bootstrap, transactional_id="payments")
    begun = threading.Thread(target=transactional.init_transactions, args=(2 * WAIT_S,), daemon=True)
    begun.start()
    until(lambda: TRANSACTIONS_TOPIC in topics_of(pair.primary), WAIT_S, "the topic is created")
    pair.fail_over()
    begun.join()
    transactional.begin_transaction()
    transactional.produce(TOPIC, b"paid")
    transactional.commit_transaction(WAIT_S)
    assert TRANSACTIONS_TOPIC in topics_of(pair.replica)
    assert [read.record.value for read in read_all(pair.broker.bootstrap, TOPIC)] == [b"paid"]


def topics_of(server: ReplicatedServer) -> set[str]:
    return set(server.client.hkeys(Keyspace().topics))


def test_a_batch_after_a_gap_is_accepted_when_it_comes_again(pair: Pair) -> None:
    """Those in flight after it are refused until then."""
    create_topic(pair.broker.bootstrap, TOPIC, 1)
    client = connect(pair.broker)
    made = client("InitProducerId", 4, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)

    def put(sequence: int, producer_id: int = int(made.producer_id), attributes: int = 0) -> int:
        stamp = (producer_id, 0, sequence)
        data = [
            {"index": 0, "records": batch([(b"k", b"%d" % sequence)], producer=stamp, attributes=attributes)}
        ]
        with connect(pair.broker) as asking:
            answer = asking(
                "Produce", 9, acks=-1, timeout=5000, topic_data=[{"name": TOPIC, "partition_data": data}]
            )
        return int(answer.responses[0].partition_responses[0].error_code)

    assert [put(0), put(1)] == [NONE, NONE]
    assert put(3) == OUT_OF_ORDER
    pair.fall_behind()
    assert [put(2), put(3)] == [NONE, NONE]
    before = epoch_of(pair)
    pair.fail_over()
    until(lambda: epoch_of(pair) > before, WAIT_S, "the leader epoch rises")
    # 4 was refused while the broker had no lease, and is not known here yet.
    assert [put(5), put(6), put(4), put(5)] == [NOT_LEADER] * 4
    assert [put(4), put(5), put(6)] == [NONE] * 3
    assert [put(5), put(8)] == [NONE, OUT_OF_ORDER]
    values = [read.record.value for read in read_all(pair.broker.bootstrap, TOPIC)]
    assert values == [b"0", b"1", b"4", b"5", b"6"]
    client.raw.socket.close()


def test_shared_configs_after_a_failover_that_lost_some(pair: Pair) -> None:
    """Changes are counted in Redis: the first one after the failover has the number of the lost one."""
    client = connect(pair.broker)

    def limit(user: str) -> int:
        entity = [{"entity_type": "user", "entity_name": user}]
        entry = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}]}
        return int(client("AlterClientQuotas", 1, entries=[entry], validate_only=False).entries[0].error_code)

    def set_retention() -> int:
        config = {"name": "log.retention.ms", "config_operation": 0, "value": "86400000"}
        resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
        answer = client("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
        return int(answer.responses[0].error_code)

    def limited() -> set[str]:
        users = [{"entity_type": "user", "match_type": 2, "match": None}]
        answer = client("DescribeClientQuotas", 1, components=users, strict=False)
        return {each.entity[0].entity_name for each in answer.entries}

    with client.raw:
        assert limit("kept") == NONE
        pair.fall_behind()
        assert set_retention() == NONE
        pair.fail_over()
        until(lambda: limit("new") == NONE, WAIT_S, "the new primary has the change")
        assert limited() == {"kept", "new"}
        assert set_retention() == NONE
    stored = pair.replica.client.hgetall(Keyspace().broker_configs)
    assert list(stored.values()) == ["86400000"]


def test_a_lost_share_group_begins_where_records_were_lost(pair: Pair) -> None:
    """Its creation is lost, as in a cluster, and not the coordinator's record. Nothing is left out."""
    create_topic(pair.broker.bootstrap, TOPIC, 1, {"offset.assignment": "dense"})
    records = [Record(b"k", b"%d" % number, (), NOW_MS) for number in range(15)]
    send(producer(pair.broker.bootstrap), TOPIC, 0, records[:5])
    start = {"topic_name": TOPIC, "partitions": [{"partition_index": 0, "start_offset": 5}]}
    with connect(pair.broker) as ask:

        def altered() -> bool:
            return not ask("AlterShareGroupOffsets", 0, group_id="workers", topics=[start]).error_code

        until(altered, WAIT_S, "the group begins")
        topic_id = ask("Metadata", 12, topics=[{"name": TOPIC, "topic_id": None}]).topics[0].topic_id
    pair.fall_behind()
    pair.replica.client.config_set("replica-read-only", "no")
    assert pair.replica.client.xgroup_destroy(f"korvet:{TOPIC}:0", "workers")
    send(producer(pair.broker.bootstrap), TOPIC, 0, records[5:10])
    before = epoch_of(pair)
    pair.fail_over()
    until(lambda: epoch_of(pair) > before, WAIT_S, "the leader epoch rises")
    send(producer(pair.broker.bootstrap), TOPIC, 0, records[10:])
    member = Member(pair.broker, "workers")
    with member.client.raw:

        def taken() -> list[Any]:
            found = member.fetch(*([(topic_id, 0)] if member.epoch == OPEN else []), max_wait=500)
            return [] if found.error_code else values(found)

        assert until(taken, WAIT_S / 10, "the member gets records") == [each.value for each in records[10:]]
