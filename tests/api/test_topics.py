"""CreateTopics, DeleteTopics, CreatePartitions and Metadata: Kafka's responses, valid requests and errors."""

from __future__ import annotations

import uuid

import pytest

from korvet.cluster.catalogue import Catalogue
from korvet.redis.errors import LinkLost
from tests.api.asking import connect, newest, versions
from tests.api.batches import batch
from tests.api.test_produce import put
from tests.support.admin import create_topic
from tests.support.polling import until
from tests.support.servers import Broker

UNKNOWN_TOPIC, INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS = 3, 17, 36, 37
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_CONFIG, INVALID_REQUEST = 38, 39, 40, 42
UNKNOWN_TOPIC_ID, POLICY_VIOLATION, REQUEST_TIMED_OUT = 100, 44, 7

# Copies that are shown of a topic that asks for more than there are.
MOST_COPIES = 32

CREATE, DELETE, GROW, METADATA = (
    newest("CreateTopics"), newest("DeleteTopics"), newest("CreatePartitions"), newest("Metadata"),
)  # fmt: skip


def wanted(name, partitions=1, factor=1, configs=(), assignments=()):
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in assignments],
        "configs": [{"name": key, "value": value} for key, value in configs],
    }


def create(ask, *topics, version=CREATE, validate_only=False):
    return ask("CreateTopics", version, topics=[*topics], timeout=20_000, validate_only=validate_only).topics


def metadata(ask, *names, version=METADATA, create=False, **more):
    topics = [{"topic_id": None, "name": name} for name in names]
    return ask("Metadata", version, topics=topics, allow_auto_topic_creation=create, **more)


def partitions(ask, name):
    (topic,) = metadata(ask, name).topics
    return len(topic.partitions)


@versions("CreateTopics")
def test_create_topics(ask, fresh, version):
    names = [fresh("made"), fresh("made")]
    asked = [wanted(names[0], 3), wanted(names[1], configs=[("retention.ms", "1000")])]
    results = create(ask, *asked, version=version)
    assert [(each.name, each.error_code) for each in results] == [(name, 0) for name in names]
    until(lambda: partitions(ask, names[0]) == 3, 10, "the topic is there")
    if version >= 5:
        assert [(each.num_partitions, each.replication_factor) for each in results] == [(3, 1), (1, 1)]
        configs = {each.name: each for each in results[1].configs}
        assert configs["retention.ms"].value == "1000"
        assert configs["cleanup.policy"].value == "delete"
        assert configs["retention.ms"].config_source == 1
        assert not configs["retention.ms"].is_sensitive
    if version >= 7:
        assert all(each.topic_id for each in results)
        assert results[0].topic_id != results[1].topic_id


@pytest.mark.parametrize("copies", ["40000", "10000000", str(2**31 - 1)])
def test_a_topic_that_asks_for_more_copies_than_anybody_has(ask, fresh, copies):
    """A mistake, or an attack: responses name each replica, and the factor has 16 bits."""
    name = fresh("greedy")
    asked = wanted(name, factor=-1, configs=[("min.insync.replicas", copies)])
    (made,) = create(ask, asked)
    assert (made.error_code, made.replication_factor) == (0, MOST_COPIES)
    until(lambda: partitions(ask, name) == 1, 10, "the topic is there")
    (shown,) = metadata(ask, name).topics[0].partitions
    assert len(shown.replica_nodes) == MOST_COPIES
    assert len(shown.isr_nodes) == 1
    (described,) = ask(
        "DescribeTopicPartitions", 0, topics=[{"name": name}], response_partition_limit=9, cursor=None
    ).topics
    assert len(described.partitions[0].replica_nodes) == MOST_COPIES


