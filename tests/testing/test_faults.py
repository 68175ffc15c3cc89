"""Faults on request: what clients do about them."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from kafka import KafkaConsumer, KafkaProducer

from korvet.cli.client import Cluster
from korvet.testing import KorvetBroker, KorvetBrokerError
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.testing import Fault

WAIT_S: Final = 60
RECORDS: Final = 20
# Shorter than the tests' deadlines: an ignored request ends with it.
REQUEST_TIMEOUT_MS: Final = 2000


@pytest.fixture(scope="module")
def shared() -> Iterator[KorvetBroker]:
    with KorvetBroker() as broker:
        yield broker


@pytest.fixture
def broker(shared: KorvetBroker) -> Iterator[KorvetBroker]:
    yield shared
    shared.faults.clear()


@pytest.fixture
def topic(broker: KorvetBroker, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    broker.create_topic(name)
    return name


def with_librdkafka(bootstrap: str, topic: str, values: Sequence[bytes], **options: object) -> list[str]:
    """What becomes of each record: empty, or its error."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "message.timeout.ms": WAIT_S * 1000,
            **options,
        }
    )
    ends: list[str] = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: ends.append("" if error is None else error.name())
        )
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    return ends


def with_aiokafka(bootstrap: str, topic: str, values: Sequence[bytes]) -> list[str]:
    """See `with_librdkafka`."""

    async def produce() -> list[str]:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, request_timeout_ms=REQUEST_TIMEOUT_MS
        ) as producer:
            sent = [await producer.send(topic, value) for value in values]
            ends = await asyncio.gather(*sent, return_exceptions=True)
            return [type(end).__name__ if isinstance(end, BaseException) else "" for end in ends]

    return asyncio.run(asyncio.wait_for(produce(), WAIT_S))


def with_kafka_python(bootstrap: str, topic: str, values: Sequence[bytes]) -> list[str]:
    """See `with_librdkafka`."""
    with closing(
        KafkaProducer(bootstrap_servers=bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS)
    ) as producer:
        sent = [producer.send(topic, value) for value in values]
        producer.flush(WAIT_S)
        return [type(each.exception).__name__ if each.failed() else "" for each in sent]


PRODUCERS: Final = [with_librdkafka, with_aiokafka, with_kafka_python]
SURVIVED: Final[dict[str, Callable[[KorvetBroker, str], Fault]]] = {
    "not leader": lambda broker, topic: broker.faults.fail(
        "Produce", "NOT_LEADER_OR_FOLLOWER", topic=topic, times=2
    ),
    "not enough replicas": lambda broker, topic: broker.faults.fail(
        "Produce", "NOT_ENOUGH_REPLICAS", topic=topic, partition=0, times=2
    ),
    "timed out": lambda broker, topic: broker.faults.fail("Produce", "REQUEST_TIMED_OUT", topic=topic),
    "no producer id": lambda broker, _: broker.faults.fail("InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS"),
    "delay": lambda broker, topic: broker.faults.delay("Produce", 300, topic=topic),
    "disconnect": lambda broker, topic: broker.faults.disconnect("Produce", topic=topic, times=2),
    "ignore": lambda broker, topic: broker.faults.ignore("Produce", topic=topic),
    "lost answer": lambda broker, topic: broker.faults.lose_answer("Produce", topic=topic),
}


@pytest.mark.parametrize("produce", PRODUCERS)
@pytest.mark.parametrize("kind", SURVIVED)
def test_idempotent_producers_write_each_record_once(
    produce: Callable[..., list[str]], kind: str, broker: KorvetBroker, topic: str
) -> None:
    fault = SURVIVED[kind](broker, topic)
    values = [b"%d" % number for number in range(RECORDS)]
    assert produce(broker.bootstrap_servers, topic, values) == [""] * RECORDS
    assert fault.left == 0
    assert fault.met >= 1
    assert [record.value for record in broker.records(topic)] == values


@pytest.mark.parametrize("produce", PRODUCERS)
def test_a_record_that_is_too_large_is_not_sent_again(
    produce: Callable[..., list[str]], broker: KorvetBroker, topic: str
) -> None:
    fault = broker.faults.fail("Produce", "MESSAGE_TOO_LARGE", topic=topic, times=None)
    (end,) = produce(broker.bootstrap_servers, topic, [b"x"])
    assert end in {"MSG_SIZE_TOO_LARGE", "MessageSizeTooLargeError"}
    assert (fault.met, fault.left) == (1, None)
    assert broker.records(topic) == []


def test_a_lost_answer_is_a_second_copy_without_idempotence(broker: KorvetBroker, topic: str) -> None:
    fault = broker.faults.lose_answer("Produce", topic=topic)
    assert with_librdkafka(broker.bootstrap_servers, topic, [b"x"], **{"enable.idempotence": False}) == [""]
    assert fault.met == 1
    assert [record.value for record in broker.records(topic)] == [b"x", b"x"]


