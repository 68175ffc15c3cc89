"""Requests of admin tools about replicas, log directories, and pages of topics."""

from __future__ import annotations

import pytest

from tests.api.asking import newest, versions
from tests.api.batches import batch
from tests.api.test_tail import put

UNKNOWN_TOPIC, INVALID_TOPIC, UNSUPPORTED_VERSION, INVALID_REQUEST, NOT_NEEDED = 3, 17, 35, 42, 84
INVALID_REPLICAS, NO_FOLDER, NO_REASSIGNMENT = 39, 57, 85


@versions("ElectLeaders")
def test_no_election_is_needed(ask, korvet, new_topic, version):
    name = new_topic(2)
    asked = [{"topic": name, "partitions": [0, 1, 2]}, {"topic": "nobody-has-it", "partitions": [0]}]
    answer = ask("ElectLeaders", version, election_type=0, topic_partitions=asked, timeout=5_000)
    found = {
        (each.topic, one.partition_id): int(one.error_code)
        for each in answer.replica_election_results
        for one in each.partition_result
    }
    assert found == {
        (name, 0): NOT_NEEDED,
        (name, 1): NOT_NEEDED,
        (name, 2): UNKNOWN_TOPIC,
        ("nobody-has-it", 0): UNKNOWN_TOPIC,
    }
    everything = ask("ElectLeaders", version, election_type=0, topic_partitions=None, timeout=5_000)
    assert everything.replica_election_results == ()
    if version >= 1:
        assert (answer.error_code, everything.error_code) == (0, 0)


@versions("ElectLeaders", since=1)
def test_an_unknown_kind_of_election(ask, topic, version):
    for asked in ([{"topic": topic, "partitions": [0]}], None):
        answer = ask("ElectLeaders", version, election_type=2, topic_partitions=asked, timeout=5_000)
        assert answer.error_code == INVALID_REQUEST
        found = [one.error_code for each in answer.replica_election_results for one in each.partition_result]
        assert found == [INVALID_REQUEST] * len(asked or ())


@versions("ListPartitionReassignments")
def test_nothing_is_reassigned(ask, topic, version):
    for topics in (None, [{"name": topic, "partition_indexes": [0]}]):
        answer = ask("ListPartitionReassignments", version, topics=topics, timeout=5_000)
        assert (answer.error_code, answer.topics) == (0, ())


@versions("AlterPartitionReassignments")
def test_partitions_are_where_they_can_be(ask, broker, new_topic, version):
    name = new_topic(2)
    node = ask("DescribeCluster", newest("DescribeCluster")).brokers[0].broker_id
    wanted = [(0, [node]), (1, [node, 99]), (1, []), (1, None), (2, [node])]
    partitions = [{"partition_index": index, "replicas": replicas} for index, replicas in wanted]
    asked = [{"name": name, "partitions": partitions}]
    asked.append({"name": "nobody-has-it", "partitions": partitions[:1]})
    answer = ask("AlterPartitionReassignments", version, topics=asked, timeout=5_000)
    assert answer.error_code == 0
    found = [[int(one.error_code) for one in each.partitions] for each in answer.responses]
    assert found == [[0, INVALID_REPLICAS, INVALID_REPLICAS, NO_REASSIGNMENT, UNKNOWN_TOPIC], [UNKNOWN_TOPIC]]


@versions("AlterReplicaLogDirs")
def test_there_is_one_folder(ask, korvet, new_topic, version):
    name = new_topic(1)
    dirs = [
        {"path": path, "topics": [{"name": name, "partitions": [0, 1]}]} for path in ("/korvet", "/other")
    ]
    answer = ask("AlterReplicaLogDirs", version, dirs=dirs)
    found = [[int(one.error_code) for one in each.partitions] for each in answer.results]
    assert found == [[0, UNKNOWN_TOPIC], [NO_FOLDER, NO_FOLDER]]