@versions("CreateTopics")
@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (wanted(""), INVALID_TOPIC),
        (wanted("."), INVALID_TOPIC),
        (wanted(".."), INVALID_TOPIC),
        (wanted("a b"), INVALID_TOPIC),
        (wanted("{a}"), INVALID_TOPIC),
        (wanted("ä"), INVALID_TOPIC),
        (wanted("x" * 250), INVALID_TOPIC),
        (wanted("x" * 30_000), INVALID_TOPIC),
        (wanted("bad-0", 0), INVALID_PARTITIONS),
        (wanted("bad-1", -2), INVALID_PARTITIONS),
        (wanted("bad-2", 1, 3), INVALID_REPLICATION_FACTOR),
        (wanted("bad-3", 1, 0), INVALID_REPLICATION_FACTOR),
        (wanted("bad-4", 1, -2), INVALID_REPLICATION_FACTOR),
        (wanted("bad-5", configs=[("no.such.config", "1")]), INVALID_CONFIG),
        (wanted("bad-6", configs=[("retention.ms", "soon")]), INVALID_CONFIG),
        (wanted("bad-7", configs=[("retention.ms", "-2")]), INVALID_CONFIG),
        (wanted("bad-8", configs=[("cleanup.policy", "shred")]), INVALID_CONFIG),
        (wanted("bad-9", configs=[("retention.ms", None)]), INVALID_CONFIG),
        (wanted("bad-10", 2, -1, assignments=[(0, [1])]), INVALID_REQUEST),
        (wanted("bad-11", -1, 1, assignments=[(0, [1])]), INVALID_REQUEST),
        (wanted("bad-12", -1, -1, assignments=[(1, [1])]), INVALID_REPLICA_ASSIGNMENT),
        (wanted("bad-13", -1, -1, assignments=[(0, [77])]), INVALID_REPLICA_ASSIGNMENT),
        (wanted("bad-14", -1, -1, assignments=[(0, [])]), INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=lambda value: value["name"][:9] if isinstance(value, dict) else str(value),
)
def test_topics_that_cannot_be(ask, version, topic, error):
    # A real broker creates its offsets topic when the first group requests its coordinator.
    until(lambda: ask("FindCoordinator", 1, key="g", key_type=0).error_code == 0, 20, "a coordinator")
    for validate_only in (True, False):
        (result,) = create(ask, topic, version=version, validate_only=validate_only)
        assert (result.name, result.error_code) == (topic["name"], error)
        assert result.error_message
        if version >= 5:
            assert (result.num_partitions, result.replication_factor, result.configs) == (-1, -1, ())


@versions("CreateTopics")
def test_errors_that_repeat_very_long_texts(ask, fresh, version):
    long = "x" * 32_760
    asked = [wanted(long), wanted(fresh("bad"), configs=[(long, "1")])]
    asked.append(wanted(fresh("bad"), configs=[("retention.ms", long)]))
    results = create(ask, *asked, version=version)
    assert [each.error_code for each in results] == [INVALID_TOPIC, INVALID_CONFIG, INVALID_CONFIG]


def test_a_name_that_exists_or_collides(ask, fresh):
    name = fresh("there.x")
    assert create(ask, wanted(name))[0].error_code == 0
    assert create(ask, wanted(name))[0].error_code == TOPIC_EXISTS
    assert create(ask, wanted(name), validate_only=True)[0].error_code == TOPIC_EXISTS
    assert create(ask, wanted(name.replace(".", "_")))[0].error_code == INVALID_TOPIC


def test_an_existing_name_is_reported_before_anything_else(ask, topic):
    """Programs that create their topics at each start ignore this error, and no other one."""
    for asked in (
        wanted(topic, 1, 3),
        wanted(topic, 0),
        wanted(topic, configs=[("no.such.config", "1")]),
        wanted(topic, configs=[("retention.ms", "1"), ("retention.ms", "2")]),
        wanted(topic, -1, -1, assignments=[(0, [77])]),
    ):
        for validate_only in (True, False):
            (result,) = create(ask, asked, validate_only=validate_only)
            assert (result.error_code, asked) == (TOPIC_EXISTS, asked)
    assert create(ask, wanted("a b", 1, 3))[0].error_code == INVALID_TOPIC


def test_a_name_given_twice_is_answered_once(ask, fresh):
    twice, once = fresh("twice"), fresh("once")
    results = create(ask, wanted(twice), wanted(once), wanted(twice))
    assert sorted((each.name, each.error_code) for each in results) == [(once, 0), (twice, INVALID_REQUEST)]


def test_the_last_value_of_a_config_given_twice_counts(ask, fresh):
    twice = [("retention.ms", "soon"), ("retention.ms", "2000")]
    (result,) = create(ask, wanted(fresh("made"), configs=twice))
    assert result.error_code == 0
    assert [each.value for each in result.configs if each.name == "retention.ms"] == ["2000"]


def test_kafkas_metadata_topic_is_not_created(ask, fresh):
    name, other = "__cluster_metadata", fresh("made")
    for validate_only in (True, False):
        results = create(ask, wanted(name), wanted(other), validate_only=validate_only)
        assert {each.name: each.error_code for each in results} == {name: INVALID_REQUEST, other: 0}
    assert metadata(ask, name, create=True).topics[0].error_code == UNKNOWN_TOPIC
    assert put(ask, name, batch()).error_code == UNKNOWN_TOPIC


