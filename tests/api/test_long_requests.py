"""Responses to requests with repetitions, and to requests that are too large."""

from __future__ import annotations

from collections import Counter

import pytest
from kio.schema.errors import ErrorCode

from tests.api.asking import newest, versions

TOPIC = 2


@versions("Metadata", since=12)
def test_metadata_answers_a_topic_once(ask, topic, topic_ids, version: int) -> None:
    topic_id = topic_ids(topic)
    asked = [{"name": topic, "topic_id": None}, {"name": None, "topic_id": topic_id}] * 50
    # If there is an ID, the name does not count.
    asked += [{"name": f"{topic}-{number}", "topic_id": topic_id} for number in range(50)]
    found = ask("Metadata", version, topics=asked).topics
    assert [each.name for each in found] == [topic]


@versions("DescribeConfigs")
def test_a_resource_is_described_once(ask, topic, version: int) -> None:
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": None}
    some = {**resource, "configuration_keys": ["retention.ms", "cleanup.policy"]}
    found = ask("DescribeConfigs", version, resources=[resource, some] * 20).results
    assert [each.resource_name for each in found] == [topic] * 2
    assert {config.name for config in found[1].configs} == {"retention.ms", "cleanup.policy"}


@versions("OffsetFetch")
def test_an_offset_is_fetched_once(ask, topic, topic_ids, group, version: int) -> None:
    """Its metadata may have 12 KB, and a request 100,000 partitions of four bytes."""
    offset = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1}
    committed = [{"name": topic, "partitions": [offset]}]
    ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=committed)
    named = topic_ids(topic) if version >= 10 else topic
    topics = [
        {"name": named, "topic_id": named, "partition_indexes": indexes} for indexes in ([0, 1, 0], [0])
    ]
    asked = {"group_id": group, "topics": topics, "member_epoch": -1}
    answer = ask("OffsetFetch", version, **asked, groups=[asked])
    (found,) = answer.topics if version < 8 else answer.groups[0].topics
    assert [each.partition_index for each in found.partitions] == [0, 1]
    assert [each.committed_offset for each in found.partitions] == [7, -1]


def test_the_producers_of_a_partition_are_described_once(ask, topic) -> None:
    asked = [{"name": topic, "partition_indexes": [0, 1, 0]}, {"name": topic, "partition_indexes": [0]}]
    (found,) = ask("DescribeProducers", 0, topics=asked).topics
    assert [each.partition_index for each in found.partitions] == [0, 1]


def test_an_offset_is_deleted_once(ask, topic, group) -> None:
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    committed = [{"name": topic, "partitions": [offset]}]
    ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=committed)
    asked = {"name": topic, "partitions": [{"partition_index": index} for index in (0, 1, 0, 1, 0)]}
    (found,) = ask("OffsetDelete", 0, group_id=group, topics=[asked, asked]).topics
    errors = {each.partition_index: each.error_code for each in found.partitions}
    assert errors == {0: ErrorCode.none, 1: ErrorCode.unknown_topic_or_partition}
    assert len(found.partitions) == 2


def test_all_offsets_of_a_group_are_told_once(ask, topic, group) -> None:
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    committed = [{"name": topic, "partitions": [offset]}]
    ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=committed)
    everything = {"group_id": group, "topics": None, "member_epoch": -1}
    one = {**everything, "topics": [{"name": topic, "partition_indexes": [0]}]}
    groups = ask("OffsetFetch", 9, groups=[everything, one, everything, one]).groups
    assert [len(each.topics) for each in groups] == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "field"), [("DescribeGroups", "groups"), ("ConsumerGroupDescribe", "group_ids")]
)
def test_a_group_is_described_once(ask, fresh, name: str, field: str) -> None:
    groups = [fresh("group"), fresh("group")]
    found = ask(name, newest(name), **{field: groups * 10}).groups
    assert [each.group_id for each in found] == groups


@versions("CreateTopics")
@pytest.mark.parametrize("by_assignment", [False, True])
def test_the_partitions_of_all_topics_count(ask, fresh, version: int, by_assignment: bool) -> None:
    def asked(partitions: int) -> dict[str, object]:
        if by_assignment:
            assigned = [{"partition_index": index, "broker_ids": [1]} for index in range(partitions)]
            return {"num_partitions": -1, "replication_factor": -1, "assignments": assigned}
        return {"num_partitions": partitions, "replication_factor": 1}

    topics = [{"name": fresh("many"), **asked(2_001)} for _ in range(5)]
    found = ask("CreateTopics", version, topics=topics, timeout=20_000, validate_only=False).topics
    assert Counter(each.error_code for each in found) == {ErrorCode.policy_violation: 5}
    assert all("Excessively large number of partitions" in each.error_message for each in found)
    known = ask("Metadata", 4, topics=None).topics
    assert not {each["name"] for each in topics} & {each.name for each in known}


@versions("CreatePartitions")
def test_the_partitions_that_are_added_count(ask, new_topic, version: int) -> None:
    topics = [{"name": new_topic(1), "count": 5_002, "assignments": None} for _ in range(2)]
    found = ask("CreatePartitions", version, topics=topics, timeout=20_000, validate_only=False).results
    assert [each.error_code for each in found] == [ErrorCode.policy_violation] * 2