def test_only_one_partition_fails(broker: KorvetBroker) -> None:
    broker.create_topic("parts", 3)
    fault = broker.faults.fail("Produce", "MESSAGE_TOO_LARGE", topic="parts", partition=1, times=None)
    ends: dict[int, str] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 200})

    def note(error: Any, message: Any) -> None:
        ends[message.partition()] = "" if error is None else error.name()

    for partition in range(3):
        producer.produce("parts", b"x", partition=partition, on_delivery=note)
    assert producer.flush(WAIT_S) == 0
    assert ends == {0: "", 1: "MSG_SIZE_TOO_LARGE", 2: ""}
    assert fault.met == 1
    assert {record.partition for record in broker.records("parts")} == {0, 2}


def test_a_delay_is_at_least_as_long(broker: KorvetBroker, topic: str) -> None:
    broker.faults.delay("Produce", 700, topic=topic)
    began_s = time.monotonic()
    assert with_librdkafka(broker.bootstrap_servers, topic, [b"x"]) == [""]
    assert time.monotonic() - began_s >= 0.7


def test_other_clients_meet_nothing(broker: KorvetBroker, topic: str) -> None:
    fault = broker.faults.disconnect("Produce", client_id="another", times=None)
    assert with_librdkafka(broker.bootstrap_servers, topic, [b"x"], **{"client.id": "one"}) == [""]
    assert fault.met == 0
    with pytest.raises(KorvetBrokerError, match="0 instead of 1 requests have met the fault"):
        fault.wait(timeout_s=0.01)


class Reader:
    """A consumer of librdkafka with what it was told of its partitions."""

    def __init__(self, broker: KorvetBroker, topic: str, **options: object) -> None:
        self.told: list[str] = []
        self.group = f"group-of-{topic}"
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "group.id": self.group,
                "client.id": "reader",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 100,
                **options,
            }
        )
        self.consumer.subscribe(
            [topic],
            on_assign=lambda *_: self.told.append("assigned"),
            on_revoke=lambda *_: self.told.append("revoked"),
            on_lost=lambda *_: self.told.append("lost"),
        )

    def read(self, count: int) -> list[bytes | None]:
        """The next records."""
        found: list[bytes | None] = []

        def enough() -> bool:
            record = self.consumer.poll(0.1)
            if record is not None:
                assert record.error() is None, record.error()
                found.append(record.value())
            return len(found) >= count

        until(enough, WAIT_S, f"{count} records")
        return found

    def commit(self) -> None:
        """Commit what was read, also while the coordinator loads for so long that the client gives up."""

        def commits() -> bool:
            try:
                self.consumer.commit(asynchronous=False)
            except KafkaException as error:
                if error.args[0].name() != "COORDINATOR_LOAD_IN_PROGRESS":
                    raise
                return False
            return True

        until(commits, WAIT_S, "a commit")

    def poll_until(self, condition: Callable[[], bool]) -> None:
        """Poll without reading anything."""

        def met() -> bool:
            record = self.consumer.poll(0.1)
            assert record is None or record.error() is not None
            return condition()

        until(met, WAIT_S, "the consumer is told")


@pytest.fixture
def reader(broker: KorvetBroker, topic: str) -> Iterator[Reader]:
    """A consumer that has read and committed one record."""
    made = Reader(broker, topic)
    with_librdkafka(broker.bootstrap_servers, topic, [b"1"])
    assert made.read(1) == [b"1"]
    made.consumer.commit(asynchronous=False)
    made.told.clear()
    yield made
    made.consumer.close()


@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR"])
def test_a_consumer_reads_on_after_an_error(
    error: str, broker: KorvetBroker, topic: str, reader: Reader
) -> None:
    fault = broker.faults.fail("Fetch", error, topic=topic, times=2)
    reader.poll_until(lambda: fault.left == 0)
    with_librdkafka(broker.bootstrap_servers, topic, [b"2"])
    assert reader.read(1) == [b"2"]
    assert reader.told == []