@versions("DescribeLogDirs")
def test_sizes(ask, korvet, new_topic, version):
    name = new_topic(2)
    put(ask, name, batch([(b"key", b"v" * 1_000)] * 10))
    asked = [{"topic": name, "partitions": [0, 1, 7]}, {"topic": "nobody-has-it", "partitions": [0]}]
    (folder,) = ask("DescribeLogDirs", version, topics=asked).results
    assert folder.error_code == 0
    assert folder.log_dir == "/korvet"
    ((found_name, sizes),) = [
        (each.name, {one.partition_index: one.partition_size for one in each.partitions})
        for each in folder.topics
    ]
    assert found_name == name
    assert set(sizes) == {0, 1}
    assert 10_000 < sizes[0] < 12_000
    assert sizes[1] == 0
    if version >= 4:
        memory = korvet.redis.info("memory")
        assert folder.total_bytes == memory["maxmemory"]
        assert 0 < folder.usable_bytes < folder.total_bytes
    (everything,) = ask("DescribeLogDirs", version, topics=None).results
    assert {name, "__consumer_offsets"} >= {each.name for each in everything.topics} & {name}
    assert name in {each.name for each in everything.topics}


def describe(ask, *names, limit=2_000, cursor=None):
    return ask(
        "DescribeTopicPartitions",
        newest("DescribeTopicPartitions"),
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


def test_the_cursor_is_at_one_of_the_topics(ask, new_topic):
    first, second = sorted(new_topic(1) for _ in range(2))
    cursor = {"topic_name": first + "0", "partition_index": 0}
    answer = describe(ask, first, second, cursor=cursor)
    assert [(each.name, each.error_code) for each in answer.topics] == [
        (first, INVALID_REQUEST),
        (second, INVALID_REQUEST),
    ]
    assert second in [each.name for each in describe(ask, cursor=cursor).topics]


def test_topics_page_by_page(ask, korvet, new_topic):
    names = sorted(new_topic(count) for count in (3, 1, 4))
    counts = {each.name: len(each.partitions) for each in describe(ask, *names).topics}
    for limit in (1, 2, 3, 5, 100):
        found: list[tuple[str, int]] = []
        cursor = None
        while True:
            page = describe(ask, *reversed(names), limit=limit, cursor=cursor)
            some = [(each.name, one.partition_index) for each in page.topics for one in each.partitions]
            assert len(some) <= limit
            found += some
            if page.next_cursor is None:
                break
            cursor = {
                "topic_name": page.next_cursor.topic_name,
                "partition_index": page.next_cursor.partition_index,
            }
        assert found == [(name, index) for name in names for index in range(counts[name])]


def test_a_topic_and_its_leaders(ask, korvet, topic):
    described = describe(ask, topic)
    (found,) = described.topics
    (known,) = ask("Metadata", 12, topics=[{"topic_id": None, "name": topic}]).topics
    assert (found.name, found.topic_id, found.is_internal) == (topic, known.topic_id, False)
    (partition,) = found.partitions
    leader = known.partitions[0].leader_id
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
        leader,
        (leader,),
        (leader,),
    )
    assert partition.leader_epoch == known.partitions[0].leader_epoch


def test_topics_that_there_are_not(ask, korvet):
    errors = {each.name: int(each.error_code) for each in describe(ask, "nobody-has-it", "no/name").topics}
    assert errors == {"nobody-has-it": UNKNOWN_TOPIC, "no/name": INVALID_TOPIC}
    bad = describe(ask, "nobody-has-it", cursor={"topic_name": "a", "partition_index": -1})
    assert [int(each.error_code) for each in bad.topics] == [INVALID_REQUEST]


def test_all_topics_are_described(ask, korvet, topic):
    names = [each.name for each in describe(ask).topics]
    assert topic in names
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("types", "error"), [([], 0), ([2], 0), ([4, 8], 0), ([16], 0), ([77], UNSUPPORTED_VERSION)]
)
def test_config_resources(ask, korvet, topic, types, error):
    answer = ask("ListConfigResources", 1, resource_types=types)
    assert answer.error_code == error
    found = {(each.resource_type, each.resource_name) for each in answer.config_resources}
    assert ((2, topic) in found) == (error == 0 and types in ([], [2]))
    assert ((4, "1") in found) == (error == 0 and types in ([], [4, 8]))
    assert {kind for kind, _ in found} <= set(types or (2, 4, 8, 32))


def test_metrics_subscriptions_of_clients(ask, korvet):
    answer = ask("ListConfigResources", 0)
    assert (answer.error_code, answer.config_resources) == (0, ())
