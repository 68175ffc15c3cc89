"""Consumer groups through librdkafka: members, rebalances, commits, static membership, administration."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.clients.test_confluent import numbered
from tests.support.confluent import as_read, consumer, producer, send, take
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.clients


def committed(broker, group: str, topic: str, partition: int = 0) -> int:
    """Returns the group's committed offset, or -1001 (librdkafka's value for none)."""
    client = consumer(broker.bootstrap, group)
    (found,) = client.committed([TopicPartition(topic, partition)], timeout=10)
    client.close()
    return found.offset


def admin_of(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


class Member:
    """A group member on its own thread. It polls, so that rebalances continue while the test watches."""

    def __init__(self, broker, group: str, topic: str, **config) -> None:
        self.values: list[bytes] = []
        self.partitions: set[int] = set()
        self._closing = threading.Event()
        settings = {"auto_offset_reset": "earliest", "session_timeout_ms": 10_000, **config}
        if settings.get("group_protocol") == "consumer":
            del settings["session_timeout_ms"]  # the broker's
        self._client = consumer(broker.bootstrap, group, **settings)
        self._client.subscribe([topic])
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while not self._closing.is_set():
            for message in self._client.consume(100, 0.05):
                value = as_read(message).record.value
                assert value is not None
                self.values.append(value)
            # Called here, because the client serves no other thread while this thread is inside it.
            self.partitions = {partition.partition for partition in self._client.assignment()}

    def close(self) -> None:
        """Close the consumer, which leaves the group unless it is static."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join(10)
            self._client.close()


@pytest.fixture
def join(broker, group) -> Iterator[Callable[..., Member]]:
    """Starts members of the test's group: join(topic, config=...)."""
    members: list[Member] = []

    def start(topic: str, **config) -> Member:
        members.append(Member(broker, group, topic, **config))
        return members[-1]

    yield start
    for member in members:
        member.close()


@pytest.mark.short
def test_a_group_continues_where_it_committed(broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    first = consumer(broker.bootstrap, group, auto_offset_reset="earliest", enable_auto_commit=False)
    first.subscribe([topic])
    take(first, 10)
    first.commit(offsets=[TopicPartition(topic, 0, offsets[4], metadata="half")], asynchronous=False)
    (stored,) = first.committed([TopicPartition(topic, 0)], timeout=10)
    assert (stored.offset, stored.metadata) == (offsets[4], "half")
    first.close()

    second = consumer(broker.bootstrap, group, auto_offset_reset="latest")
    second.subscribe([topic])
    assert [read.offset for read in take(second, 6)] == offsets[4:]
    second.close()


def test_closing_commits_automatically(broker, topic, group):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(10))
    client = consumer(broker.bootstrap, group, auto_offset_reset="earliest")
    client.subscribe([topic])
    take(client, 10)
    client.close()
    assert committed(broker, group, topic) == offsets[-1] + 1


def test_no_commit_is_no_offset(broker, topic, group):
    assert committed(broker, group, topic) == -1001


@pytest.mark.parametrize(
    "assignor", ["range", pytest.param("roundrobin", marks=pytest.mark.long), "cooperative-sticky"]
)
@pytest.mark.short
def test_partitions_move_between_members(broker, new_topic, join, assignor):
    topic = new_topic(6)
    one = join(topic, partition_assignment_strategy=assignor)
    until(lambda: one.partitions == set(range(6)), 20, "the only member has everything")
    two = join(topic, partition_assignment_strategy=assignor)

    def shared(*members: Member) -> bool:
        parts = [member.partitions for member in members]
        return all(parts) and set().union(*parts) == set(range(6)) and sum(map(len, parts)) == 6

    until(lambda: shared(one, two), 20, "two members share")
    three = join(topic, partition_assignment_strategy=assignor)
    until(lambda: shared(one, two, three), 20, "three members share")
    one.close()
    until(lambda: shared(two, three), 20, "the two left share")

    writer = producer(broker.bootstrap)
    for number in range(120):
        writer.produce(topic, b"v%d" % number, partition=number % 6)
    assert writer.flush(20) == 0
    until(lambda: len(two.values) + len(three.values) >= 120, 20, "all records came")
    two.close()
    three.close()
    assert sorted(two.values + three.values) == sorted(b"v%d" % n for n in range(120))