@pytest.mark.parametrize("error", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS"])
def test_a_commit_is_sent_again(error: str, broker: KorvetBroker, topic: str, reader: Reader) -> None:
    with_librdkafka(broker.bootstrap_servers, topic, [b"2"])
    assert reader.read(1) == [b"2"]
    fault = broker.faults.fail("OffsetCommit", error, group=reader.group, topic=topic)
    reader.consumer.commit(asynchronous=False)
    assert fault.met == 1
    assert broker.committed(reader.group) == {(topic, 0): 2}


def test_a_rebalance_in_progress_makes_members_join_again(
    broker: KorvetBroker, topic: str, reader: Reader
) -> None:
    fault = broker.faults.fail("Heartbeat", "REBALANCE_IN_PROGRESS", group=reader.group)
    reader.poll_until(lambda: reader.told == ["revoked", "assigned"])
    assert fault.met == 1
    with_librdkafka(broker.bootstrap_servers, topic, [b"2"])
    assert reader.read(1) == [b"2"]


@pytest.mark.parametrize("named", ["member", "client"])
def test_a_member_whose_session_expires_loses_its_partitions(
    named: str, broker: KorvetBroker, topic: str, reader: Reader
) -> None:
    member = reader.consumer.memberid()
    expired = broker.faults.expire_member(reader.group, member if named == "member" else "reader")
    assert expired == [member]
    reader.poll_until(lambda: reader.told == ["lost", "assigned"])
    assert reader.consumer.memberid() != member
    with_librdkafka(broker.bootstrap_servers, topic, [b"2"])
    assert reader.read(1) == [b"2"]


def test_a_member_of_the_consumer_protocol_loses_its_partitions_too(broker: KorvetBroker, topic: str) -> None:
    options = {"group.protocol": "consumer"}
    reader = Reader(broker, topic)
    reader.consumer.close()
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "new", "client.id": "reader"}
    consumer = Consumer({**settings, **options, "auto.offset.reset": "earliest"})
    told: list[str] = []
    consumer.subscribe(
        [topic], on_assign=lambda *_: told.append("assigned"), on_lost=lambda *_: told.append("lost")
    )
    until(lambda: consumer.poll(0.1) is None and told == ["assigned"], WAIT_S, "an assignment")
    member = consumer.memberid()
    assert broker.faults.expire_member("new", "reader") == [member]
    until(lambda: consumer.poll(0.1) is None and told[1:] == ["lost", "assigned"], WAIT_S, "another one")
    consumer.close()


def test_a_coordinator_that_moves_keeps_its_members(broker: KorvetBroker, topic: str, reader: Reader) -> None:
    member = reader.consumer.memberid()
    broker.faults.move_coordinator(group=reader.group)
    with_librdkafka(broker.bootstrap_servers, topic, [b"2"])
    assert reader.read(1) == [b"2"]

    reader.commit()
    broker.wait_for_group(reader.group)
    assert (reader.consumer.memberid(), reader.told) == (member, [])


def test_a_leader_that_moves_has_another_epoch(broker: KorvetBroker, topic: str, reader: Reader) -> None:
    epochs = [broker.faults.move_leader(topic) for _ in range(3)]
    assert epochs == sorted(set(epochs))
    assert with_librdkafka(broker.bootstrap_servers, topic, [b"2"]) == [""]
    assert reader.read(1) == [b"2"]
    assert reader.told == []


def test_kafka_python_reads_on_in_fetch_sessions(broker: KorvetBroker, topic: str) -> None:
    """Its fetches continue sessions, in which they name no partitions."""
    values = [b"%d" % number for number in range(RECORDS)]
    with closing(
        KafkaConsumer(topic, bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    ) as consumer:
        with_librdkafka(broker.bootstrap_servers, topic, values[:1])
        found: list[bytes | None] = []

        def read() -> bool:
            for records in consumer.poll(timeout_ms=100).values():
                found.extend(record.value for record in records)
            return len(found) >= wanted

        wanted = 1
        until(read, WAIT_S, "the first record")
        faults = [
            broker.faults.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", topic=topic),
            broker.faults.disconnect("Fetch", topic=topic),
            broker.faults.fail("Fetch", "FETCH_SESSION_ID_NOT_FOUND"),
        ]

        def all_are_met() -> bool:
            read()
            return all(each.left == 0 for each in faults)

        until(all_are_met, WAIT_S, "all faults")
        with_librdkafka(broker.bootstrap_servers, topic, values[1:])
        wanted = RECORDS
        until(read, WAIT_S, "all records")
    assert found == values


def test_an_aborted_transaction_is_not_committed(broker: KorvetBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"lost")
    assert producer.flush(WAIT_S) == 0
    broker.faults.abort_transaction(topic)
    with pytest.raises(KafkaException) as failed:
        producer.commit_transaction(WAIT_S)
    assert failed.value.args[0].name() == "_FENCED"
    with pytest.raises(KorvetBrokerError, match="has no open transaction"):
        broker.faults.abort_transaction(topic)
    again = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic})
    again.init_transactions(WAIT_S)
    again.begin_transaction()
    again.produce(topic, b"kept")
    again.commit_transaction(WAIT_S)
    reader = Reader(broker, topic, **{"isolation.level": "read_committed"})
    assert reader.read(1) == [b"kept"]
    reader.consumer.close()