def test_only_validating_makes_nothing(ask, fresh):
    name = fresh("valid")
    (result,) = create(ask, wanted(name, 4), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 4)
    assert metadata(ask, name).topics[0].error_code == UNKNOWN_TOPIC


def test_defaults_and_assignments(ask, fresh):
    by_default, assigned = fresh("default"), fresh("assigned")
    results = create(
        ask, wanted(by_default, -1, -1), wanted(assigned, -1, -1, assignments=[(1, [1]), (0, [1])])
    )
    assert [(each.error_code, each.num_partitions) for each in results] == [(0, 1), (0, 2)]


@versions("DeleteTopics")
def test_delete_topics(ask, new_topic, topic_ids, version):
    names = [new_topic(), new_topic()]
    if version >= 6:
        states = [{"name": names[0], "topic_id": None}, {"name": None, "topic_id": topic_ids(names[1])}]
        results = ask("DeleteTopics", version, topics=states, timeout=20_000).responses
    else:
        results = ask("DeleteTopics", version, topic_names=names, timeout=20_000).responses
    assert sorted((each.name, each.error_code) for each in results) == sorted((name, 0) for name in names)
    assert {each.error_code for each in metadata(ask, *names).topics} == {UNKNOWN_TOPIC}


@versions("DeleteTopics")
def test_deleting_what_is_not_there(ask, fresh, version):
    name, nobody = fresh("never"), uuid.uuid4()
    if version < 6:
        (result,) = ask("DeleteTopics", version, topic_names=[name], timeout=20_000).responses
        assert (result.name, result.error_code) == (name, UNKNOWN_TOPIC)
        return
    states = [{"name": name, "topic_id": None}, {"name": None, "topic_id": nobody}]
    results = ask("DeleteTopics", version, topics=states, timeout=20_000).responses
    assert sorted((each.error_code, each.name, each.topic_id) for each in results) == [
        (UNKNOWN_TOPIC, name, None),
        (UNKNOWN_TOPIC_ID, None, nobody),
    ]


def test_deleting_a_topic_twice_in_one_request(ask, topic, topic_ids):
    topic_id = topic_ids(topic)
    states = [{"name": topic, "topic_id": None}, {"name": topic, "topic_id": None}]
    results = ask("DeleteTopics", DELETE, topics=states, timeout=20_000).responses
    assert {each.error_code for each in results} == {INVALID_REQUEST}
    states = [{"name": topic, "topic_id": None}, {"name": None, "topic_id": topic_id}]
    results = ask("DeleteTopics", DELETE, topics=states, timeout=20_000).responses
    assert {each.error_code for each in results} == {INVALID_REQUEST}
    states = [{"name": topic, "topic_id": topic_id}]
    (result,) = ask("DeleteTopics", DELETE, topics=states, timeout=20_000).responses
    assert result.error_code == INVALID_REQUEST
    assert metadata(ask, topic).topics[0].error_code == 0


def test_the_offsets_topic_is_not_deleted_and_does_not_grow(ask, korvet):
    states = [{"name": "__consumer_offsets", "topic_id": None}]
    (result,) = ask("DeleteTopics", DELETE, topics=states, timeout=20_000).responses
    assert result.error_code == INVALID_TOPIC
    (result,) = grow(ask, ("__consumer_offsets", 60, None))
    assert result.error_code == INVALID_TOPIC
    assert partitions(ask, "__consumer_offsets") == 50


def grow(ask, *topics, version=GROW, validate_only=False):
    asked = [
        {
            "name": name,
            "count": count,
            "assignments": None if assignments is None else [{"broker_ids": ids} for ids in assignments],
        }
        for name, count, assignments in topics
    ]
    return ask("CreatePartitions", version, topics=asked, timeout=20_000, validate_only=validate_only).results


@versions("CreatePartitions")
def test_create_partitions(ask, topic, version):
    (result,) = grow(ask, (topic, 3, None), version=version, validate_only=True)
    assert (result.name, result.error_code) == (topic, 0)
    assert partitions(ask, topic) == 1
    (result,) = grow(ask, (topic, 3, None), version=version)
    assert (result.name, result.error_code) == (topic, 0)
    until(lambda: partitions(ask, topic) == 3, 10, "three partitions")