def test_a_member_that_vanishes_loses_its_partitions_after_its_session(broker, new_topic, group, join):
    topic = new_topic(2)
    stays = join(topic, session_timeout_ms=6_000)
    vanishes = consumer(
        broker.bootstrap,
        group,
        session_timeout_ms=6_000,
        heartbeat_interval_ms=60_000,
        max_poll_interval_ms=6_000,
    )
    vanishes.subscribe([topic])

    def both_joined() -> bool:
        vanishes.poll(0.1)
        return len(stays.partitions) == len(vanishes.assignment()) == 1

    until(both_joined, 20, "two members with one partition each")
    until(lambda: len(stays.partitions) == 2, 20, "the silent member's partition moved")
    stays.close()
    vanishes.close()


def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(broker, new_topic, group, join):
    topic = new_topic(4)
    settings = {"session_timeout_ms": 20_000}
    other = join(topic, group_instance_id="other", **settings)
    goes = join(topic, group_instance_id="goes", **settings)
    until(lambda: len(other.partitions) == len(goes.partitions) == 2, 20, "two static members share")
    before_other, before_goes = other.partitions, goes.partitions
    goes.close()  # a static member sends no LeaveGroup: its partitions wait for it

    admin = admin_of(broker)
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert {member.group_instance_id for member in described.members} == {"other", "goes"}

    back = join(topic, group_instance_id="goes", **settings)
    until(lambda: back.partitions == before_goes, 15, "the static member has its partitions again")
    assert other.partitions == before_other
    back.close()
    other.close()


def test_the_same_static_member_twice_fences_the_older(broker, topic, group, join):
    settings = {"session_timeout_ms": 20_000, "group_instance_id": "one"}
    old = consumer(broker.bootstrap, group, **settings)
    old.subscribe([topic])

    def has_partition() -> bool:
        old.poll(0.1)
        return len(old.assignment()) == 1

    until(has_partition, 20, "the older has the partition")
    new = join(topic, **settings)
    until(lambda: new.partitions == {0}, 20, "the newer has the partition")

    def fenced() -> bool:
        try:
            message = old.poll(0.1)
        except KafkaException as fatal:
            return fatal.args[0].code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)
        error = message.error() if message is not None else None
        return error is not None and error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)

    until(fenced, 20, "the older is told that it is fenced")
    new.close()
    old.close()


def test_a_commit_with_a_stale_generation_is_refused(broker, topic, group):
    send(producer(broker.bootstrap), topic, 0, numbered(3))
    client = consumer(broker.bootstrap, group, auto_offset_reset="earliest", enable_auto_commit=False)
    client.subscribe([topic])
    take(client, 3)
    outsider = consumer(broker.bootstrap, group)
    with pytest.raises(KafkaException) as refused:
        outsider.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    client.commit(asynchronous=False)
    client.close()
    outsider.close()


