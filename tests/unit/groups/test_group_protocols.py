"""Groups with members of both protocols, and groups that change theirs (KIP-848)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig, MigrationPolicy
from korvet.offsets.consumer_protocol import Assignment, TopicPartitions, encode_assignment
from korvet.offsets.schema import GroupRecordKey
from tests.unit.groups.consumers import Consumer, FakeTopics, described
from tests.unit.groups.driver import Driver
from tests.unit.groups.test_consumer_groups import INTERVAL_MS, group_of, joined, make, settle


def test_empty_groups_change_their_protocol():
    driver, _ = make()
    assert driver.commit(5) is ErrorCode.none
    (one,) = joined(driver, "one")
    one.leave()
    driver.join("", needs_member_id=False)
    driver.advance(200)
    assert driver.described("g").state == "CompletingRebalance"
    assert (GroupRecordKey("g", 3), None) in driver.log
    assert driver.fetched("g") == {("orders", 0): 5}


@pytest.mark.parametrize("policy", [MigrationPolicy.DISABLED, MigrationPolicy.DOWNGRADE])
def test_upgrade_that_is_not_allowed(policy):
    driver, _ = make(GroupConfig(migration_policy=policy))
    driver.join("")
    reply = Consumer(driver, "one", "orders").join()
    assert reply.error is ErrorCode.group_id_not_found
    assert "online upgrade is disabled" in reply.error_message


def test_upgrade_of_a_group_that_cannot_be_read():
    driver, _ = make()
    driver.join("", protocol_type="connect")
    assert Consumer(driver, "one", "orders").join().error is ErrorCode.group_id_not_found


def test_upgrade_ends_the_waiting_joins():
    driver, _ = make()
    token = driver.join("")
    assert token not in driver.replies
    assert Consumer(driver, "one", "orders").join().error is ErrorCode.none
    driver.advance(0)
    assert driver.replies[token].error is ErrorCode.rebalance_in_progress
    assert {member.is_classic for member in described(driver).members} == {True, False}


def test_upgrade_in_the_first_join_phase_gives_the_member_an_epoch():
    driver, _ = make()
    driver.join("", group_instance_id="static")
    one = Consumer(driver, "one", "orders", instance_id="static")
    assert one.join().member_epoch > 0
    assert one.beat().error is ErrorCode.none


def test_upgrade_by_a_returning_static_member_assigns_partitions_that_the_classic_group_lacked():
    driver, topics = make(orders=1)
    token = driver.join("", group_instance_id="static")
    driver.advance(1_000)
    member_id = driver.replies[token].member_id
    given = encode_assignment(Assignment((TopicPartitions("orders", (0,)),)))
    driver.sync(member_id, 1, {member_id: given}, group_instance_id="static")
    topics.set("orders", 2)
    one = Consumer(driver, "one", "orders", instance_id="static")
    one.join()
    settle(driver, one)
    assert one.partitions("orders") == [0, 1]


def test_without_downgrade_classic_members_stay_in_the_consumer_group():
    driver, _ = make(GroupConfig(migration_policy=MigrationPolicy.UPGRADE))
    (one,) = joined(driver, "one")
    token = driver.join("")
    member_id = driver.replies[token].member_id
    one.leave()
    assert set(group_of(driver).members) == {member_id}
    assert driver.leave(member_id) == [ErrorCode.none]
    assert described(driver).state == "Empty"


def test_classic_member_in_a_consumer_group():
    driver, _ = make()
    (one,) = joined(driver, "one")
    assert driver.heartbeat("one", one.epoch) is ErrorCode.unknown_member_id
    assert driver.replies[driver.join("", protocol_type="connect")].error is (
        ErrorCode.inconsistent_group_protocol
    )
    asked = driver.replies[driver.join("", needs_member_id=True)]
    assert asked.error is ErrorCode.member_id_required
    driver.advance(INTERVAL_MS)
    reply = driver.replies[driver.join(asked.member_id)]
    assert (reply.error, reply.generation_id) == (ErrorCode.none, 3)
    one.beat()
    one.beat()
    assert driver.heartbeat(asked.member_id, 3) is ErrorCode.rebalance_in_progress
    assert driver.heartbeat(asked.member_id, 2) is ErrorCode.illegal_generation
    assert driver.commit(1, asked.member_id, 2) is ErrorCode.illegal_generation
    assert driver.commit(1, asked.member_id, 3) is ErrorCode.none
    assert driver.replies[driver.join(asked.member_id)].generation_id == 3
    assert driver.replies[driver.sync(asked.member_id, 3)].error is ErrorCode.none
    assert driver.heartbeat(asked.member_id, 3) is ErrorCode.none


def test_classic_member_that_does_not_join_again_is_out():
    driver, _ = make()
    one, two = joined(driver, "one", "two")
    member_id = driver.replies[driver.join("", rebalance_timeout_ms=10_000)].member_id
    driver.advance(INTERVAL_MS)
    for _ in range(8):
        driver.advance(2_000)
        one.beat()
        two.beat()
        if member_id in group_of(driver).members:
            driver.heartbeat(member_id, group_of(driver).members[member_id].epoch)
    assert set(group_of(driver).members) == {"one", "two"}


def test_downgrade_by_a_returning_static_member_elects_a_leader():
    driver, _ = make()
    joined(driver, "one", instance_id="static")
    reply = driver.replies[driver.join("", group_instance_id="static")]
    assert reply.error is ErrorCode.none
    driver.advance(1)
    member_id = reply.member_id
    assert driver.heartbeat(member_id, reply.generation_id, "static") is ErrorCode.rebalance_in_progress
    again = driver.replies[driver.join(member_id, group_instance_id="static")]
    assert (again.error, again.leader) == (ErrorCode.none, member_id)


def test_a_classic_member_that_comes_back_has_no_deadline_of_its_former_session():
    """The member was removed because it did not join in time, although it sent heartbeats."""
    driver = Driver(topics=FakeTopics({"orders": 4}))
    modern = Consumer(driver, "modern", "orders")
    modern.join()

    def join_again(rebalance_timeout_ms: int) -> int:
        reply = driver.replies[driver.join("old", rebalance_timeout_ms=rebalance_timeout_ms)]
        assert reply.error is ErrorCode.none
        driver.sync("old", reply.generation_id)
        return reply.generation_id

    def beat(generation: int) -> ErrorCode:
        driver.advance(1_000)
        modern.send()
        return driver.heartbeat("old", generation)

    generation = join_again(4_000)
    while beat(generation) is not ErrorCode.unknown_member_id:
        pass
    generation = join_again(60_000)
    for _ in range(30):
        error = beat(generation)
        if error is ErrorCode.rebalance_in_progress:
            generation = join_again(60_000)
        else:
            assert error is ErrorCode.none
