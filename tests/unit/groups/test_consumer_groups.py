"""Consumer groups (KIP-848): joining, reconciling, fencing, time-outs, commits, restarts."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.consumer.group import ConsumerGroup
from korvet.groups.consumer.messages import OwnedTopic
from korvet.groups.messages import (
    DeleteRequest,
    FetchRequest,
    FetchTopic,
    HeartbeatRequest,
    ListRequest,
    OffsetDeleteRequest,
)
from korvet.offsets.group_records import ConsumerAssignment, OwnedPartitions
from korvet.offsets.schema import GroupMemberKey, GroupRegexKey
from tests.unit.groups.consumers import Consumer, FakeTopics, described, heartbeat, topic_id
from tests.unit.groups.driver import Driver

INTERVAL_MS = GroupConfig().consumer_assignment_interval_ms
SESSION_MS = GroupConfig().consumer_session_timeout_ms


def make(config: GroupConfig | None = None, **counts: int) -> tuple[Driver, FakeTopics]:
    topics = FakeTopics(counts or {"orders": 6})
    return Driver(config, topics=topics), topics


def group_of(driver: Driver, group_id: str = "g") -> ConsumerGroup:
    group = driver.shard._context.groups[group_id]
    assert isinstance(group, ConsumerGroup)
    return group


def settle(driver: Driver, *consumers: Consumer) -> None:
    """Send heartbeats until no member has anything left to do."""
    for _ in range(20):
        driver.advance(INTERVAL_MS)
        before = len(driver.log)
        for consumer in consumers:
            assert consumer.beat().error is ErrorCode.none
        if len(driver.log) == before and not any(consumer.changed for consumer in consumers):
            return
    raise AssertionError("the group does not settle")


def joined(driver: Driver, *names: str, **fields: Any) -> list[Consumer]:
    consumers = [Consumer(driver, name, "orders", **fields) for name in names]
    for consumer in consumers:
        assert consumer.join().error is ErrorCode.none
    settle(driver, *consumers)
    return consumers


def test_second_member_waits_until_the_first_has_given_up():
    driver, _ = make()
    (one,) = joined(driver, "one")
    assert (one.epoch, one.partitions("orders")) == (2, [0, 1, 2, 3, 4, 5])
    driver.advance(INTERVAL_MS)
    two = Consumer(driver, "two", "orders")
    assert two.join().assignment == ()
    assert described(driver).state == "Reconciling"
    one.beat()
    assert (one.epoch, one.partitions("orders")) == (2, [0, 1, 2])
    two.beat()
    assert two.partitions("orders") == []  # not before the first member has confirmed its revocation
    one.beat()
    two.beat()
    assert (one.epoch, two.epoch, two.partitions("orders")) == (3, 3, [3, 4, 5])
    assert described(driver).state == "Stable"


def test_assignments_are_an_interval_apart():
    driver, _ = make()
    one, two = Consumer(driver, "one", "orders"), Consumer(driver, "two", "orders")
    one.join()
    assert two.join().member_epoch == 2
    assert described(driver).state == "Assigning"
    driver.advance(INTERVAL_MS - 1)
    assert one.beat().assignment is None
    driver.advance(1)
    assert one.beat().assignment == (OwnedTopic(topic_id("orders"), (0, 1, 2)),)


def test_quiet_heartbeat_writes_nothing():
    driver, _ = make()
    (one,) = joined(driver, "one")
    before = len(driver.log)
    reply = one.beat()
    assert (reply.error, reply.assignment, reply.heartbeat_interval_ms) == (0, None, 5_000)
    assert len(driver.log) == before


REFUSED = {
    "no group": ({"group_id": ""}, ErrorCode.invalid_request),
    "no member id": ({"member_id": ""}, ErrorCode.invalid_request),
    "empty instance": ({"instance_id": " "}, ErrorCode.invalid_request),
    "empty rack": ({"rack_id": ""}, ErrorCode.invalid_request),
    "no time-out": ({"rebalance_timeout_ms": -1}, ErrorCode.invalid_request),
    "no subscription": ({"subscribed_topic_names": None}, ErrorCode.invalid_request),
    "no owned partitions": ({"owned": None}, ErrorCode.invalid_request),
    "owns something": ({"owned": (OwnedTopic(b"x" * 16, (0,)),)}, ErrorCode.invalid_request),
    "bad epoch": ({"epoch": -3}, ErrorCode.invalid_request),
    "static leave without instance": ({"epoch": -2}, ErrorCode.invalid_request),
    "assignor": ({"server_assignor": "sticky"}, ErrorCode.unsupported_assignor),
    "regex": ({"subscribed_topic_regex": "(a"}, ErrorCode.invalid_regular_expression),
    "look-ahead": ({"subscribed_topic_regex": "(?=a)b"}, ErrorCode.invalid_regular_expression),
    "unknown group": ({"epoch": 3}, ErrorCode.group_id_not_found),
    "leaves unknown group": ({"epoch": -1}, ErrorCode.group_id_not_found),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    changed, error = REFUSED[name]
    fields: dict[str, Any] = {
        "member_id": "m",
        "epoch": 0,
        "rebalance_timeout_ms": 1_000,
        "subscribed_topic_names": ("orders",),
        "owned": (),
    } | changed
    driver, _ = make()
    reply = driver.answer(
        "consumer_heartbeat", heartbeat(fields.pop("member_id"), fields.pop("epoch"), **fields)
    )
    assert reply.error is error
    assert reply.error_message
    assert driver.log == []


def test_fencing_by_epochs():
    driver, _ = make()
    one, _two = joined(driver, "one", "two")
    assert one.epoch == 3
    assert one.send(4).error is ErrorCode.fenced_member_epoch
    assert one.send(1).error is ErrorCode.fenced_member_epoch
    lost = [OwnedTopic(topic_id("orders"), (0,))]
    assert one.send(2, owned=tuple(lost)).error is ErrorCode.none  # the answer with epoch 3 was lost
    assert one.send(2, owned=(OwnedTopic(topic_id("orders"), (5,)),)).error is ErrorCode.fenced_member_epoch
    assert one.send(2).error is ErrorCode.fenced_member_epoch
    assert Consumer(driver, "three").send(3).error is ErrorCode.unknown_member_id


def test_member_that_was_fenced_joins_again_and_has_the_same():
    driver, _ = make()
    one, two = joined(driver, "one", "two")
    before = one.partitions("orders")
    reply = one.join()
    assert (reply.error, reply.member_epoch) == (ErrorCode.none, 3)
    assert one.partitions("orders") == before
    settle(driver, one, two)


def test_session_timeout_takes_partitions_away():
    driver, _ = make()
    one, _two = joined(driver, "one", "two")
    for _ in range(10):
        driver.advance(SESSION_MS // 9)
        one.beat()
    settle(driver, one)
    assert one.partitions("orders") == [0, 1, 2, 3, 4, 5]
    assert Consumer(driver, "two").send(3).error is ErrorCode.unknown_member_id


def test_a_session_can_end_before_its_time():
    driver, _ = make()
    one, two = joined(driver, "one", "two")
    end = HeartbeatRequest("g", -1, "two")
    assert driver.answer("end_session", end).error is ErrorCode.none
    assert driver.answer("end_session", end).error is ErrorCode.unknown_member_id
    assert two.send().error is ErrorCode.unknown_member_id
    settle(driver, one)
    assert one.partitions("orders") == [0, 1, 2, 3, 4, 5]


def test_a_member_whose_leaving_is_not_recorded_is_out_after_its_session():
    """The broker refuses what it cannot record now, and the client is gone."""
    driver, _ = make()
    one, _two = joined(driver, "one", "two")
    outcome = driver.shard.consumer_heartbeat(heartbeat("two", -1), 99, driver.now_ms)
    driver.shard.discard(outcome, (99,))
    for _ in range(10):
        driver.advance(SESSION_MS // 9)
        one.beat()
    settle(driver, one)
    assert one.partitions("orders") == [0, 1, 2, 3, 4, 5]


def test_all_sessions_may_end_at_once():
    driver, _ = make()
    joined(driver, "one", "two", "three")
    driver.advance(SESSION_MS)
    group = described(driver)
    assert (group.state, group.members, group.epoch) == ("Empty", (), group.target_epoch)
    assert group_of(driver).metadata_hash == 0


def test_member_that_gives_nothing_up_is_out_after_the_rebalance_timeout():
    driver, _ = make()
    (one,) = joined(driver, "one", rebalance_timeout_ms=10_000)
    driver.advance(INTERVAL_MS)
    two = Consumer(driver, "two", "orders")
    two.join()
    for _ in range(11):
        driver.advance(1_000)
        two.beat()
        if "one" in group_of(driver).members:
            one.send()  # alive, but it still has what it had
    assert set(group_of(driver).members) == {"two"}
    settle(driver, two)
    assert two.partitions("orders") == [0, 1, 2, 3, 4, 5]


def test_static_member_keeps_its_place():
    driver, _ = make()
    one, two = joined(driver, "one"), Consumer(driver, "two", "orders", instance_id="node")
    two.join()
    settle(driver, *one, two)
    assert two.leave(-2).member_epoch == -2
    epoch = group_of(driver).epoch
    again = Consumer(driver, "again", "orders", instance_id="node")
    assert again.join().member_epoch == epoch
    assert again.partitions("orders") == [3, 4, 5]
    assert group_of(driver).epoch == epoch
    old = two.send(3, instance_id="node")
    assert old.error is ErrorCode.fenced_instance_id


def test_static_member_that_is_there_is_not_replaced():
    driver, _ = make()
    joined(driver, "one", instance_id="node")
    reply = Consumer(driver, "other", "orders", instance_id="node").join()
    assert reply.error is ErrorCode.unreleased_instance_id
    unknown = Consumer(driver, "one", "orders").send(2, instance_id="never")
    assert unknown.error is ErrorCode.unknown_member_id


def test_static_member_that_stays_away_is_out_after_its_session():
    driver, _ = make()
    (one,) = joined(driver, "one", instance_id="node")
    one.leave(-2)
    driver.advance(SESSION_MS)
    assert described(driver).state == "Empty"


def test_full_group():
    driver, _ = make(GroupConfig(consumer_max_size=1))
    (one,) = joined(driver, "one")
    assert Consumer(driver, "two", "orders").join().error is ErrorCode.group_max_size_reached
    assert one.join().error is ErrorCode.none


def test_new_topic_and_partitions_reach_the_members():
    driver, topics = make(orders=2)
    one = Consumer(driver, "one", "orders", "later")
    one.join()
    settle(driver, one)
    topics.set("orders", 3)
    settle(driver, one)
    assert one.partitions("orders") == [0, 1, 2]
    topics.set("later", 1)
    settle(driver, one)
    assert one.partitions("later") == [0]
    topics.delete("orders")
    settle(driver, one)
    assert set(one.owned) == {topic_id("later")}


def test_changed_subscription():
    driver, _ = make(orders=2, payments=2)
    one, two = joined(driver, "one", "two")
    one.send(subscribed_topic_names=("payments",))
    settle(driver, one, two)
    assert one.partitions("payments") == [0, 1]
    assert one.partitions("orders") == []
    assert two.partitions("orders") == [0, 1]


def test_regex():
    driver, topics = make(orders=2, **{"pay.in": 1, "other": 1})
    may_describe = {"orders", "pay.in", "pay.out"}.__contains__
    one = Consumer(driver, "one", subscribed_topic_regex="(orders|pay.*)", may_describe=may_describe)
    one.join()
    settle(driver, one)
    assert set(one.owned) == {topic_id("orders"), topic_id("pay.in")}
    topics.set("pay.out", 1)
    topics.set("pay.secret", 1)
    driver.advance(GroupConfig().regex_refresh_interval_ms)
    one.send(may_describe=may_describe)
    settle(driver, one)
    assert set(one.owned) == {topic_id("orders"), topic_id("pay.in"), topic_id("pay.out")}
    before = len(driver.log)
    one.leave()
    assert (GroupRegexKey("g", "(orders|pay.*)"), None) in driver.log[before:]
    assert group_of(driver).regexes == {}


def test_range_assignor_by_votes():
    driver, _ = make(orders=3, payments=3)
    members = [Consumer(driver, name, "orders", "payments", server_assignor="range") for name in ("a", "b")]
    for member in members:
        member.join()
    settle(driver, *members)
    assert described(driver).assignor == "range"
    assert [member.partitions("orders") for member in members] == [[0, 1], [2]]
    assert [member.partitions("payments") for member in members] == [[0, 1], [2]]


def test_commits_by_member_epoch():
    driver, _ = make()
    one, two = joined(driver, "one", "two")
    commit = {"knows_member_epochs": True, "topic_id": topic_id("orders")}
    assert driver.commit(5, "one", one.epoch, partition=0, **commit) is ErrorCode.none
    assert driver.commit(5, "one", one.epoch + 1, **commit) is ErrorCode.stale_member_epoch
    # Partition 0 was the first member's in epoch 2 already, partition 3 became the second one's in 3.
    assert driver.commit(6, "one", 2, partition=0, **commit) is ErrorCode.none
    assert driver.commit(6, "two", 2, partition=3, **commit) is ErrorCode.stale_member_epoch
    assert driver.commit(6, "who", one.epoch, **commit) is ErrorCode.unknown_member_id
    assert driver.commit(6, **commit) is ErrorCode.unknown_member_id
    assert driver.commit(6, "one", one.epoch) is ErrorCode.unsupported_version
    assert driver.commit(7, "two", two.epoch, partition=3, **commit) is ErrorCode.none
    assert driver.fetched("g") == {("orders", 0): 6, ("orders", 3): 7}


def test_fetch_by_member_epoch():
    driver, _ = make()
    joined(driver, "one")

    def error(member_id: str | None, epoch: int) -> ErrorCode:
        asked = (FetchTopic("orders", (0,)),)
        reply = driver.answer("fetch", FetchRequest("g", asked, False, member_id, epoch))
        return ErrorCode(reply.error)

    assert error("one", 2) is ErrorCode.none
    assert error(None, -1) is ErrorCode.none
    assert error("one", 1) is ErrorCode.stale_member_epoch
    assert error("who", 2) is ErrorCode.unknown_member_id


def test_list_describe_and_delete():
    driver, _ = make()
    (one,) = joined(driver, "one")
    (listed,) = driver.answer("list_groups", ListRequest(types=("Consumer",))).groups
    assert (listed.group_type, listed.state, listed.protocol_type) == ("consumer", "Stable", "consumer")
    assert driver.answer("list_groups", ListRequest(types=("classic",))).groups == ()
    assert driver.answer("list_groups", ListRequest(states=("empty",))).groups == ()
    assert driver.described("g").state == "Dead"
    (member,) = described(driver).members
    assert (
        [topic.name for topic in member.assignment] == [topic.name for topic in member.target] == ["orders"]
    )
    assert described(driver, "none").error is ErrorCode.group_id_not_found
    (deleted,) = driver.answer("delete_groups", DeleteRequest(("g",))).groups
    assert deleted.error is ErrorCode.non_empty_group
    asked = OffsetDeleteRequest("g", (FetchTopic("orders", (0,)),))
    ((result,),) = [topic.partitions for topic in driver.answer("delete_offsets", asked).topics]
    assert result.error is ErrorCode.group_subscribed_to_topic
    one.leave()
    (deleted,) = driver.answer("delete_groups", DeleteRequest(("g",))).groups
    assert deleted.error is ErrorCode.none
    assert driver.answer("list_groups", ListRequest()).groups == ()
    assert [key.version for key, _ in driver.log[-3:]] == [6, 4, 3]


def test_offsets_of_an_empty_group_expire_and_then_the_group():
    driver, _ = make()
    (one,) = joined(driver, "one")
    driver.commit(5, "one", one.epoch, knows_member_epochs=True)
    one.leave()
    driver.advance(2 * GroupConfig().offsets_retention_ms)
    assert driver.answer("list_groups", ListRequest()).groups == ()


def test_restart_brings_everything_back():
    driver, topics = make()
    one, two = joined(driver, "one", "two")
    three = Consumer(driver, "three", "orders", subscribed_topic_regex="o.*", instance_id="x")
    driver.advance(INTERVAL_MS)
    three.join()
    one.beat()
    restarted = Driver(log=newest(driver.log), topics=topics)
    restarted.now_ms = driver.now_ms
    assert same(group_of(restarted), group_of(driver))
    for consumer in (one, two, three):
        consumer.driver = restarted
    settle(restarted, one, two, three)
    assert sorted(one.partitions("orders") + two.partitions("orders") + three.partitions("orders")) == [
        *range(6)
    ]


def newest(log: list[Any]) -> list[Any]:
    """The newest record of each key, in the log's order, as a partition is loaded."""
    last = {key: number for number, (key, _) in enumerate(log)}
    return [log[number] for number in sorted(last.values())]


def same(left: ConsumerGroup, right: ConsumerGroup) -> bool:
    names = ("epoch", "target_epoch", "target_timestamp_ms", "metadata_hash", "members", "targets", "owners")
    return all(getattr(left, name) == getattr(right, name) for name in (*names, "static_members", "regexes"))


def test_state_of_a_newer_version_is_fenced():
    driver, topics = make()
    (one,) = joined(driver, "one")
    strange = ConsumerAssignment(2, 1, 99, (OwnedPartitions(topic_id("orders"), (0,), None),), ())
    restarted = Driver(log=[*driver.log, (GroupMemberKey("g", "one", 8), strange)], topics=topics)
    one.driver = restarted
    assert one.send(2, owned=(OwnedTopic(topic_id("orders"), (0,)),)).error is ErrorCode.fenced_member_epoch
    assert one.join().error is ErrorCode.none


def test_epochs_go_on_above_those_that_may_be_lost() -> None:
    topics = FakeTopics({"orders": 2})
    driver = Driver(topics=topics, least_generation=70)
    member = Consumer(driver, "m", "orders")
    assert member.join().member_epoch == 70