def test_a_commit_for_an_unknown_topic_is_refused(broker, fresh, group):
    client = consumer(broker.bootstrap, group)
    with pytest.raises(KafkaException) as refused:
        client.commit(offsets=[TopicPartition(fresh("missing"), 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    client.close()


def test_too_long_metadata_is_refused(broker, topic, group):
    client = consumer(broker.bootstrap, group)
    # The limit of 4,096 counts UTF-16 units, and this client's binding sends a NUL after the text.
    allowed = "😀" * 2_047 + "x"
    client.commit(offsets=[TopicPartition(topic, 0, 1, metadata=allowed)], asynchronous=False)
    for refused_text in (allowed + "x", "x" * 4_096):
        with pytest.raises(KafkaException) as refused:
            client.commit(offsets=[TopicPartition(topic, 0, 2, metadata=refused_text)], asynchronous=False)
        assert refused.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    (stored,) = client.committed([TopicPartition(topic, 0)], timeout=10)
    assert (stored.offset, stored.metadata) == (1, allowed)
    client.close()


def test_groups_are_listed_described_and_deleted(broker, topic, group):
    send(producer(broker.bootstrap), topic, 0, numbered(3))
    client = consumer(broker.bootstrap, group, auto_offset_reset="earliest", client_id="описание")
    client.subscribe([topic])
    take(client, 3)
    admin = admin_of(broker)
    listed = {found.group_id: found for found in admin.list_consumer_groups().result(20).valid}
    assert listed[group].state == ConsumerGroupState.STABLE
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == "range"
    (member,) = described.members
    assert member.client_id == "описание"
    assert [(p.topic, p.partition) for p in member.assignment.topic_partitions] == [(topic, 0)]
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([group])[group].result(20)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP

    client.close()
    empty = admin.describe_consumer_groups([group])[group].result(20)
    assert empty.state == ConsumerGroupState.EMPTY
    assert empty.members == []
    admin.delete_consumer_groups([group])[group].result(20)
    assert group not in {found.group_id for found in admin.list_consumer_groups().result(20).valid}
    assert committed(broker, group, topic) == -1001


def test_an_administrator_lists_and_alters_offsets(broker, new_topic, group):
    topic = new_topic(2)
    admin = admin_of(broker)
    wanted = [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 7)]
    asked = ConsumerGroupTopicPartitions(group, wanted)
    admin.alter_consumer_group_offsets([asked])[group].result(20)
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    found = {
        (partition.topic, partition.partition): partition.offset for partition in answer.topic_partitions
    }
    assert found == {(topic, 0): 5, (topic, 1): 7}


def test_deleting_a_topic_deletes_its_commits(broker, new_topic, group):
    kept, dropped = new_topic(1), new_topic(1)
    client = consumer(broker.bootstrap, group)
    client.commit(offsets=[TopicPartition(kept, 0, 3), TopicPartition(dropped, 0, 4)], asynchronous=False)
    client.close()
    admin = admin_of(broker)
    admin.delete_topics([dropped])[dropped].result(20)

    def only_kept() -> bool:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
        return [(p.topic, p.offset) for p in answer.topic_partitions] == [(kept, 3)]

    until(only_kept, 20, "only the other topic's commit is left")


def test_many_groups_read_the_same_topic(broker, topic, fresh):
    offsets = send(producer(broker.bootstrap), topic, 0, numbered(20))
    for _ in range(5):
        client = consumer(broker.bootstrap, fresh("many"), auto_offset_reset="earliest")
        client.subscribe([topic])
        assert [read.offset for read in take(client, 20)] == offsets
        client.close()


# The consumer protocol (KIP-848)


def shared_by(count: int, *members: Member) -> bool:
    parts = [member.partitions for member in members]
    return all(parts) and set().union(*parts) == set(range(count)) and sum(map(len, parts)) == count


@pytest.mark.short
def test_partitions_move_between_members_of_the_consumer_protocol(broker, new_topic, group, join):
    topic = new_topic(6)
    settings = {"group_protocol": "consumer"}
    writer = producer(broker.bootstrap)
    for number in range(60):
        writer.produce(topic, b"v%d" % number, partition=number % 6)
    assert writer.flush(20) == 0
    one = join(topic, **settings)
    until(lambda: shared_by(6, one) and len(one.values) == 60, 30, "the only member reads everything")
    two = join(topic, **settings)
    until(lambda: shared_by(6, one, two), 40, "two members share")
    admin = admin_of(broker)
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert described.type is ConsumerGroupType.CONSUMER
    assert described.state is ConsumerGroupState.STABLE
    assert described.partition_assignor == "uniform"
    assert sorted(len(member.assignment.topic_partitions) for member in described.members) == [3, 3]
    one.close()
    until(lambda: shared_by(6, two), 40, "the one left has everything")
    two.close()
    assert sorted(one.values + two.values) == sorted(b"v%d" % n for n in range(60))


def test_a_group_goes_over_to_the_consumer_protocol_and_back(broker, new_topic, group, join):
    topic = new_topic(4)
    old = join(topic)
    until(lambda: shared_by(4, old), 20, "the classic member has everything")
    new = join(topic, group_protocol="consumer")
    until(lambda: shared_by(4, old, new), 60, "members of both protocols share")
    admin = admin_of(broker)
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert described.type is ConsumerGroupType.CONSUMER
    new.close()
    until(lambda: shared_by(4, old), 60, "the classic member has everything again")
    described = admin.describe_consumer_groups([group])[group].result(20)
    assert described.type is ConsumerGroupType.CLASSIC
    old.close()
