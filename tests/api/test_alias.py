"""offsets.topic.alias: a read-only name of `__consumer_offsets` that isn't internal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from korvet.offsets.partition import partition_for
from tests.api.asking import connect, newest
from tests.api.batches import batch
from tests.api.test_produce import everything, put
from tests.support.admin import create_topic
from tests.support.confluent import consumer, read_all, take
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC, ALIAS, GROUP = "__consumer_offsets", "commits", "readers"
HOME = partition_for(GROUP)
INVALID_TOPIC, EXISTS, INVALID_CONFIG = 17, 36, 40


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    """A broker with an alias, and three commits of a group."""
    with KorvetServer("--set", f"offsets.topic.alias={ALIAS}") as started:
        create_topic(started.bootstrap, "t", 1)
        client = consumer(started.bootstrap, GROUP)
        for offset in (1, 2, 3):
            client.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
        client.close()
        yield started


@pytest.fixture
def ask(server):
    with connect(server) as client:
        yield client


def metadata(ask, *topics):
    wanted = None if not topics else list(topics)
    answer = ask("Metadata", newest("Metadata"), topics=wanted, allow_auto_topic_creation=False)
    return {topic.name: topic for topic in answer.topics}


def test_it_is_told_of_as_a_topic_that_is_not_internal(ask):
    listed = metadata(ask)
    assert {TOPIC, ALIAS, "t"} == set(listed)
    assert (listed[TOPIC].is_internal, listed[ALIAS].is_internal) == (True, False)
    assert listed[TOPIC].topic_id != listed[ALIAS].topic_id
    assert [part.leader_id for part in listed[ALIAS].partitions] == [1] * 50
    assert metadata(ask, {"name": ALIAS})[ALIAS] == listed[ALIAS]
    assert metadata(ask, {"name": None, "topic_id": listed[ALIAS].topic_id})[ALIAS] == listed[ALIAS]
    pages = ask("DescribeTopicPartitions", 0, topics=[], response_partition_limit=2000, cursor=None)
    assert [(topic.name, topic.is_internal) for topic in pages.topics] == [
        (TOPIC, True),
        (ALIAS, False),
        ("t", False),
    ]


def test_it_has_the_same_records(ask, server):
    """A consumer in a group reads it by name and by ID, and may commit."""
    records = everything(ask, TOPIC, HOME)
    assert len(records) == 3
    assert everything(ask, ALIAS, HOME) == records
    found = read_all(server.bootstrap, ALIAS, HOME)
    assert [(read.offset, read.record.key, read.record.value) for read in found] == records
    member = consumer(server.bootstrap, "followers", auto_offset_reset="earliest")
    member.assign([TopicPartition(ALIAS, HOME, 0)])
    assert len(take(member, 3)) == 3
    member.commit(offsets=[TopicPartition(ALIAS, HOME, 3)], asynchronous=False)
    (committed,) = member.committed([TopicPartition(ALIAS, HOME)], timeout=20)
    assert committed.offset == 3
    member.close()
    wanted = {"name": ALIAS, "partitions": [{"partition_index": HOME, "timestamp": -1}]}
    (topic,) = ask("ListOffsets", newest("ListOffsets"), topics=[wanted]).topics
    assert topic.partitions[0].offset == 3
    resource = {"resource_type": 2, "resource_name": ALIAS, "configuration_keys": ["cleanup.policy"]}
    (described,) = ask("DescribeConfigs", 4, resources=[resource]).results
    assert described.configs[0].value == "compact"


def test_it_can_only_be_read(ask):
    assert int(put(ask, ALIAS, batch([(b"k", b"v")]), partition=HOME).error_code) == INVALID_TOPIC
    deletion = ask("DeleteTopics", 5, topic_names=[ALIAS], timeout=5_000).responses
    assert int(deletion[0].error_code) == INVALID_TOPIC
    growth = {"name": ALIAS, "count": 60, "assignments": None}
    grown = ask("CreatePartitions", 3, topics=[growth], timeout=5_000, validate_only=False).results
    assert int(grown[0].error_code) == INVALID_TOPIC
    made = {"name": ALIAS, "num_partitions": 1, "replication_factor": 1}
    assert int(ask("CreateTopics", 7, topics=[made], timeout=5_000).topics[0].error_code) == EXISTS
    change = {"name": "retention.ms", "config_operation": 0, "value": "5"}
    resource = {"resource_type": 2, "resource_name": ALIAS, "configs": [change]}
    answer = ask("IncrementalAlterConfigs", 1, resources=[resource], validate_only=False)
    assert int(answer.responses[0].error_code) == INVALID_CONFIG
    assert set(metadata(ask)) == {TOPIC, ALIAS, "t"}