def test_mistakes_are_explained(broker: KorvetBroker) -> None:
    for ask, said in (
        (lambda: broker.faults.ignore("Procude"), "no API 'Procude', but .*Produce"),
        (lambda: broker.faults.fail("Produce", "NOT_LEADER"), "no error 'NOT_LEADER', but .*NOT_LEADER_OR_"),
        (lambda: broker.faults.ignore("Heartbeat", topic="t"), "Heartbeat cannot be chosen by its topic"),
        (lambda: broker.faults.ignore("Fetch", times=0), "times is 0"),
        (lambda: broker.faults.move_leader("absent"), "no partition 0 of a topic 'absent'"),
        (broker.faults.move_coordinator, "either a group or a transactional_id"),
        (lambda: broker.faults.expire_member("absent", "m"), "'absent' has no member 'm', but none"),
        (lambda: broker.faults.abort_transaction("absent"), "'absent' has no open transaction"),
    ):
        with pytest.raises(KorvetBrokerError, match=said):
            ask()


def test_with_several_brokers_the_one_that_leads_does_it() -> None:
    with KorvetBroker(brokers=2) as broker:
        broker.create_topic("many", 8)
        fault = broker.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", topic="many", partition=3)
        assert fault.left == 2
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

        def produce() -> None:
            ends: list[object] = []
            for partition in range(8):
                producer.produce(
                    "many", b"x", partition=partition, on_delivery=lambda error, _: ends.append(error)
                )
            assert producer.flush(WAIT_S) == 0
            assert ends == [None] * 8

        produce()
        assert (fault.met, fault.left) == (1, 1)
        reader = Reader(broker, "many")
        assert reader.read(8) == [b"x"] * 8
        assert broker.faults.expire_member(reader.group, "reader") == [reader.consumer.memberid()]
        until(lambda: reader.consumer.poll(0.1) is None and "lost" in reader.told, WAIT_S, "a loss")
        reader.consumer.close()
        for partition in range(8):
            assert broker.faults.move_leader("many", partition) > 0
        produce()


def test_a_leader_and_a_coordinator_move_to_another_broker() -> None:
    with KorvetBroker(brokers=3) as broker:
        broker.create_topic("moving", partitions=3)
        asking = Producer({"bootstrap.servers": broker.bootstrap_servers})

        def leaders() -> list[int]:
            found = asking.list_topics("moving", WAIT_S).topics["moving"].partitions
            return [found[partition].leader for partition in range(3)]

        def coordinator() -> str:
            with Cluster(broker.bootstrap_servers) as cluster:
                return str(cluster.coordinator(reader.group))

        reader = Reader(broker, "moving", **{"metadata.max.age.ms": 1000})
        assert with_librdkafka(broker.bootstrap_servers, "moving", [b"1"]) == [""]
        assert reader.read(1) == [b"1"]
        reader.commit()
        reader.told.clear()
        before = leaders()
        seen = [before[0]]
        epochs = []
        for number in range(2, 5):
            epochs.append(broker.faults.move_leader("moving"))
            now = leaders()
            assert now[0] != seen[-1]
            assert now[1:] == before[1:]
            seen.append(now[0])
            value = b"%d" % number
            assert with_librdkafka(broker.bootstrap_servers, "moving", [value]) == [""]
            assert reader.read(1) == [value]
        assert seen[3] == seen[0]
        assert sorted(seen[:3]) == [1, 2, 3]
        assert epochs == sorted(set(epochs))
        member = reader.consumer.memberid()
        former = coordinator()
        broker.faults.move_coordinator(group=reader.group)
        assert coordinator() != former
        reader.commit()
        broker.wait_for_group(reader.group)
        assert (reader.consumer.memberid(), reader.told) == (member, [])
        reader.consumer.close()


def test_faults_are_those_of_the_brokers_that_run() -> None:
    with KorvetBroker(brokers=2) as broker:
        broker.create_topic("topic")
        broker.stop(node_id=1)
        fault = broker.faults.fail("Produce", "NOT_ENOUGH_REPLICAS", topic="topic")
        assert fault.left == 1
        broker.create_topic("other")  # the second broker leads all partitions now
        assert broker.faults.move_leader("topic") > 0
        broker.faults.clear()
        broker.stop()
        with pytest.raises(KorvetBrokerError, match="no broker runs"):
            broker.faults.listed()


def test_faults_end_when_they_are_cleared_or_their_broker_ends() -> None:
    with KorvetBroker() as broker:
        for end in (broker.faults.clear, broker.restart):
            fault = broker.faults.disconnect("Metadata", client_id="c", times=None)
            (listed,) = broker.faults.listed()
            assert listed["client_id"] == "c"
            assert (listed["met"], listed["left"]) == (0, None)
            end()
            assert broker.faults.listed() == []
            with pytest.raises(KorvetBrokerError, match=r"was cleared|does not answer"):
                fault.wait(timeout_s=0)
            assert with_librdkafka(broker.bootstrap_servers, "t", [b"x"], **{"client.id": "c"}) == [""]
