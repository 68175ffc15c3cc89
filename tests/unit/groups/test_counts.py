"""What the coordinator counts for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.groups.config import GroupConfig
from korvet.groups.messages import DeleteRequest
from korvet.offsets.schema import GroupMetadataKey
from tests.unit.groups.consumers import Consumer, FakeTopics
from tests.unit.groups.driver import NONE, SESSION_MS, Driver

if TYPE_CHECKING:
    from korvet.groups.context import GroupCounts

DELAY_MS = GroupConfig().initial_rebalance_delay_ms


def counts_of(driver: Driver) -> GroupCounts:
    return driver.shard._context.counts


def stable(driver: Driver) -> str:
    """Let one member make the group stable; its member id."""
    token = driver.join(needs_member_id=False)
    driver.advance(DELAY_MS)
    member_id = str(driver.replies[token].member_id)
    driver.sync(member_id, 1, {member_id: b"mine"})
    assert driver.state() == "Stable"
    return member_id


def test_a_rebalance_is_counted_and_lasts_until_the_group_is_stable() -> None:
    driver = Driver()
    stable(driver)
    counts = counts_of(driver)
    assert (counts.joins, counts.syncs, counts.rebalances) == (1, 1, {"g": 1})
    assert counts.rebalance_seconds.count == 1
    assert counts.rebalance_seconds.sum == DELAY_MS / 1000


def test_a_rebalance_that_interrupts_another_one_belongs_to_it() -> None:
    driver = Driver()
    first = stable(driver)
    token = driver.join(needs_member_id=False)
    driver.advance(1_000)
    driver.join(first)
    second = driver.replies[token].member_id
    # Both wait for the assignment of the leader, and a third one comes.
    driver.advance(1_000)
    driver.join(needs_member_id=False)
    counts = counts_of(driver)
    assert counts.rebalances == {"g": 3}
    assert counts.rebalance_seconds.count == 1
    driver.advance(500)
    driver.join(first)
    driver.join(second)
    driver.sync(first, 3, {first: b"mine"})
    assert driver.state() == "Stable"
    assert counts.rebalance_seconds.count == 2
    assert counts.rebalance_seconds.sum == (DELAY_MS + 2_500) / 1000
    assert counts.expired_members == 0


def test_a_member_without_heartbeats_expires_and_one_that_leaves_does_not() -> None:
    driver = Driver()
    member = stable(driver)
    assert driver.heartbeat(member, 1) is NONE
    driver.advance(SESSION_MS)
    counts = counts_of(driver)
    assert (counts.heartbeats, counts.expired_members, counts.leaves) == (1, 1, 0)
    other = Driver()
    other.leave(stable(other))
    counts = counts_of(other)
    assert (counts.expired_members, counts.leaves) == (0, 1)


def test_a_new_epoch_of_a_consumer_group_is_a_rebalance() -> None:
    driver = Driver(topics=FakeTopics({"orders": 2}))
    interval_ms = GroupConfig().consumer_assignment_interval_ms
    first = Consumer(driver, "a", "orders")
    assert first.join().error is NONE
    counts = counts_of(driver)
    assert counts.joins == 1
    assert counts.rebalances == {"g": 1}
    assert counts.rebalance_seconds.count == 1
    second = Consumer(driver, "b", "orders")
    assert second.join().error is NONE
    assert counts.rebalances == {"g": 2}
    for _ in range(4):
        driver.advance(interval_ms)
        assert first.beat().error is NONE
        assert second.beat().error is NONE
    assert driver.shard.groups["g"].state_name == "Stable"
    assert counts.rebalance_seconds.count == 2
    assert counts.rebalance_seconds.sum > 0


def test_accepted_commits_are_counted() -> None:
    driver = Driver()
    driver.commit(7)
    driver.commit(8, metadata="x" * 100_000)
    driver.commit(9, generation=4)
    counts = counts_of(driver)
    assert counts.commits == {"g": 2}
    assert counts.committed_offsets == 1
    counts.keep({"other"})
    assert counts.commits == {}


def test_a_deleted_group_is_forgotten() -> None:
    driver = Driver()
    stable(driver)
    driver.commit(7, driver.replies[1].member_id, 1)
    counts = counts_of(driver)
    assert (counts.rebalances, counts.commits) == ({"g": 1}, {"g": 1})
    driver.advance(SESSION_MS)
    driver.ask("delete_groups", DeleteRequest(("g",)))
    assert "g" not in driver.shard.groups
    assert (counts.rebalances, counts.commits) == ({}, {})


def test_moved_offsets_are_those_since_the_last_call() -> None:
    driver = Driver()
    driver.commit(7)
    assert driver.shard.take_moved() is None
    assert driver.shard.take_moved() == set()
    driver.commit(8)
    assert driver.shard.take_moved() == {("g", "orders", 0)}
    assert driver.shard.take_moved() == set()
    assert not any(isinstance(key, GroupMetadataKey) for key, _ in driver.log)


def test_the_time_of_a_rebalance_during_which_the_clock_is_set() -> None:
    for by_ms in (-3_600_000, 3_600_000):
        driver = Driver()
        token = driver.join(needs_member_id=False)
        driver.now_ms += by_ms
        driver.shard.shift(by_ms)
        driver.advance(DELAY_MS)
        member_id = str(driver.replies[token].member_id)
        driver.sync(member_id, 1, {member_id: b"mine"})
        assert counts_of(driver).rebalance_seconds.sum == DELAY_MS / 1000