@versions("CreatePartitions")
def test_partitions_that_cannot_be(ask, new_topic, fresh, version):
    name, unknown = new_topic(2), fresh("never")
    for asked, error in [
        ((unknown, 3, None), UNKNOWN_TOPIC),
        ((name, 2, None), INVALID_PARTITIONS),
        ((name, 1, None), INVALID_PARTITIONS),
        ((name, 0, None), INVALID_PARTITIONS),
        ((name, -1, None), INVALID_PARTITIONS),
        ((name, 2, [[1]]), INVALID_PARTITIONS),
        ((name, 1, [[77]]), INVALID_PARTITIONS),
        ((name, 3, [[1], [1]]), INVALID_REPLICA_ASSIGNMENT),
        ((name, 3, [[77]]), INVALID_REPLICA_ASSIGNMENT),
        ((name, 3, []), INVALID_REPLICA_ASSIGNMENT),
    ]:
        (result,) = grow(ask, asked, version=version)
        assert (result.error_code, asked) == (error, asked)
        assert result.error_message
    results = grow(ask, (name, 3, None), (name, 4, None), version=version)
    assert {each.error_code for each in results} == {INVALID_REQUEST}
    assert partitions(ask, name) == 2
    assert grow(ask, (name, 3, [[1]]), version=version)[0].error_code == 0


@versions("Metadata")
def test_metadata(ask, new_topic, topic_ids, version):
    name = new_topic(2)
    answer = metadata(ask, name, version=version)
    (topic,) = answer.topics
    assert (topic.name, topic.error_code, len(topic.partitions)) == (name, 0, 2)
    (node,) = answer.brokers
    for partition in topic.partitions:
        assert (partition.error_code, partition.leader_id) == (0, node.node_id)
        assert tuple(partition.replica_nodes) == tuple(partition.isr_nodes) == (node.node_id,)
    if version >= 1:
        assert (answer.controller_id, topic.is_internal) == (node.node_id, False)
    if version >= 2:
        assert answer.cluster_id
    if version >= 8:
        assert topic.topic_authorized_operations == -(2**31)
    if version >= 10:
        assert topic.topic_id == topic_ids(name)
    if 8 <= version <= 10:
        assert answer.cluster_authorized_operations == -(2**31)


@versions("Metadata")
def test_metadata_of_all_topics(ask, topic, version):
    everything = [] if version == 0 else None
    answer = ask("Metadata", version, topics=everything, allow_auto_topic_creation=False)
    names = [each.name for each in answer.topics]
    assert topic in names
    assert len(set(names)) == len(names)
    if version >= 1:
        assert ask("Metadata", version, topics=[], allow_auto_topic_creation=False).topics == ()


def test_metadata_by_id(ask, topic, topic_ids):
    topic_id, nobody = topic_ids(topic), uuid.uuid4()
    asked = [{"topic_id": topic_id, "name": None}, {"topic_id": nobody, "name": None}]
    for version in (12, 13):
        answer = ask("Metadata", version, topics=asked, allow_auto_topic_creation=True)
        found = {each.topic_id: (each.error_code, each.name) for each in answer.topics}
        assert found == {topic_id: (0, topic), nobody: (UNKNOWN_TOPIC_ID, None)}


@versions("Metadata", since=12)
def test_an_id_counts_before_a_name(ask, new_topic, topic_ids, version):
    name, other = new_topic(1), new_topic(1)
    for asked, error, found in [(topic_ids(name), 0, name), (uuid.uuid4(), UNKNOWN_TOPIC_ID, None)]:
        (topic,) = ask("Metadata", version, topics=[{"topic_id": asked, "name": other}]).topics
        assert (topic.error_code, topic.name, topic.topic_id) == (error, found, asked)


@versions("Metadata", since=10, until=11)
def test_versions_that_do_not_ask_by_id(ask, topic, topic_ids, version):
    asked = [{"topic_id": topic_ids(topic), "name": topic}]
    (found,) = ask("Metadata", version, topics=asked).topics
    assert (found.error_code, found.name, found.partitions) == (INVALID_REQUEST, topic, ())


def test_authorized_operations_when_asked_for(ask, topic):
    answer = metadata(ask, topic, version=8, include_topic_authorized_operations=True)
    assert answer.topics[0].topic_authorized_operations == 0b1101_1111_1000
    answer = metadata(ask, topic, version=8, include_cluster_authorized_operations=True)
    assert answer.cluster_authorized_operations > 0


