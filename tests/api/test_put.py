"""Produce to `__consumer_offsets`: refused, or with offsets.topic.writable checked and applied."""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.api.asking import connect
from tests.api.batches import batch, gzipped
from tests.api.test_produce import everything, produce
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, read_all, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record

TOPIC = "__consumer_offsets"
INVALID_TOPIC, INVALID_RECORD = 17, 87
GROUP = "moved"
HOME = partition_for(GROUP)
KEY = encode_key(OffsetCommitKey(GROUP, "t", 0))


def value(offset: int) -> bytes:
    return encode_value(OffsetCommitValue(offset, metadata="by hand", commit_timestamp_ms=NOW_MS))


@pytest.fixture
def writable(own_korvet):
    """A server that accepts records for its groups, with a topic `t` of three records."""
    server = own_korvet("--set", "offsets.topic.writable=true")
    create_topic(server.bootstrap, "t", 1)
    send(producer(server.bootstrap), "t", 0, [Record(b"k", b"v", (), NOW_MS)] * 3)
    return server


def put(ask, data, partition=HOME):
    (result,) = produce(ask, 9, [(TOPIC, partition, data)])
    return int(result.error_code), result.error_message


def committed(server, group=GROUP, topic="t"):
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (found,) = admin.list_consumer_group_offsets([asked])[group].result(timeout=20).topic_partitions
    return found.offset


def test_it_is_off_by_default(ask, korvet):
    error, message = put(ask, batch([(KEY, value(5))]))
    assert error == INVALID_TOPIC
    assert "written by the broker only" in message


@pytest.mark.parametrize("made", [batch, gzipped])
def test_records_are_applied(writable, made):
    with connect(writable) as client:
        (start, *_, end) = [offset for offset, _, _ in everything(client, "t")]
        assert put(client, made([(KEY, value(start)), (KEY, value(end))]))[0] == 0
        assert committed(writable) == end
        stored = [(key, content) for _, key, content in everything(client, TOPIC, HOME)]
        assert stored == [(KEY, value(start)), (KEY, value(end))]
        # The Redis group follows, as after a commit.
        (group,) = writable.redis.xinfo_groups("korvet:t:0")
        assert (group["name"], group["last-delivered-id"].endswith(b"-1")) == (GROUP.encode(), True)
        assert put(client, batch([(KEY, None)]))[0] == 0
        assert committed(writable) == -1001
    writable.stop()
    writable.restart()
    assert committed(writable) == -1001


BAD = {
    "no key": (None, b"v"),
    "unknown key version": (b"\x00\x63" + KEY[2:], b"v"),
    "a consumer group's epoch": (encode_key(GroupRecordKey(GROUP, 3)), b"\x00" * 5),
    "a consumer group that ends": (encode_key(GroupRecordKey(GROUP, 3)), None),
    "a consumer group's member that leaves": (encode_key(GroupMemberKey(GROUP, "m", 5)), None),
    "damaged key": (KEY[:-1], b"v"),
    "damaged value": (KEY, value(5)[:-1]),
    "unknown value version": (KEY, b"\x00\x63" + value(5)[2:]),
    "another partition's group": (encode_key(OffsetCommitKey("other", "t", 0)), value(5)),
}


def test_what_no_coordinator_would_write_is_refused(writable):
    """The whole batch is refused: none of its records is applied."""
    with connect(writable) as client:
        for case, record in BAD.items():
            error, message = put(client, batch([(KEY, value(7)), record]))
            assert (error, bool(message)) == (INVALID_RECORD, True), case
        assert everything(client, TOPIC, HOME) == []
    assert committed(writable) == -1001


def test_groups_move_from_one_broker_to_another(writable, own_korvet):
    """A tool that copies the topic record by record moves groups with their offsets."""
    source = own_korvet()
    create_topic(source.bootstrap, "t", 1)
    member = consumer(source.bootstrap, GROUP)
    member.subscribe(["t"])
    until(lambda: member.poll(0.05) is None and member.assignment(), 30, "the group has a member")
    member.commit(offsets=[TopicPartition("t", 0, 2)], asynchronous=False)
    member.close()
    copied = [read.record for read in read_all(source.bootstrap, TOPIC, HOME)]
    offsets = send(producer(writable.bootstrap), TOPIC, HOME, copied)
    assert offsets == list(range(len(copied)))
    assert committed(writable) == committed(source) == 2
    assert [read.record.value for read in read_all(writable.bootstrap, TOPIC, HOME)] == [
        record.value for record in copied
    ]
    admin = AdminClient({"bootstrap.servers": writable.bootstrap})
    (shown,) = admin.describe_consumer_groups([GROUP]).values()
    assert shown.result(timeout=20).state.name == "EMPTY"


def test_a_group_with_members_is_replaced(writable):
    """The applied record decides: members that it doesn't name must join again."""
    member = consumer(writable.bootstrap, GROUP)
    member.subscribe(["t"])
    until(lambda: member.poll(0.05) is None and member.assignment(), 30, "the group has a member")
    empty = encode_value(GroupMetadataValue("consumer", 7, None, None, NOW_MS, ()))
    with connect(writable) as client:
        assert put(client, batch([(encode_key(GroupMetadataKey(GROUP)), empty)]))[0] == 0
        (group,) = client("DescribeGroups", 5, groups=[GROUP]).groups
        assert (group.group_state, group.members) == ("Empty", ())
    member.close()
