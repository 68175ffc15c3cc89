"""ACLs: every API without and with the required ACLs, with Kafka's errors; what responses omit; changes of
ACLs.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.protocol import registry
from korvet.security.acls import CLUSTER_NAME, PatternType, Permission, ResourceType
from tests.api.asking import KEYS, Client, frame, versions
from tests.api.batches import batch
from tests.api.permissions import (
    ANY_ACL,
    CLUSTER,
    CREATE,
    DELETE,
    DESCRIBE,
    GROUP,
    MOVER,
    NO_PRODUCER,
    NO_TOPIC,
    ORDERS,
    READ,
    READERS,
    TABLE,
    TOPIC,
    WRITE,
    Row,
)
from tests.api.secured import DEADLINE_S, Secured, binding, errors_of
from tests.api.test_fetch_sessions import Session
from tests.support.polling import until

if TYPE_CHECKING:
    from collections.abc import Callable


def id_of(one: Row) -> str:
    return f"{one.name}-{'-'.join(kind.name for _, kind, _ in one.acls) or 'open'}"


every_row = pytest.mark.parametrize("one", TABLE, ids=id_of)


def test_the_table_has_every_api() -> None:
    assert {one.name for one in TABLE} == {api.name for api in registry.registered()}


@every_row
def test_without_acl(secured: Secured, one: Row) -> None:
    expected = one.denied if one.acls else one.allowed
    assert errors_of(secured.authenticated("nobody")(one.name, one.version, **one.fields)) == expected
    if one.acls:
        # An unauthenticated listener's clients are User:ANONYMOUS.
        assert errors_of(secured.connect(safe=False)(one.name, one.version, **one.fields)) == expected


@every_row
def test_with_acl(secured: Secured, one: Row) -> None:
    client = secured.authenticated(f"u{TABLE.index(one)}")
    assert errors_of(client(one.name, one.version, **one.fields)) == one.allowed


@every_row
def test_super_users_need_none(secured: Secured, one: Row) -> None:
    assert errors_of(secured.authenticated("admin")(one.name, one.version, **one.fields)) == one.allowed


def test_what_does_not_exist_is_answered_as_what_is_not_allowed(secured: Secured) -> None:
    nobody = secured.authenticated("nobody")
    for name in ("hidden", "no-such-topic"):
        (topic,) = nobody("Metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True).topics
        assert (topic.error_code, topic.name, topic.topic_id, topic.partitions) == (NO_TOPIC, name, None, ())
        (topic,) = nobody("ListOffsets", 11, topics=[{"name": name, "partitions": [{}]}]).topics
        assert topic.partitions[0].error_code is NO_TOPIC
        (topic,) = nobody("DeleteTopics", 6, topics=[{"name": name}]).responses
        assert (topic.error_code, topic.name, topic.topic_id) == (NO_TOPIC, name, None)


def test_ids_that_may_not_be_seen_are_not_compared_with_a_pattern(secured: Secured) -> None:
    """An expression that takes too long is refused to users who may see the IDs; others learn nothing."""
    admin, nobody = secured.authenticated("admin"), secured.authenticated("nobody")
    for number in range(100):
        name = uuid.uuid5(uuid.NAMESPACE_DNS, str(number)).hex * 2
        admin("InitProducerId", 4, transactional_id=name, transaction_timeout=60_000)
    asked = {"duration_filter": -1, "transactional_id_pattern": "(.?){1000}"}
    assert errors_of(admin("ListTransactions", 2, **asked)) == {ErrorCode.invalid_regular_expression}
    answer = nobody("ListTransactions", 2, **asked)
    assert (answer.error_code, answer.transaction_states) == (ErrorCode.none, ())


def test_lists_leave_out_what_may_not_be_seen(secured: Secured, let: Callable[..., None]) -> None:
    other = secured.authenticated("lister")
    assert other("Metadata", 12, topics=None).topics == ()
    assert other("ListGroups", 5).groups == ()
    assert other("DescribeTopicPartitions", 0, response_partition_limit=10).topics == ()
    let(
        binding("lister", DESCRIBE, TOPIC, "ord", prefixed=True),
        binding("lister", DESCRIBE, GROUP, READERS),
    )
    assert [topic.name for topic in other("Metadata", 12, topics=None).topics] == [ORDERS]
    assert [group.group_id for group in other("ListGroups", 5).groups] == [READERS]
    listed = other("DescribeTopicPartitions", 0, response_partition_limit=10)
    assert [topic.name for topic in listed.topics] == [ORDERS]
    (group,) = other("OffsetFetch", 9, groups=[{"group_id": READERS, "topics": None}]).groups
    assert [topic.name for topic in group.topics] == [ORDERS]


def test_a_topic_id_tells_no_name(secured: Secured) -> None:
    admin, nobody = secured.authenticated("admin"), secured.authenticated("nobody")
    (topic,) = admin("Metadata", 12, topics=[{"name": "hidden"}]).topics
    (told,) = nobody("Metadata", 12, topics=[{"topic_id": topic.topic_id, "name": None}]).topics
    assert (told.error_code, told.name, told.topic_id) == (NO_TOPIC, None, topic.topic_id)
    (deleted,) = nobody("DeleteTopics", 6, topics=[{"topic_id": topic.topic_id, "name": None}]).responses
    assert (deleted.error_code, deleted.name, deleted.topic_id) == (NO_TOPIC, None, topic.topic_id)


def test_topics_named_by_id_are_guarded_as_by_name(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("other", READ, GROUP, "others"))
    admin, other = secured.authenticated("admin"), secured.authenticated("other")
    (topic,) = admin("Metadata", 12, topics=[{"name": "hidden"}]).topics
    for topic_id, error in ((topic.topic_id, NO_TOPIC), (uuid.UUID(int=77), ErrorCode.unknown_topic_id)):
        data = {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch()}]}
        assert errors_of(other("Produce", 13, acks=1, timeout=1000, topic_data=[data])) == {error}
        part = {"partition": 0, "partition_max_bytes": 1000}
        topics: list[dict[str, Any]] = [{"topic_id": topic_id, "partitions": [part]}]
        assert errors_of(other("Fetch", 13, session_epoch=-1, max_bytes=1000, topics=topics)) == {error}
        commit = {"group_id": "others", "generation_id_or_member_epoch": -1}
        topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
        assert errors_of(other("OffsetCommit", 10, **commit, topics=topics)) == {error}
        topics = [{"topic_id": topic_id, "partition_indexes": [0]}]
        groups = [{"group_id": "others", "topics": topics}]
        (group,) = other("OffsetFetch", 10, groups=groups).groups
        assert [each.topic_id for each in group.topics] == [topic_id]
        assert errors_of(group) == {error}


def test_a_group_alone_is_not_enough_for_its_topics(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("other", READ, GROUP, "others"), binding("other", DELETE, GROUP, "others"))
    other = secured.authenticated("other")
    commit = [{"name": "hidden", "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    member = {"group_id": "others", "generation_id_or_member_epoch": -1}
    assert errors_of(other("OffsetCommit", 9, **member, topics=commit)) == {NO_TOPIC}
    asked = [{"group_id": "others", "topics": [{"name": "hidden", "partition_indexes": [0]}]}]
    (group,) = other("OffsetFetch", 9, groups=asked).groups
    assert group.error_code is ErrorCode.none
    (partition,) = group.topics[0].partitions
    assert (partition.error_code, partition.committed_offset) == (NO_TOPIC, -1)
    deleted = other("OffsetDelete", 0, group_id="others", topics=commit)
    assert deleted.error_code is ErrorCode.none
    assert errors_of(deleted) == {NO_TOPIC}
    admin = secured.authenticated("admin")
    (group,) = admin("OffsetFetch", 9, groups=asked).groups
    assert group.topics[0].partitions[0].committed_offset == 0


def test_a_consumer_group_shows_nothing_of_hidden_topics(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("other", READ, GROUP, "consumers"))
    admin, other = secured.authenticated("admin"), secured.authenticated("other")
    join: dict[str, Any] = {"group_id": "consumers", "rebalance_timeout": 1000, "topic_partitions": []}
    named = {**join, "member_id": "named", "subscribed_topic_names": ["hidden"]}
    assert errors_of(other("ConsumerGroupHeartbeat", 1, **named)) == {NO_TOPIC}
    regex = {**join, "member_id": "regex", "subscribed_topic_regex": "hid.*"}
    answer = other("ConsumerGroupHeartbeat", 1, **regex)
    assert (answer.error_code, answer.assignment.topic_partitions) == (ErrorCode.none, ())
    assert not errors_of(admin("ConsumerGroupHeartbeat", 1, **named))
    (group,) = other("ConsumerGroupDescribe", 1, group_ids=["consumers"]).groups
    assert (group.error_code, group.members) == (NO_TOPIC, ())
    (group,) = admin("ConsumerGroupDescribe", 1, group_ids=["consumers"]).groups
    assert len(group.members) == 2
    for member_id in ("named", "regex"):
        left = {**join, "member_id": member_id, "member_epoch": -1}
        assert not errors_of(admin("ConsumerGroupHeartbeat", 1, **left))


def test_a_created_topics_configs_are_for_who_may_see_them(
    secured: Secured, let: Callable[..., None]
) -> None:
    let(binding("creator", CREATE, CLUSTER, CLUSTER_NAME))
    made = {"name": "unseen", "num_partitions": 2, "replication_factor": 1}
    (topic,) = secured.authenticated("creator")("CreateTopics", 7, topics=[made], timeout=10_000).topics
    assert (topic.error_code, topic.topic_config_error_code) == (ErrorCode.none, NO_TOPIC)
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, ())


def test_authorized_operations_are_those_that_are_allowed(secured: Secured, let: Callable[..., None]) -> None:
    let(binding("writer", WRITE, TOPIC, "written"), binding("writer", CREATE, TOPIC, "written"))
    writer = secured.authenticated("writer")
    asked = {"topics": [{"name": "written"}], "include_topic_authorized_operations": True}
    (topic,) = writer("Metadata", 12, **asked, allow_auto_topic_creation=True).topics
    assert topic.topic_authorized_operations == 1 << WRITE | 1 << CREATE | 1 << DESCRIBE
    cluster = writer("DescribeCluster", 2, endpoint_type=1, include_cluster_authorized_operations=True)
    assert cluster.cluster_authorized_operations == 0
    cluster = secured.authenticated("admin")(
        "DescribeCluster", 2, endpoint_type=1, include_cluster_authorized_operations=True
    )
    assert cluster.cluster_authorized_operations == 0b1_1111_1010_0000


def test_a_denial_wins_also_over_a_fetch_that_is_repeated(secured: Secured, let: Callable[..., None]) -> None:
    (fetch,) = (one for one in TABLE if one.name == "Fetch")
    let(binding("fetcher", READ, TOPIC, "orders"))
    other = secured.authenticated("fetcher")
    for _ in range(3):
        assert not errors_of(other("Fetch", fetch.version, **fetch.fields))
    let(binding("fetcher", READ, TOPIC, "orders", deny=True))
    assert errors_of(other("Fetch", fetch.version, **fetch.fields)) == {NO_TOPIC}
    admin = secured.authenticated("admin")
    wanted = {**ANY_ACL, "principal_filter": "User:fetcher", "permission_type": int(Permission.DENY)}
    (gone,) = admin("DeleteAcls", 3, filters=[wanted]).filter_results
    assert len(gone.matching_acls) == 1
    assert not errors_of(other("Fetch", fetch.version, **fetch.fields))


def test_a_fetch_session_has_the_rights_of_who_fetches(secured: Secured, let: Callable[..., None]) -> None:
    """Each fetch of a session checks all its partitions, for the user who sends it."""
    let(binding("fetcher", READ, TOPIC, ORDERS))
    session = Session(secured.authenticated("fetcher"))
    (part,) = session.fetch((ORDERS, 0, 0))
    assert part.error_code is ErrorCode.none
    assert session.fetch((ORDERS, 0, part.high_watermark)) == []
    assert session.fetch(max_wait=100) == []
    let(binding("fetcher", READ, TOPIC, ORDERS, deny=True))
    for _ in range(2):
        (part,) = session.fetch(max_wait=100)
        assert (part.error_code, part.high_watermark, part.records) == (NO_TOPIC, -1, b"")
    session.ask = secured.authenticated("admin")
    (part,) = session.fetch()
    assert part.error_code is ErrorCode.none
    session.ask = secured.authenticated("other")
    (part,) = session.fetch()
    assert part.error_code is NO_TOPIC


def test_a_fetch_waits_for_its_other_partitions_if_one_is_denied(
    secured: Secured, let: Callable[..., None]
) -> None:
    topics = [{"name": "granted", "num_partitions": 1, "replication_factor": 1}]
    assert not errors_of(secured.authenticated("admin")("CreateTopics", 7, topics=topics, timeout=10_000))
    let(binding("writer", READ, TOPIC, ORDERS))
    session = Session(secured.authenticated("writer"), max_wait=300)
    part, denied = session.fetch((ORDERS, 0, 0), ("granted", 0, 0), max_wait=0)
    assert (part.error_code, denied.error_code) == (ErrorCode.none, NO_TOPIC)
    for _ in range(2):
        began_s = time.monotonic()
        (denied,) = session.fetch((ORDERS, 0, part.high_watermark))
        assert denied.error_code is NO_TOPIC
        assert time.monotonic() - began_s >= 0.299
    let(binding("writer", READ, TOPIC, "granted"))
    (part,) = session.fetch()
    assert part.error_code is ErrorCode.none


def test_acls_of_elsewhere_are_in_force_within_a_second(secured: Secured) -> None:
    nobody = secured.authenticated("nobody")
    redis = secured.server.redis
    redis.hset("{korvet}:acls", b'[4,"kafka-cluster",3,"User:nobody","*",10,3]', b"")
    redis.hincrby("{korvet}:cluster", "security", 1)
    until(lambda: not errors_of(nobody("ListConfigResources", 1)), DEADLINE_S, "the ACL is in force")
    redis.hdel("{korvet}:acls", b'[4,"kafka-cluster",3,"User:nobody","*",10,3]')
    redis.hincrby("{korvet}:cluster", "security", 1)
    until(lambda: errors_of(nobody("ListConfigResources", 1)), DEADLINE_S, "the ACL is gone")


@versions("CreateAcls")
def test_every_version_makes_finds_and_deletes_acls(secured: Secured, version: int) -> None:
    admin = secured.authenticated("admin")
    name = f"acl-{version}"
    made = [
        binding("dave", READ, TOPIC, name),
        binding("dave", WRITE, TOPIC, name, deny=True),
        binding("dave", READ, TOPIC, name, prefixed=True),
        binding("dave", READ, TOPIC, ""),
    ]
    results = admin("CreateAcls", version, creations=made).results
    assert [each.error_code for each in results] == [*[ErrorCode.none] * 3, ErrorCode.invalid_request]
    assert results[3].error_message == "Invalid empty resource name"
    wanted = {**ANY_ACL, "resource_name_filter": name, "principal_filter": "User:dave"}
    found = admin("DescribeAcls", version, **wanted)
    listed = [
        (each.resource_type, each.resource_name, each.pattern_type, acl.operation, acl.permission_type)
        for each in found.resources
        for acl in each.acls
    ]
    literal, prefixed = int(PatternType.LITERAL), int(PatternType.PREFIXED)
    deny, allow = int(Permission.DENY), int(Permission.ALLOW)
    assert listed == [
        (2, name, literal, int(READ), allow),
        (2, name, literal, int(WRITE), deny),
        (2, name, prefixed, int(READ), allow),
    ]
    only = {**wanted, "pattern_type_filter": literal}
    unknown = {**wanted, "operation": 99}
    first, second, third = admin("DeleteAcls", version, filters=[only, unknown, wanted]).filter_results
    assert (len(first.matching_acls), len(third.matching_acls)) == (2, 3)
    assert second.error_code is ErrorCode.invalid_request
    assert admin("DescribeAcls", version, **wanted).resources == ()
    assert admin("DescribeAcls", version, **unknown).error_code is ErrorCode.invalid_request


def test_a_hidden_topic_is_not_seen_by_a_name_like_it(secured: Secured, let: Callable[..., None]) -> None:
    admin, nobody = secured.authenticated("admin"), secured.authenticated("guesser")
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("se.cret", "ope.n")]
    assert not errors_of(admin("CreateTopics", 7, topics=topics, timeout=10_000))
    alike = ("se_cret", "ope_n", "free_name")
    let(*(binding("guesser", DESCRIBE, TOPIC, name) for name in (*alike, "ope.n")))

    def errors(*, create: bool) -> list[ErrorCode]:
        asked = [{"name": name} for name in alike]
        told = nobody("Metadata", 12, topics=asked, allow_auto_topic_creation=create)
        assert [topic.name for topic in told.topics] == list(alike)
        return [topic.error_code for topic in told.topics]

    unknown, invalid = ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception
    assert errors(create=False) == [unknown, invalid, unknown]
    assert errors(create=True) == [NO_TOPIC] * 3
    let(*(binding("guesser", CREATE, TOPIC, name) for name in alike))
    assert errors(create=True) == [unknown, invalid, ErrorCode.none]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in alike[:2]]
    hidden, seen = nobody("CreateTopics", 7, topics=topics, timeout=10_000).topics
    assert (hidden.error_code, seen.error_code) == (invalid, invalid)
    assert "se.cret" not in hidden.error_message
    assert "ope.n" in seen.error_message


def test_offsets_in_a_transaction_ask_for_the_topics_first(
    secured: Secured, let: Callable[..., None]
) -> None:
    """The response reveals neither the transaction nor topics that the user may not read."""
    writer = secured.authenticated("writer")
    let(
        binding("writer", WRITE, ResourceType.TRANSACTIONAL_ID, "mover"),
        binding("writer", READ, GROUP, READERS),
        binding("writer", READ, TOPIC, ORDERS),
        binding("writer", READ, TOPIC, "missing"),
    )

    def errors(*names: str) -> list[ErrorCode]:
        part = {"partition_index": 0, "committed_offset": 1}
        answer = writer(
            "TxnOffsetCommit",
            5,
            **MOVER,
            group_id=READERS,
            generation_id=-1,
            topics=[{"name": name, "partitions": [part]} for name in names],
        )
        assert [topic.name for topic in answer.topics] == list(names)
        return [topic.partitions[0].error_code for topic in answer.topics]

    unknown = ErrorCode.unknown_topic_or_partition
    assert errors("hidden", "no-such-topic", "missing") == [NO_TOPIC, NO_TOPIC, unknown]
    assert errors(ORDERS) == [NO_PRODUCER]
    assert errors("hidden", ORDERS, "missing") == [NO_TOPIC, NO_PRODUCER, unknown]
    assert errors() == []


def test_without_an_authorizer_acls_are_disabled(ask: Client) -> None:
    disabled = {ErrorCode.security_disabled}
    assert errors_of(ask("DescribeAcls", 3, **ANY_ACL)) == disabled
    assert errors_of(ask("DeleteAcls", 3, filters=[ANY_ACL])) == disabled
    assert errors_of(ask("CreateAcls", 3, creations=[binding("x", READ, TOPIC, "t")])) == disabled
    assert errors_of(ask("SaslHandshake", 1, mechanism="PLAIN")) == {ErrorCode.illegal_sasl_state}
    assert frame("SaslAuthenticate", 2, 1, auth_bytes=b"")[:2] == KEYS["SaslAuthenticate"].to_bytes(2)