@versions("Metadata", since=4)
def test_unknown_topics_are_made_only_when_allowed(ask, fresh, version):
    name = fresh("auto")
    assert metadata(ask, name, version=version).topics[0].error_code == UNKNOWN_TOPIC
    metadata(ask, name, version=version, create=True)
    until(lambda: metadata(ask, name, version=version).topics[0].error_code == 0, 10, "it is made")
    assert partitions(ask, name) == 1


@versions("Metadata", until=3)
def test_old_clients_always_allow_auto_creation(ask, fresh, version):
    name = fresh("auto")
    metadata(ask, name, version=version)
    until(lambda: metadata(ask, name).topics[0].error_code == 0, 10, "it is made")


@pytest.mark.parametrize("create", [True, False])
def test_names_that_cannot_be_made(ask, create):
    for name in ("a b", "", "x" * 250, "{x}:1"):
        assert metadata(ask, name, version=9, create=create).topics[0].error_code == INVALID_TOPIC, name


def test_a_topic_asked_for_twice_is_answered_once(ask, topic):
    assert len(metadata(ask, topic, topic).topics) == 1


def test_the_offsets_topic_is_internal(ask, korvet):
    (topic,) = metadata(ask, "__consumer_offsets").topics
    assert (topic.is_internal, len(topic.partitions)) == (True, 50)


def test_a_failure_of_one_topic_is_not_reported_for_the_others(in_process, monkeypatch):
    """A client would repeat what is done, and get errors for that."""
    swap = Catalogue._swap

    async def fail_for_b(self, name, *states, **how):
        if name == "b" and fails:
            raise LinkLost("the connection was lost")
        await swap(self, name, *states, **how)

    monkeypatch.setattr(Catalogue, "_swap", fail_for_b)
    client, names = connect(in_process), ("a", "b", "c")
    with client.raw:
        fails = True
        made = create(client, *map(wanted, names))
        assert [each.error_code for each in made] == [0, REQUEST_TIMED_OUT, 0]
        fails = False
        assert [each.error_code for each in create(client, wanted("b"))] == [0]
        fails = True
        grown = grow(client, *((name, 2, None) for name in names))
        assert [each.error_code for each in grown] == [0, REQUEST_TIMED_OUT, 0]
        states = [{"name": name, "topic_id": None} for name in names]
        deleted = client("DeleteTopics", DELETE, topics=states, timeout=20_000).responses
        assert [each.error_code for each in deleted] == [0, REQUEST_TIMED_OUT, 0]
        assert [each.error_code for each in metadata(client, *names).topics] == [
            UNKNOWN_TOPIC,
            0,
            UNKNOWN_TOPIC,
        ]


def test_no_auto_creation_when_it_is_off(own_korvet, tmp_path, fresh):
    file = tmp_path / "korvet.toml"
    file.write_text("auto.create.topics.enable = false\nnum.partitions = 3\n")
    server = own_korvet("--config", str(file))
    with connect(Broker(server.host, server.port, server)) as client:
        name = fresh("auto")
        for version in (3, 13):
            assert metadata(client, name, version=version, create=True).topics[0].error_code == UNKNOWN_TOPIC
        assert create(client, wanted(name, -1, -1))[0].num_partitions == 3


def test_the_brokers_offset_assignment_is_for_new_topics(own_korvet):
    server = own_korvet("--set", "log.offset.assignment=dense")
    create_topic(server.bootstrap, "plain", 1)
    create_topic(server.bootstrap, "own", 1, {"offset.assignment": "clock"})
    seen = {"plain": ("dense", 4), "own": ("clock", 1)}
    check_assignments(server, seen)
    server.stop()
    server.options.clear()
    server.restart()
    create_topic(server.bootstrap, "later", 1)
    check_assignments(server, {**seen, "later": ("clock", 5)})


def check_assignments(server, expected):
    """Values and sources (1 topic, 4 broker, 5 default) of offset.assignment, and the resulting offsets."""
    with connect(server) as client:
        for name, shown in expected.items():
            asked = {"resource_type": 2, "resource_name": name, "configuration_keys": ["offset.assignment"]}
            (result,) = client("DescribeConfigs", 4, resources=[asked], include_synonyms=True).results
            (config,) = result.configs
            assert (config.value, config.config_source) == shown
            base = put(client, name, batch([(None, b"1")])).base_offset
            assert (base < 10) == (shown[0] == "dense")
