"""Committing, fetching, deleting and expiring offsets: scenarios with their exact records and replies."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    CommitPartition,
    CommitReply,
    CommitRequest,
    CommitTopic,
    DeletedGroup,
    DeleteRequest,
    DescribedGroup,
    DescribeRequest,
    FetchedPartition,
    FetchedTopic,
    FetchReply,
    FetchRequest,
    FetchTopic,
    JoinProtocol,
    ListedGroup,
    ListRequest,
    OffsetDeleteRequest,
    PartitionResult,
    TopicResult,
)
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownKey,
    UnknownValue,
)
from tests.unit.groups.driver import NONE, SESSION_MS, START_MS, Driver, commit_request

ORDERS_0 = OffsetCommitKey("g", "orders", 0)
TOPIC_ID = bytes(range(16))
DAY_MS = 24 * 3_600_000
RETENTION_MS = GroupConfig().offsets_retention_ms
CHECK_MS = GroupConfig().offsets_retention_check_interval_ms


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
    errors = (NONE, ErrorCode.offset_metadata_too_large, unknown, ErrorCode.offset_metadata_too_large)
    results = tuple(PartitionResult(number, error) for number, error in enumerate(errors))
    assert reply == CommitReply((TopicResult("orders", results),))
    assert [key for key, _ in driver.log] == [ORDERS_0]


def test_checks_of_the_group_come_before_those_of_a_partition() -> None:
    driver = Driver()
    leader = driver.stable("a")[0]
    refused = ErrorCode.unknown_topic_or_partition
    assert driver.commit(1, "stranger", 0, refusal=refused) is ErrorCode.unknown_member_id
    assert driver.commit(1, leader, 0, refusal=refused) is ErrorCode.illegal_generation
    assert driver.commit(1, leader, 1, refusal=refused) is refused


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
def test_who_names_a_member_is_fenced_by_it_in_a_transaction(
    member: str, generation: int, instance: str | None, error: ErrorCode
) -> None:
    driver = Driver()
    (right,) = driver.stable("app")
    named = right if member == "right" else member
    fields = {"group_instance_id": instance, "producer": PRODUCER}
    assert driver.commit(7, named, generation, **fields) is error


def test_a_generation_of_a_group_that_there_is_not() -> None:
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


def test_transaction_yields_to_what_was_committed_meanwhile_or_when_aborted() -> None:
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


def test_what_a_list_tells_of_a_group() -> None:
    driver = Driver()
    driver.stable("a")
    driver.commit(1, group_id="s")
    assert driver.answer("list_groups", ListRequest()).groups == (
        ListedGroup("g", "consumer", "Stable", "classic"),
        ListedGroup("s", "", "Empty", "classic"),
    )


# DeleteGroups, OffsetDelete, deleted topics


def test_deleted_group_leaves_tombstones() -> None:
    driver = Driver()
    driver.commit(1)
    driver.commit(1, topic="bills", partition=3)
    driver.shard.replay(OffsetCommitKey("g", "pending", 0), OffsetCommitValue(9), producer_id=5)
    before = len(driver.log)
    reply = driver.answer("delete_groups", DeleteRequest(("g", "nobody", "g")))
    assert reply.groups == (
        DeletedGroup("g", NONE),
        DeletedGroup("nobody", ErrorCode.group_id_not_found),
        DeletedGroup("g", NONE),
    )
    assert driver.log[before:] == [
        (ORDERS_0, None),
        (OffsetCommitKey("g", "bills", 3), None),
        (OffsetCommitKey("g", "pending", 0), None),
        (GroupMetadataKey("g"), None),
    ]
    assert (driver.state(), driver.fetched()) == ("Dead", {})


def test_ids_given_out_by_a_deleted_group_are_void() -> None:
    driver = Driver()
    driver.join(needs_member_id=True)
    driver.answer("delete_groups", DeleteRequest(("g",)))
    assert driver.replies[driver.join("app-1")].error is ErrorCode.unknown_member_id
    driver.advance(SESSION_MS)
    assert driver.state() == "Dead"


def test_offsets_of_topics_that_are_read_stay() -> None:
    driver = Driver()
    leader = driver.stable("a", topics=("orders",))[0]
    driver.commit(1, leader, 1)
    driver.commit(1, leader, 1, topic="bills")
    topics = (FetchTopic("orders", (0,)), FetchTopic("bills", (0, 1)))
    before = len(driver.log)
    reply = driver.answer("delete_offsets", OffsetDeleteRequest("g", topics))
    assert reply.error is NONE
    assert reply.topics == (
        TopicResult("orders", (PartitionResult(0, ErrorCode.group_subscribed_to_topic),)),
        TopicResult("bills", (PartitionResult(0, NONE), PartitionResult(1, NONE))),
    )
    assert driver.log[before:] == [(OffsetCommitKey("g", "bills", 0), None)]


def test_offsets_of_other_than_consumers_can_be_deleted_from_empty_groups_only() -> None:
    driver = Driver()
    driver.join(protocol_type="connect")
    driver.pass_initial_delay()
    request = OffsetDeleteRequest("g", (FetchTopic("orders", (0,)),))
    assert driver.answer("delete_offsets", request).error is ErrorCode.non_empty_group
    driver.leave("app-1")
    assert driver.answer("delete_offsets", request).error is NONE
    assert driver.answer("delete_offsets", OffsetDeleteRequest("", ())).error is ErrorCode.invalid_group_id


def test_consumers_with_unreadable_subscriptions_may_read_anything() -> None:
    driver = Driver()
    token = driver.join(protocols=())
    assert driver.replies[token].error is ErrorCode.inconsistent_group_protocol
    token = driver.join(protocols=(JoinProtocol("range", b"\x00\x00\x00\x00\x00\x09oops"),))
    driver.pass_initial_delay()
    driver.sync(driver.replies[token].member_id, 1, {})
    reply = driver.answer("delete_offsets", OffsetDeleteRequest("g", (FetchTopic("orders", (0,)),)))
    assert reply.topics[0].partitions[0].error is ErrorCode.group_subscribed_to_topic


def test_deleted_topics_take_their_offsets_with_them() -> None:
    driver = Driver()
    for group_id in ("g", "h"):
        driver.commit(1, group_id=group_id)
        driver.commit(1, group_id=group_id, topic="bills")
    records = driver.take(driver.shard.delete_topics(["orders"], driver.now_ms))
    assert records == [(ORDERS_0, None), (OffsetCommitKey("h", "orders", 0), None)]
    assert driver.fetched("h") == {("bills", 0): 1}


# Expiry (KIP-211)


def test_offsets_of_a_simple_group_expire_after_their_commit_and_the_group_with_the_last() -> None:
    driver = Driver()
    driver.commit(1)
    driver.advance(DAY_MS)
    driver.commit(1, partition=1)
    assert driver.advance(RETENTION_MS - DAY_MS - CHECK_MS) == []
    assert driver.advance(CHECK_MS) == [(ORDERS_0, None)]
    assert driver.advance(DAY_MS) == [
        (OffsetCommitKey("g", "orders", 1), None),
        (GroupMetadataKey("g"), None),
    ]
    assert driver.state() == "Dead"
    assert driver.advance(DAY_MS) == []


def test_offsets_of_a_group_that_had_members_expire_after_it_became_empty() -> None:
    driver = Driver()
    leader = driver.stable("a")[0]
    driver.commit(1, leader, 1)
    for _ in range(8 * DAY_MS // (SESSION_MS * 1_000)):
        driver.now_ms += SESSION_MS * 1_000 - 1  # nobody ticks: sessions end by ticks only
        assert driver.heartbeat(leader, 1) is NONE
    driver.advance(CHECK_MS)  # its session ends
    assert driver.state() == "Empty"
    assert driver.advance(RETENTION_MS - 2 * CHECK_MS) == []
    assert driver.advance(2 * CHECK_MS) == [(ORDERS_0, None), (GroupMetadataKey("g"), None)]


def test_a_group_that_gave_out_a_member_id_does_not_expire_before_its_owner_is_back() -> None:
    driver = Driver()
    driver.advance(CHECK_MS - 1)
    driver.join(client_id="a", needs_member_id=True)
    assert driver.advance(1) == []
    joined = driver.join("a-1")
    driver.advance(GroupConfig().initial_rebalance_delay_ms)
    assert (driver.replies[joined].error, driver.replies[joined].generation_id) == (NONE, 1)


def test_a_group_whose_member_id_nobody_came_back_with_expires() -> None:
    driver = Driver()
    driver.advance(CHECK_MS - 1)
    driver.join(client_id="a", needs_member_id=True)
    driver.advance(1)
    assert driver.state() == "Empty"
    assert driver.advance(CHECK_MS) == [(GroupMetadataKey("g"), None)]
    assert driver.state() == "Dead"


def test_stable_group_loses_old_offsets_of_topics_that_it_does_not_read() -> None:
    config = GroupConfig(max_session_timeout_ms=100 * DAY_MS)
    driver = Driver(config)
    token = driver.join(session_timeout_ms=100 * DAY_MS)
    driver.pass_initial_delay()
    leader = driver.replies[token].member_id
    driver.sync(leader, 1, {})
    driver.commit(1, leader, 1)
    driver.commit(1, leader, 1, topic="bills")
    assert driver.advance(RETENTION_MS + CHECK_MS) == [(OffsetCommitKey("g", "bills", 0), None)]
    assert driver.state() == "Stable"


def test_commit_with_its_own_retention_ends_by_that() -> None:
    driver = Driver()
    driver.commit(1, retention_time_ms=2 * DAY_MS)
    driver.commit(1, partition=1)
    assert driver.advance(2 * DAY_MS - CHECK_MS) == []
    assert driver.advance(CHECK_MS) == [(ORDERS_0, None)]
    driver.commit(2, retention_time_ms=100 * DAY_MS)
    driver.advance(2 * RETENTION_MS)
    assert driver.fetched() == {("orders", 0): 2}


def test_offsets_in_an_open_transaction_keep_the_group() -> None:
    driver = Driver()
    driver.commit(1)
    driver.shard.replay(ORDERS_0, OffsetCommitValue(9), producer_id=5)
    assert driver.advance(RETENTION_MS + CHECK_MS) == []
    driver.shard.end_transaction(5, committed=False)
    assert driver.advance(CHECK_MS) == [(ORDERS_0, None), (GroupMetadataKey("g"), None)]


def test_empty_group_without_offsets_goes_with_the_next_check() -> None:
    driver = Driver()
    driver.stable("a")
    driver.advance(2 * SESSION_MS)
    assert driver.state() == "Empty"
    assert driver.advance(CHECK_MS) == [(GroupMetadataKey("g"), None)]


# Replay


def test_records_that_we_do_not_know_are_skipped() -> None:
    unknown = UnknownValue(99, b"future")
    records = [
        (UnknownKey(3, b"x"), None),
        (UnknownKey(3, b"x"), UnknownValue(0, b"y")),
        (ORDERS_0, unknown),
        (GroupMetadataKey("g"), unknown),
    ]
    driver = Driver(log=records)
    assert driver.answer("list_groups", ListRequest()).groups == ()


def test_offsets_that_outlive_their_group_are_found_and_expire() -> None:
    value = OffsetCommitValue(5, commit_timestamp_ms=START_MS)
    driver = Driver(log=[(ORDERS_0, value), (GroupMetadataKey("g"), None)])
    assert driver.fetched() == {("orders", 0): 5}
    assert driver.advance(RETENTION_MS + CHECK_MS) == [(ORDERS_0, None), (GroupMetadataKey("g"), None)]


def test_simple_group_without_offsets_is_not_loaded() -> None:
    driver = Driver(log=[(ORDERS_0, OffsetCommitValue(5)), (ORDERS_0, None)])
    assert driver.state() == "Dead"


def test_old_record_without_state_timestamp_expires_by_commit() -> None:
    group = GroupMetadataValue("consumer", 3, None, None, -1, ())
    value = OffsetCommitValue(5, commit_timestamp_ms=START_MS - RETENTION_MS + DAY_MS)
    driver = Driver(log=[(GroupMetadataKey("g"), group), (ORDERS_0, value)])
    assert driver.advance(DAY_MS - CHECK_MS) == []
    assert driver.advance(CHECK_MS) == [(ORDERS_0, None), (GroupMetadataKey("g"), None)]
