"""OffsetForLeaderEpoch: the ends of epochs, and how consumers use them after records were lost."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from tests.api.asking import connect, newest, versions
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.support.admin import create_topic
from tests.support.confluent import consumer, producer, send, take
from tests.support.records import NOW_MS, Record

NO_TOPIC, FENCED, UNKNOWN_EPOCH = 3, 74, 75
NEWEST = newest("OffsetForLeaderEpoch")


def asked(ask, name, epoch, *, current=-1, partition=0, version=NEWEST):
    wanted = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    (topic,) = ask("OffsetForLeaderEpoch", version, topics=[{"topic": name, "partitions": [wanted]}]).topics
    (found,) = topic.partitions
    return int(found.error_code), found.leader_epoch, found.end_offset


def leader_epoch(ask, name):
    (topic,) = ask("Metadata", newest("Metadata"), topics=[{"name": name}]).topics
    return topic.partitions[0].leader_epoch


@versions("OffsetForLeaderEpoch")
def test_the_present_epoch(ask, korvet, topic, version):
    epoch = leader_epoch(ask, topic)
    base = put(ask, topic, batch([(b"k", b"v")] * 3)).base_offset
    for current in (-1, epoch):
        assert asked(ask, topic, epoch, current=current, version=version) == (0, epoch, base + 3)
    assert asked(ask, topic, epoch + 1, version=version) == (0, -1, -1)
    assert asked(ask, topic, -1, version=version) == (0, -1, -1)
    assert asked(ask, topic, epoch, current=epoch + 1, version=version) == (UNKNOWN_EPOCH, -1, -1)
    if epoch:
        assert asked(ask, topic, epoch, current=epoch - 1, version=version) == (FENCED, -1, -1)
    assert asked(ask, topic, epoch, partition=1, version=version) == (NO_TOPIC, -1, -1)
    assert asked(ask, "nobody-has-it", epoch, version=version) == (NO_TOPIC, -1, -1)


@pytest.mark.parametrize("assignment", ["dense", "clock"])
def test_earlier_epochs(own_korvet, assignment):
    """An epoch ends where the log ended when the next leader took over."""
    server = own_korvet()
    create_topic(server.bootstrap, "t", 1, {"offset.assignment": assignment})
    ends = {}
    for _ in range(3):
        with connect(server) as client:
            base = put(client, "t", batch([(b"k", b"v")] * 2)).base_offset
            ends[leader_epoch(client, "t")] = base + 2
        server.stop()
        server.restart()
    with connect(server) as client:
        last = leader_epoch(client, "t")
        assert [*ends, last] == sorted({*ends, last})
        end = put(client, "t", batch([(b"k", b"v")])).base_offset + 1
        for epoch, ended in ends.items():
            assert asked(client, "t", epoch) == (0, epoch, ended)
        assert asked(client, "t", last, current=last) == (0, last, end)
        if assignment == "dense":
            assert list(ends.values()) == [2, 4, 6]


def test_a_consumer_notices_that_records_were_lost(own_korvet):
    """After a failover to a replica that lacked records, the consumer goes back and reads the new records."""
    server = own_korvet()
    create_topic(server.bootstrap, "t", 1, {"offset.assignment": "dense"})
    records = [Record(b"k%d" % n, b"v%d" % n, (), NOW_MS + n) for n in range(20)]
    client = producer(server.bootstrap)
    send(client, "t", 0, records[:5])
    keys = (b"korvet:t:0", b"{korvet:t:0}:meta", b"{korvet:t:0}:index")
    replica = {key: server.redis.dump(key) for key in keys}
    send(client, "t", 0, records[5:10])
    reader = consumer(server.bootstrap, "readers", auto_offset_reset="earliest")
    reader.assign([TopicPartition("t", 0, 0)])
    assert [read.record for read in take(reader, 10)] == records[:10]
    for key, content in replica.items():
        server.redis.restore(key, 0, content, replace=True)
    server.stop()
    server.restart()
    send(producer(server.bootstrap), "t", 0, records[10:])
    found = take(reader, 10)
    assert [(read.offset, read.record) for read in found] == list(enumerate(records[10:], 5))
    reader.close()
