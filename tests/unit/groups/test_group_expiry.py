"""Deleting and expiring groups and offsets, and loading what remains: exact records and replies."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    DeletedGroup,
    DeleteRequest,
    FetchTopic,
    JoinProtocol,
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
from tests.unit.groups.driver import NONE, SESSION_MS, START_MS, Driver

ORDERS_0 = OffsetCommitKey("g", "orders", 0)
DAY_MS = 24 * 3_600_000
RETENTION_MS = GroupConfig().offsets_retention_ms
CHECK_MS = GroupConfig().offsets_retention_check_interval_ms


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


def test_the_offsets_of_deleted_topics_are_deleted() -> None:
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
        driver.now_ms += SESSION_MS * 1_000 - 1  # sessions end by ticks only, and there are none
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


def test_a_group_whose_member_id_is_never_used_expires() -> None:
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


def test_unknown_records_are_skipped() -> None:
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
