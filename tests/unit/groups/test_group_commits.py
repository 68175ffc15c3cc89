"""Committing and fetching offsets, describing and listing groups: exact records and replies."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    CommitPartition,
    CommitReply,
    CommitRequest,
    CommitTopic,
    DescribedGroup,
    DescribeRequest,
    FetchedPartition,
    FetchedTopic,
    FetchReply,
    FetchRequest,
    FetchTopic,
    ListedGroup,
    ListRequest,
    PartitionResult,
    TopicResult,
)
from korvet.offsets.schema import (
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.unit.groups.driver import NONE, SESSION_MS, START_MS, Driver, commit_request

ORDERS_0 = OffsetCommitKey("g", "orders", 0)
TOPIC_ID = bytes(range(16))


# OffsetCommit


def test_simple_commit_writes_the_offset_and_no_group() -> None:
    driver = Driver()
    assert driver.commit(7, leader_epoch=3, metadata="note", topic_id=TOPIC_ID) is NONE
    assert driver.log == [(ORDERS_0, OffsetCommitValue(7, 3, "note", START_MS, version=3))]
    assert (driver.state(), driver.described().protocol_type) == ("Empty", "")


def test_absent_metadata_is_empty() -> None:
    driver = Driver()
    driver.commit(0, metadata=None)
    assert driver.log == [(ORDERS_0, OffsetCommitValue(0, commit_timestamp_ms=START_MS))]


def test_value_version_4_has_the_topic_id() -> None:
    driver = Driver(GroupConfig(commit_value_version=4))
    reply = driver.answer("commit", commit_request(7, topic_id=TOPIC_ID))
    value = OffsetCommitValue(7, commit_timestamp_ms=START_MS, topic_id=TOPIC_ID, version=4)
    assert driver.log == [(ORDERS_0, value)]
    assert reply.topics == (TopicResult("orders", (PartitionResult(0, NONE),), TOPIC_ID),)


def test_retention_of_a_request_makes_value_version_1() -> None:
    driver = Driver(GroupConfig(commit_value_version=4))
    driver.commit(7, retention_time_ms=0)
    value = OffsetCommitValue(7, commit_timestamp_ms=START_MS, expire_timestamp_ms=START_MS, version=1)
    assert driver.log == [(ORDERS_0, value)]


@pytest.mark.parametrize(
    ("metadata", "fits"),
    [
        ("x" * 10, True),
        ("x" * 11, False),
        ("\U0001f600" * 5, True),
        ("\U0001f600" * 5 + "x", False),
        ("é" * 10, True),
    ],
)
def test_metadata_is_measured_in_utf16_units(metadata: str, fits: bool) -> None:
    driver = Driver(GroupConfig(offset_metadata_max_units=10))
    assert driver.commit(1, metadata=metadata) is (NONE if fits else ErrorCode.offset_metadata_too_large)
    assert len(driver.log) == fits


def test_each_partition_has_its_own_answer_and_only_the_good_are_written() -> None:
    driver = Driver(GroupConfig(offset_metadata_max_units=3))
    unknown = ErrorCode.unknown_topic_or_partition
    partitions = (
        CommitPartition(0, 1),
        CommitPartition(1, 1, metadata="long"),
        CommitPartition(2, 1, refusal=unknown),
        CommitPartition(3, 1, metadata="long", refusal=unknown),
    )
    reply = driver.answer("commit", CommitRequest("g", (CommitTopic("orders", partitions),)))
    errors = (NONE, ErrorCode.offset_metadata_too_large, unknown, unknown)
    results = tuple(PartitionResult(number, error) for number, error in enumerate(errors))
    assert reply == CommitReply((TopicResult("orders", results),))
    assert [key for key, _ in driver.log] == [ORDERS_0]


@pytest.mark.parametrize(
    "refused", [ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed]
)
def test_what_the_broker_refuses_comes_before_the_checks_of_the_group(refused: ErrorCode) -> None:
    driver = Driver()
    leader = driver.stable("a")[0]
    for member, generation, error in [
        ("stranger", 0, ErrorCode.unknown_member_id),
        (leader, 0, ErrorCode.illegal_generation),
        (leader, 1, NONE),
    ]:
        assert driver.commit(1, member, generation) is error
        assert driver.commit(1, member, generation, refusal=refused) is refused


def test_commits_keep_the_session() -> None:
    driver = Driver()
    leader = driver.stable("a")[0]
    for offset in range(5):
        driver.advance(SESSION_MS - 1)
        assert driver.commit(offset, leader, 1) is NONE
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


# TxnOffsetCommit

PRODUCER = (77, 3)


def test_offsets_of_a_transaction_count_once_it_is_committed() -> None:
    driver = Driver()
    driver.commit(1)
    assert driver.commit(7, producer=PRODUCER) is NONE
    assert driver.log[-1] == (ORDERS_0, OffsetCommitValue(7, commit_timestamp_ms=START_MS, version=3))
    assert driver.fetched() == {("orders", 0): 1}
    (changed,) = driver.shard.end_transaction(77, committed=True)
    assert changed == (("g", "orders", 0), driver.log[-1][1])
    assert driver.fetched() == {("orders", 0): 7}


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    driver = Driver()
    driver.commit(7, producer=PRODUCER)
    assert driver.shard.end_transaction(77, committed=False) == []
    assert driver.fetched() == {}


def test_a_younger_commit_outlasts_a_transaction() -> None:
    driver = Driver()
    driver.commit(7, producer=PRODUCER)
    driver.commit(2)
    assert driver.shard.end_transaction(77, committed=True) == []
    assert driver.fetched() == {("orders", 0): 2}


@pytest.mark.parametrize(
    ("member", "generation", "instance", "error"),
    [
        ("", -1, None, NONE),
        ("right", 1, None, NONE),
        ("right", 2, None, ErrorCode.illegal_generation),
        ("right", -1, None, ErrorCode.illegal_generation),
        ("wrong", 1, None, ErrorCode.unknown_member_id),
        ("", 1, None, ErrorCode.unknown_member_id),
        ("", -1, "nobody", ErrorCode.unknown_member_id),
    ],
)
def test_a_named_member_is_checked_in_a_transaction(
    member: str, generation: int, instance: str | None, error: ErrorCode
) -> None:
    driver = Driver()
    (right,) = driver.stable("app")
    named = right if member == "right" else member
    fields = {"group_instance_id": instance, "producer": PRODUCER}
    assert driver.commit(7, named, generation, **fields) is error


def test_a_generation_of_an_unknown_group() -> None:
    driver = Driver()
    assert driver.commit(7, "m", 1, producer=PRODUCER) is ErrorCode.illegal_generation
    reply = driver.answer("commit", commit_request(7, group_id="", producer=PRODUCER))
    assert reply.topics[0].partitions[0].error is ErrorCode.invalid_group_id
    assert driver.log == []


# OffsetFetch


def test_fetch_of_some_partitions() -> None:
    driver = Driver()
    driver.commit(7, leader_epoch=2, metadata="note")
    topics = (FetchTopic("orders", (0, 1), TOPIC_ID), FetchTopic("bills", (0,)))
    reply = driver.answer("fetch", FetchRequest("g", topics))
    absent = FetchedPartition(0, -1, -1, "", NONE)
    orders = (FetchedPartition(0, 7, 2, "note"), FetchedPartition(1))
    assert reply == FetchReply(
        "g", NONE, (FetchedTopic("orders", orders, TOPIC_ID), FetchedTopic("bills", (absent,)))
    )


def test_fetch_of_an_unknown_group() -> None:
    driver = Driver()
    assert driver.answer("fetch", FetchRequest("g")) == FetchReply("g", NONE, ())
    reply = driver.answer("fetch", FetchRequest("g", (FetchTopic("orders", (4,)),)))
    assert reply.topics == (FetchedTopic("orders", (FetchedPartition(4),)),)


def test_fetch_during_a_transaction() -> None:
    driver = Driver()
    driver.commit(1)
    driver.shard.replay(ORDERS_0, OffsetCommitValue(9), producer_id=5)
    everything = (FetchTopic("orders", (0,)),)
    stable = (
        driver.answer("fetch", FetchRequest("g", everything, require_stable=True)).topics[0].partitions[0]
    )
    assert stable == FetchedPartition(0, error=ErrorCode.unstable_offset_commit)
    assert driver.fetched() == {("orders", 0): 1}
    driver.shard.end_transaction(5, committed=True)
    assert driver.fetched() == {("orders", 0): 9}


def test_a_transaction_yields_to_later_commits_and_ends_when_aborted() -> None:
    driver = Driver()
    driver.shard.replay(ORDERS_0, OffsetCommitValue(9), producer_id=5)
    driver.commit(2)
    driver.shard.end_transaction(5, committed=True)
    assert driver.fetched() == {("orders", 0): 2}
    driver.shard.replay(ORDERS_0, OffsetCommitValue(11), producer_id=5)
    driver.shard.end_transaction(5, committed=False)
    assert driver.fetched() == {("orders", 0): 2}


def test_tombstone_removes_pending_offsets_too() -> None:
    driver = Driver()
    driver.shard.replay(ORDERS_0, OffsetCommitValue(9), producer_id=5)
    driver.shard.replay(ORDERS_0, None)
    driver.shard.end_transaction(5, committed=True)
    assert driver.fetched() == {}


# DescribeGroups, ListGroups


def test_unknown_group_is_dead() -> None:
    driver = Driver()
    dead = DescribedGroup("g", NONE, None, "Dead", "", "", ())
    assert driver.answer("describe", DescribeRequest(("g",))).groups == (dead,)
    said = DescribedGroup("g", ErrorCode.group_id_not_found, "Group g not found.", "Dead", "", "", ())
    assert driver.answer("describe", DescribeRequest(("g",), knows_group_id_not_found=True)).groups == (said,)


def test_described_members_have_metadata_while_stable_only() -> None:
    driver = Driver()
    leader = driver.stable("a")[0]
    described = driver.described()
    assert (described.state, described.protocol_type, described.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert described.members[0].metadata
    assert described.members[0].assignment == b"for " + leader.encode()
    driver.join(client_id="b")
    described = driver.described()
    assert (described.state, described.protocol_data) == ("PreparingRebalance", "")
    assert [member.metadata for member in described.members] == [b"", b""]


@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [
        ((), (), {"g", "s"}),
        (("sTable",), (), {"g"}),
        (("Empty ", "Dead"), (), {"s"}),
        (("PreparingRebalance",), (), set()),
        ((), ("Classic",), {"g", "s"}),
        ((), ("consumer",), set()),
        (("Stable",), ("consumer", "classic"), {"g"}),
    ],
)
def test_listed_groups(states: tuple[str, ...], types: tuple[str, ...], listed: set[str]) -> None:
    driver = Driver()
    driver.stable("a")
    driver.commit(1, group_id="s")
    groups = driver.answer("list_groups", ListRequest(states, types)).groups
    assert {group.group_id for group in groups} == listed


def test_fields_of_a_listed_group() -> None:
    driver = Driver()
    driver.stable("a")
    driver.commit(1, group_id="s")
    assert driver.answer("list_groups", ListRequest()).groups == (
        ListedGroup("g", "consumer", "Stable", "classic"),
        ListedGroup("s", "", "Empty", "classic"),
    )
