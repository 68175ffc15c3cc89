"""Static members (KIP-345): scenarios with their exact records and replies."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.messages import JoinReply, LeaveReply, LeaveRequest, LeavingMember, LeftMember, SyncReply
from korvet.offsets.schema import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from tests.unit.groups.driver import (
    NONE,
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    protocols,
    subscription,
)

KEY = GroupMetadataKey("g")


def static(driver: Driver, *instances: str) -> list[str]:
    tokens = [driver.join(group_instance_id=instance) for instance in instances]
    driver.pass_initial_delay()
    ids = [driver.replies[token].member_id for token in tokens]
    for member_id in reversed(ids):
        driver.sync(member_id, 1, {each: b"for " + each.encode() for each in ids})
    return ids


def test_static_member_returns_without_a_rebalance() -> None:
    driver = Driver()
    leader, follower = static(driver, "i", "k")
    assert (leader, follower) == ("i-1", "k-2")
    stable_ms = driver.now_ms
    driver.advance(1_000)
    records_before = len(driver.log)
    token = driver.join(group_instance_id="k", client_id="other", session_timeout_ms=20_000)
    assert driver.replies[token] == JoinReply(NONE, "k-3", 1, "consumer", "range", "i-1")
    back = MemberMetadata(
        "k-3", "k", "app", "/127.0.0.1", REBALANCE_MS, 20_000, subscription("orders"), b"for k-2"
    )
    stayed = MemberMetadata(
        "i-1", "i", "app", "/127.0.0.1", REBALANCE_MS, SESSION_MS, subscription("orders"), b"for i-1"
    )
    value = GroupMetadataValue("consumer", 1, "range", "i-1", stable_ms, (stayed, back))
    assert driver.log[records_before:] == [(KEY, value)]
    assert driver.state() == "Stable"
    assert driver.heartbeat(follower, 1, "k") is ErrorCode.fenced_instance_id
    assert driver.heartbeat(follower, 1) is ErrorCode.unknown_member_id
    assert driver.commit(1, follower, 1, group_instance_id="k") is ErrorCode.fenced_instance_id
    assert driver.replies[driver.sync("k-3", 1, group_instance_id="k")].assignment == b"for k-2"


@pytest.mark.parametrize("can_skip", [False, True])
def test_static_leader_returns(can_skip: bool) -> None:
    """Since KIP-814 it gets the members, but does not assign. Before, the response names another leader."""
    driver = Driver()
    static(driver, "i", "k")
    reply = driver.replies[driver.join(group_instance_id="i", can_skip_assignment=can_skip)]
    assert (reply.error, reply.generation_id, reply.member_id) == (NONE, 1, "i-3")
    assert reply.skip_assignment is can_skip
    assert reply.leader == ("i-3" if can_skip else "i-1")
    assert [member.member_id for member in reply.members] == (["k-2", "i-3"] if can_skip else [])


def test_static_member_that_changes_the_chosen_protocol_causes_a_rebalance() -> None:
    driver = Driver()
    tokens = [driver.join(group_instance_id=name, protocols=protocols("range", "b")) for name in ("i", "k")]
    driver.pass_initial_delay()
    driver.sync(driver.replies[tokens[0]].member_id, 1, {})
    driver.sync(driver.replies[tokens[1]].member_id, 1)
    waiting = driver.join(group_instance_id="k", protocols=protocols("b"))
    assert waiting not in driver.replies
    assert driver.state() == "PreparingRebalance"


def test_static_member_that_returns_while_the_leader_assigns_causes_a_rebalance() -> None:
    driver = Driver()
    tokens = [driver.join(group_instance_id=name) for name in ("i", "k")]
    driver.pass_initial_delay()
    leader, follower = (driver.replies[token].member_id for token in tokens)
    waiting = driver.sync(follower, 1, group_instance_id="k")
    driver.join(group_instance_id="k")
    assert driver.replies[waiting] == SyncReply(ErrorCode.fenced_instance_id)
    assert driver.replies[driver.sync(leader, 1)].error is ErrorCode.rebalance_in_progress


def test_static_member_that_returns_during_a_rebalance_fences_its_former_self() -> None:
    driver = Driver()
    leader, follower = static(driver, "i", "k")
    former = driver.join(follower, group_instance_id="k", protocols=protocols("range", topics=("more",)))
    back = driver.join(group_instance_id="k")
    assert driver.replies[former] == JoinReply(ErrorCode.fenced_instance_id, follower)
    driver.join(leader, group_instance_id="i")
    assert driver.replies[back].generation_id == 2


@pytest.mark.parametrize("is_assigning", [False, True])
@pytest.mark.parametrize("instance", ["i", "k"])
def test_static_member_that_returned_during_a_rebalance_is_known_after_a_load(
    instance: str, is_assigning: bool
) -> None:
    """FENCED_INSTANCE_ID would end its client."""
    driver = Driver()
    ids = dict(zip("ik", static(driver, "i", "k"), strict=True))
    (other,) = ids.keys() - {instance}

    def rejoin() -> None:
        driver.join(ids[other], group_instance_id=other, protocols=protocols("range", topics=("more",)))

    rejoin()
    # The process starts twice.
    driver.join(group_instance_id=instance)
    assert driver.state() == "CompletingRebalance"
    if not is_assigning:
        rejoin()
        driver.join(ids[other], group_instance_id=other, protocols=protocols("range", topics=("others",)))
        assert driver.state() == "PreparingRebalance"
    back = driver.join(group_instance_id=instance)
    if is_assigning:
        rejoin()
    joined = driver.replies[back]
    ids[instance] = joined.member_id
    loaded = Driver(log=driver.log)
    assert loaded.state() == "Stable"
    assert {each.group_instance_id: each.assignment for each in loaded.described().members} == {
        "i": b"for i-1",
        "k": b"for k-2",
    }
    assert [loaded.heartbeat(ids[each], 1, each) for each in "ik"] == [NONE, NONE]
    # For those who are there, the rebalance goes on.
    assert driver.state() == "CompletingRebalance"
    driver.sync(joined.leader, joined.generation_id, dict.fromkeys(ids.values(), b"next"))
    assert driver.state() == "Stable"
    assert Driver(log=driver.log).described().members[0].assignment == b"next"


def test_static_members_keep_their_place_when_they_miss_a_rebalance() -> None:
    driver = Driver()
    tokens = [driver.join(group_instance_id=name, session_timeout_ms=600_000) for name in ("i", "k")]
    driver.pass_initial_delay()
    leader, follower = (driver.replies[token].member_id for token in tokens)
    driver.sync(leader, 1, {})
    driver.sync(follower, 1)
    waiting = driver.join(leader, group_instance_id="i")
    driver.advance(REBALANCE_MS)
    assert [member.member_id for member in driver.replies[waiting].members] == [leader, follower]


def test_nobody_rejoins_a_group_of_static_members() -> None:
    driver = Driver()
    leader, follower = static(driver, "i", "k")
    driver.leave(leader)
    for _ in range(20):
        driver.heartbeat(follower, 1)
        driver.advance(SESSION_MS - 1)
    assert driver.state() == "PreparingRebalance"
    driver.advance(SESSION_MS)
    assert driver.state() == "Empty"


def test_administrator_removes_static_members_by_instance_id() -> None:
    driver = Driver()
    static(driver, "i", "k")
    leaving = (
        LeavingMember("", "k"),
        LeavingMember("", "nobody"),
        LeavingMember(""),
        LeavingMember("k-2", "i"),
    )
    reply = driver.answer("leave", LeaveRequest("g", leaving))
    assert reply.members == (
        LeftMember("", "k", NONE),
        LeftMember("", "nobody", ErrorCode.unknown_member_id),
        LeftMember("", None, ErrorCode.unknown_member_id),
        LeftMember("k-2", "i", ErrorCode.fenced_instance_id),
    )
    assert reply.first_error is NONE
    assert driver.state() == "PreparingRebalance"


def test_error_of_a_leave_reply_without_a_list() -> None:
    assert Driver().answer("leave", LeaveRequest("g", (LeavingMember("m"),))).first_error == (
        ErrorCode.unknown_member_id
    )
    assert LeaveReply(ErrorCode.invalid_group_id).first_error is ErrorCode.invalid_group_id
