"""Joining, syncing, leaving and falling silent: scenarios with their exact records and replies."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.messages import (
    HeartbeatRequest,
    JoinMember,
    JoinReply,
    LeaveReply,
    LeaveRequest,
    LeavingMember,
    SyncReply,
)
from korvet.groups.shard import GroupShard, NotLoaded
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from tests.unit.groups.driver import (
    NONE,
    RANGE,
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    Driver,
    commit_request,
    protocols,
    subscription,
)

KEY = GroupMetadataKey("g")
CREATED = (KEY, GroupMetadataValue("", 0, None, None, START_MS, ()))
SLOW = GroupConfig(initial_rebalance_delay_ms=3_000)


def stored(member_id: str, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id,
        None,
        "app",
        "/127.0.0.1",
        REBALANCE_MS,
        SESSION_MS,
        subscription("orders"),
        assignment,
    )


def test_first_member_from_join_to_leave() -> None:
    driver = Driver()
    sent_back = driver.join(needs_member_id=True)
    assert driver.replies[sent_back] == JoinReply(ErrorCode.member_id_required, "app-1")
    assert driver.log == [CREATED]
    joined = driver.join("app-1", needs_member_id=True)
    assert joined not in driver.replies
    assert driver.shard.next_deadline_ms() == START_MS + 100
    assert driver.advance(100) == []
    members = (JoinMember("app-1", None, RANGE[0].metadata),)
    assert driver.replies[joined] == JoinReply(NONE, "app-1", 1, "consumer", "range", "app-1", False, members)
    driver.advance(5)
    synced = driver.sync("app-1", 1, {"app-1": b"all"}, protocol_type="consumer", protocol_name="range")
    assert driver.replies[synced] == SyncReply(NONE, "consumer", "range", b"all")
    stable = GroupMetadataValue("consumer", 1, "range", "app-1", START_MS + 100, (stored("app-1", b"all"),))
    assert driver.log[1:] == [(KEY, stable)]
    driver.advance(5)
    assert driver.leave("app-1") == [NONE]
    assert driver.log[2:] == [(KEY, GroupMetadataValue("consumer", 2, None, None, START_MS + 110, ()))]
    assert driver.state() == "Empty"


def test_initial_rebalance_is_extended_by_joins_but_not_past_the_rebalance_timeout() -> None:
    driver = Driver(SLOW)
    tokens = [driver.join(rebalance_timeout_ms=7_000)]
    for _ in range(2):
        driver.advance(2_000)
        tokens.append(driver.join(rebalance_timeout_ms=7_000))
    driver.advance(2_500)  # 6.5 s: one delay and its extension are over, a second one is under way
    assert not driver.replies
    tokens.append(driver.join(rebalance_timeout_ms=7_000))
    driver.advance(500)
    assert [driver.replies[token].generation_id for token in tokens] == [1] * 4


def test_initial_rebalance_without_more_members_ends_after_one_delay() -> None:
    driver = Driver(SLOW)
    token = driver.join()
    driver.advance(2_999)
    assert token not in driver.replies
    driver.advance(1)
    assert driver.replies[token].generation_id == 1


def test_id_that_was_given_out_is_waited_for_until_its_session_ends() -> None:
    driver = Driver()
    (leader,) = driver.stable("a")
    driver.join(client_id="b", needs_member_id=True)
    rejoined = driver.join(leader)
    driver.advance(SESSION_MS - 1)
    assert rejoined not in driver.replies
    driver.advance(1)
    assert driver.replies[rejoined].generation_id == 2
    assert driver.replies[driver.join("b-2")].error is ErrorCode.unknown_member_id


def test_pending_id_can_leave() -> None:
    driver = Driver()
    (leader,) = driver.stable("a")
    driver.join(client_id="b", needs_member_id=True)
    rejoined = driver.join(leader)
    assert driver.leave("b-2") == [NONE]
    assert driver.replies[rejoined].generation_id == 2


def test_silent_member_is_removed_and_the_rest_rebalances() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(leader, 1) is NONE
    driver.advance(1)
    assert driver.heartbeat(follower, 1) is ErrorCode.unknown_member_id
    assert driver.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    joined = driver.join(leader)
    assert driver.replies[joined].generation_id == 2
    assert [member.member_id for member in driver.replies[joined].members] == [leader]


def test_last_silent_member_leaves_an_empty_group() -> None:
    driver = Driver()
    driver.stable("a")
    silent_ms = driver.now_ms
    records = driver.advance(SESSION_MS)
    assert records == [(KEY, GroupMetadataValue("consumer", 2, None, None, silent_ms + SESSION_MS, ()))]


def test_member_that_does_not_rejoin_is_out_after_the_rebalance_timeout() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    rejoined = driver.join(follower, protocols=protocols("range", topics=("more",)))
    for _ in range(REBALANCE_MS // 5_000):
        assert rejoined not in driver.replies
        assert driver.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
        driver.advance(5_000)
    reply = driver.replies[rejoined]
    assert (reply.generation_id, reply.leader, len(reply.members)) == (2, follower, 1)
    assert driver.heartbeat(leader, 1) is ErrorCode.unknown_member_id


def test_member_that_does_not_sync_is_out_after_the_rebalance_timeout() -> None:
    driver = Driver()
    tokens = [driver.join(client_id=name, session_timeout_ms=300_000) for name in ("a", "b")]
    driver.pass_initial_delay()
    leader, follower = (driver.replies[token].member_id for token in tokens)
    driver.sync(leader, 1, {leader: b"x"})
    assert driver.state() == "Stable"
    driver.advance(REBALANCE_MS)
    assert driver.heartbeat(follower, 1) is ErrorCode.unknown_member_id
    assert driver.state() == "PreparingRebalance"


def test_waiting_sync_ends_when_a_rebalance_begins() -> None:
    driver = Driver()
    tokens = [driver.join(client_id=name) for name in ("a", "b")]
    driver.pass_initial_delay()
    waiting = driver.sync(driver.replies[tokens[1]].member_id, 1)
    driver.join(client_id="c")
    assert driver.replies[waiting] == SyncReply(ErrorCode.rebalance_in_progress)


def test_waiting_sync_of_a_leaver_is_answered() -> None:
    driver = Driver()
    tokens = [driver.join(client_id=name) for name in ("a", "b")]
    driver.pass_initial_delay()
    follower = driver.replies[tokens[1]].member_id
    waiting = driver.sync(follower, 1)
    driver.leave(follower)
    assert driver.replies[waiting] == SyncReply(ErrorCode.unknown_member_id)


def test_member_without_assignment_gets_an_empty_one_and_strangers_none() -> None:
    driver = Driver()
    tokens = [driver.join(client_id=name) for name in ("a", "b")]
    driver.pass_initial_delay()
    leader, follower = (driver.replies[token].member_id for token in tokens)
    waiting = driver.sync(follower, 1)
    driver.sync(leader, 1, {leader: b"x", "stranger": b"y"})
    assert driver.replies[waiting].assignment == b""
    value = driver.log[-1][1]
    assert isinstance(value, GroupMetadataValue)
    assert [(member.member_id, member.assignment) for member in value.members] == [
        (leader, b"x"),
        (follower, b""),
    ]


def test_new_member_that_waits_too_long_must_come_again() -> None:
    """Its client may be long gone; without this a member would stay for each attempt of its."""
    driver = Driver(GroupConfig(new_member_join_timeout_ms=20_000))
    leader = driver.stable("a")[0]
    waiting = driver.join(client_id="b")
    for _ in range(4):
        driver.heartbeat(leader, 1)
        driver.advance(5_000)
    assert driver.replies[waiting] == JoinReply(ErrorCode.unknown_member_id)


def test_join_twice_answers_the_first_with_rebalance_in_progress() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    first = driver.join(leader)
    second = driver.join(leader)
    assert driver.replies[first] == JoinReply(ErrorCode.rebalance_in_progress, leader)
    assert second not in driver.replies
    driver.join(follower)
    assert driver.replies[second].generation_id == 2


def test_client_that_goes_away_while_it_waits_gets_no_reply_but_stays_a_member() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    gone = driver.join(leader)
    driver.shard.disconnect(gone)
    joined = driver.join(follower)
    assert driver.replies[joined].generation_id == 2
    assert driver.replies[joined].leader == leader
    assert gone not in driver.replies
    driver.advance(SESSION_MS)
    assert driver.heartbeat(leader, 2) is ErrorCode.unknown_member_id


def test_protocol_with_most_votes_among_those_that_all_support() -> None:
    driver = Driver()
    tokens = [
        driver.join(client_id=str(number), protocols=protocols(*names))
        for number, names in enumerate((("own", "a", "b"), ("b", "a"), ("b", "a", "other")))
    ]
    driver.pass_initial_delay()
    assert {driver.replies[token].protocol_name for token in tokens} == {"b"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"session_timeout_ms": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
    ],
)
def test_join_that_no_group_could_accept(fields: dict[str, object], error: ErrorCode) -> None:
    driver = Driver()
    token = driver.join("m", **({"group_id": "g"} | fields))  # type: ignore[arg-type]
    assert driver.replies[token] == JoinReply(error, "m")
    assert driver.log == []


def test_requests_with_an_empty_group_id() -> None:
    driver = Driver()
    leave = LeaveRequest("", (LeavingMember("m"),))
    assert driver.answer("leave", leave) == LeaveReply(ErrorCode.invalid_group_id)
    assert driver.answer("commit", commit_request(1, group_id="")).topics[0].partitions[0].error is NONE
    assert driver.fetched("") == {("orders", 0): 1}


def test_a_session_can_end_before_its_time() -> None:
    driver = Driver()
    leader, other = driver.stable("a", "b")
    end = HeartbeatRequest("g", -1, other)
    assert driver.answer("end_session", end).error is NONE
    assert driver.answer("end_session", end).error is ErrorCode.unknown_member_id
    assert driver.answer("end_session", HeartbeatRequest("nobody", -1, "a")).error is (
        ErrorCode.unknown_member_id
    )
    assert driver.heartbeat(other, 1) is ErrorCode.unknown_member_id
    assert driver.heartbeat(leader, 1) is ErrorCode.rebalance_in_progress
    token = driver.join(leader)
    assert driver.replies[token].generation_id == 2
    assert [each.member_id for each in driver.replies[token].members] == [leader]


def test_rebalance_timeout_of_version_0_is_the_session_timeout() -> None:
    driver = Driver()
    token = driver.join(rebalance_timeout_ms=-1)
    driver.pass_initial_delay()
    driver.sync(driver.replies[token].member_id, 1, {})
    value = driver.log[-1][1]
    assert isinstance(value, GroupMetadataValue)
    assert value.members[0].rebalance_timeout_ms == SESSION_MS


def test_full_group_takes_no_more_members() -> None:
    driver = Driver(GroupConfig(max_size=2))
    leader, _ = driver.stable("a", "b")
    assert driver.replies[driver.join(client_id="c")] == JoinReply(ErrorCode.group_max_size_reached)
    assert driver.state() == "Stable"
    assert driver.join(leader) not in driver.replies


def test_group_above_a_lowered_limit_loses_its_last_ones() -> None:
    members = Driver()
    ids = members.stable("a", "b", "c")
    driver = Driver(GroupConfig(max_size=2), log=members.log)
    assert driver.state() == "PreparingRebalance"
    tokens = [driver.join(member_id) for member_id in ids]
    assert driver.replies[tokens[2]].error is ErrorCode.group_max_size_reached
    driver.advance(REBALANCE_MS)
    assert [driver.replies[token].generation_id for token in tokens[:2]] == [2, 2]


def test_follower_that_joins_a_stable_group_unchanged_gets_the_generation() -> None:
    driver = Driver()
    leader, follower = driver.stable("a", "b")
    token = driver.join(follower)
    assert driver.replies[token] == JoinReply(NONE, follower, 1, "consumer", "range", leader)
    assert driver.replies[driver.sync(follower, 1)].assignment == b"for " + follower.encode()


def test_heartbeats_go_on_after_a_restart() -> None:
    before = Driver()
    leader, follower = before.stable("a", "b")
    before.commit(7, leader, 1)
    driver = Driver(log=before.log)
    assert driver.log == []
    assert driver.state() == "Stable"
    driver.advance(SESSION_MS - 1)
    assert driver.heartbeat(leader, 1) is NONE
    assert driver.heartbeat(follower, 1) is NONE
    assert driver.commit(8, follower, 1) is NONE
    assert driver.replies[driver.sync(follower, 1)].assignment == b"for " + follower.encode()
    assert driver.fetched() == {("orders", 0): 8}
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


# Lost generations


def test_generations_go_on_above_those_that_may_be_lost() -> None:
    stored_group = GroupMetadataValue("consumer", 3, None, None, START_MS, ())
    for least, expected in ((0, 4), (70, 70)):
        driver = Driver(log=[(KEY, stored_group)], least_generation=least)
        joined = driver.join()
        driver.advance(100)
        assert driver.replies[joined].generation_id == expected
        assert driver.leave(driver.replies[joined].member_id) == [NONE]
        again = driver.join()
        driver.advance(100)
        assert driver.replies[again].generation_id == expected + 2


# The shard


def test_shard_that_is_not_loaded_serves_nobody() -> None:
    shard = GroupShard(GroupConfig(), lambda: "x")
    with pytest.raises(NotLoaded):
        shard.tick(START_MS)


def test_record_of_somebody_else_replaces_the_group() -> None:
    driver = Driver()
    waiting = driver.join()
    driver.shard.replay(KEY, GroupMetadataValue("consumer", 9, "range", "m", 0, (stored("m", b"z"),)))
    assert driver.shard.next_deadline_ms() == driver.now_ms
    driver.take(driver.shard.tick(driver.now_ms))
    assert driver.replies[waiting].error is ErrorCode.unknown_member_id
    assert driver.heartbeat("m", 9) is NONE
    driver.shard.replay(KEY, None)
    assert driver.state() == "Dead"


def test_idle_members_cost_the_timers_nothing() -> None:
    """Heartbeats leave the heap alone: what is in it does not grow with their number."""
    driver = Driver()
    leader = driver.stable("a")[0]
    for _ in range(1_000):
        driver.advance(1)
        driver.heartbeat(leader, 1)
    heap = driver.shard._context.timers._heap
    assert len(heap) < 10
    assert driver.state() == "Stable"
