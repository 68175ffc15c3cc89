"""The classic APIs in consumer groups: subscriptions of later versions, metadata of a client's own, and
administrators who remove members.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.messages import JoinProtocol, LeaveRequest, LeavingMember
from korvet.offsets.consumer_protocol import (
    Assignment,
    Subscription,
    TopicPartitions,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from korvet.offsets.group_records import ClassicMember, ConsumerMember
from korvet.offsets.schema import GroupMetadataValue
from tests.unit.groups.consumers import Consumer, FakeTopics, described
from tests.unit.groups.driver import REBALANCE_MS, Driver

SUBSCRIPTION = encode_subscription(Subscription(("orders",)))
LATER = b"\0\x09" + SUBSCRIPTION[2:]


def consumer_group() -> tuple[Driver, Consumer]:
    """A group with one member of the consumer protocol, which has all partitions."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    consumer = Consumer(driver, "one", "orders")
    assert consumer.join().error is ErrorCode.none
    return driver, consumer


def test_the_last_consumer_leaves_members_with_a_later_version() -> None:
    driver, one = consumer_group()
    driver.advance(1_000)
    later = (JoinProtocol("range", LATER),)
    joined = driver.replies[driver.join(protocols=later)]
    assert one.leave().error is ErrorCode.none
    driver.advance(0)
    again = driver.replies[driver.join(joined.member_id, protocols=later)]
    assert (again.error, again.leader) == (ErrorCode.none, joined.member_id)


def test_a_member_syncs_with_a_subscription_of_a_later_version() -> None:
    driver, one = consumer_group()
    driver.advance(1_000)
    later = (JoinProtocol("range", LATER),)
    joined = driver.replies[driver.join(protocols=later)]
    one.beat()
    one.beat()
    again = driver.replies[driver.join(joined.member_id, protocols=later)]
    synced = driver.replies[driver.sync(joined.member_id, again.generation_id)]
    assert synced.error is ErrorCode.none
    (topic,) = decode_assignment(synced.assignment).assigned_partitions
    assert (topic.topic, len(topic.partitions)) == ("orders", 1)


def test_a_silent_member_is_out_though_others_have_metadata_of_their_own() -> None:
    """The last member of the consumer protocol expires; the protocol that both others know is not Kafka's."""
    driver, _ = consumer_group()
    driver.advance(1_000)
    own = JoinProtocol("own", b"no subscription")
    for name in ("range", "sticky"):
        driver.join(protocols=(JoinProtocol(name, SUBSCRIPTION), own), session_timeout_ms=300_000)
    driver.advance(46_000)
    assert driver.state() == "PreparingRebalance"


def test_an_administrator_removes_members_of_the_consumer_protocol() -> None:
    driver, _ = consumer_group()
    for name in ("two", "three"):
        assert Consumer(driver, name, "orders", instance_id=f"{name}'s").join().error is ErrorCode.none
    leaving = (
        LeavingMember("one"),
        LeavingMember("", "two's"),
        LeavingMember("two", "two's"),
        LeavingMember("one", "three's"),
        LeavingMember("three", "nobody's"),
        LeavingMember("four"),
    )
    left = driver.answer("leave", LeaveRequest("g", leaving)).members
    assert [(each.member_id, each.group_instance_id) for each in left] == [
        (each.member_id, each.group_instance_id) for each in leaving
    ]
    none, unknown = ErrorCode.none, ErrorCode.unknown_member_id
    assert [each.error for each in left] == [none] * 3 + [ErrorCode.fenced_instance_id] + [unknown] * 2
    assert [member.member_id for member in described(driver).members] == ["three"]


def test_a_member_with_an_instance_id_that_the_group_does_not_know_is_unknown() -> None:
    driver, one = consumer_group()
    driver.advance(1_000)
    joined = driver.replies[driver.join()]
    one.beat()
    epoch = joined.generation_id
    assert driver.heartbeat(joined.member_id, epoch, "nobody's") is ErrorCode.unknown_member_id
    assert driver.heartbeat(joined.member_id, epoch) is not ErrorCode.unknown_member_id


def test_a_static_member_returns_with_the_consumer_protocol() -> None:
    """A client of the classic protocol does not leave before its restart."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    tokens = [driver.join(group_instance_id=name, client_id=name) for name in ("one", "two")]
    driver.pass_initial_delay()
    ids = [driver.replies[token].member_id for token in tokens]
    given = {
        member_id: encode_assignment(Assignment((TopicPartitions("orders", (number,)),)))
        for number, member_id in enumerate(ids)
    }
    for member_id, name in zip(reversed(ids), ("two", "one"), strict=True):
        driver.sync(member_id, 1, given, group_instance_id=name)
    returned = Consumer(driver, "new", "orders", instance_id="one")
    assert returned.join().error is ErrorCode.none
    assert returned.partitions("orders") == [0]
    assert driver.heartbeat(ids[0], 1, "one") is ErrorCode.fenced_instance_id
    assert {member.member_id: member.is_classic for member in described(driver).members} == {
        "new": False,
        ids[1]: True,
    }
    driver.advance(1_000)
    another = Consumer(driver, "another", "orders", instance_id="two")
    assert another.join().error is ErrorCode.none
    assert Consumer(driver, "third", "orders", instance_id="two").join().error is (
        ErrorCode.unreleased_instance_id
    )
    assert [member.member_id for member in described(driver).members] == ["new", "another"]


def test_a_group_with_a_custom_assignor_is_not_upgraded() -> None:
    """Kafka Streams, for example: its members need what only their own assignor adds."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    token = driver.join()
    driver.pass_initial_delay()
    member_id = driver.replies[token].member_id
    own = Assignment((TopicPartitions("orders", (0, 1)),), b"tasks")
    driver.sync(member_id, 1, {member_id: encode_assignment(own)})
    reply = Consumer(driver, "new", "orders").join()
    assert reply.error is ErrorCode.group_id_not_found
    assert "custom assignor" in reply.error_message
    assert driver.heartbeat(member_id, 1) is ErrorCode.none


def unreadable_member() -> tuple[Driver, str]:
    """A loaded group with a consumer, and a member whose record has no protocols; its id."""
    first, _ = consumer_group()
    first.advance(1_000)
    member_id = first.replies[first.join(group_instance_id="i")].member_id
    log = [
        (key, replace(value, classic_member_metadata=ClassicMember()))
        if isinstance(value, ConsumerMember) and value.classic_member_metadata is not None
        else (key, value)
        for key, value in first.log
    ]
    driver = Driver(topics=FakeTopics({"orders": 2}), log=log)
    return driver, member_id


def test_a_group_with_a_record_without_protocols_is_not_downgraded() -> None:
    """The timers of all groups of the partition would stop with an exception."""
    driver, _ = unreadable_member()
    assert driver.answer("leave", LeaveRequest("g", (LeavingMember("one"),))).members[0].error is (
        ErrorCode.none
    )
    driver.advance(60_000)
    assert described(driver).state == "Empty"


def test_a_member_with_a_record_without_protocols_joins_again() -> None:
    driver, member_id = unreadable_member()
    epoch = driver.shard.groups["g"].members[member_id].epoch
    synced = driver.replies[driver.sync(member_id, epoch, group_instance_id="i")]
    assert synced.error is ErrorCode.rebalance_in_progress
    again = driver.replies[driver.join(member_id, group_instance_id="i")]
    synced = driver.replies[driver.sync(member_id, again.generation_id, group_instance_id="i")]
    assert synced.error is ErrorCode.none


@pytest.mark.parametrize("topic", ["orders", "more"])
def test_a_static_member_that_returns_with_the_classic_protocol_downgrades_its_group(topic: str) -> None:
    """Its members are asked to join again, in their generation: the group needs a leader."""
    topics = FakeTopics({"orders": 2, "more": 1})
    driver = Driver(topics=topics)
    one = Consumer(driver, "one", "orders", instance_id="i")
    one.join()
    driver.advance(5_000)
    other = driver.replies[driver.join()]
    one.beat()
    one.beat()
    other = driver.replies[driver.join(other.member_id)]
    assert driver.replies[driver.sync(other.member_id, other.generation_id)].error is ErrorCode.none
    assert one.leave(-2).error is ErrorCode.none
    assert described(driver).state != "Assigning"
    protocols = (JoinProtocol("range", encode_subscription(Subscription((topic,)))),)
    joined = driver.replies[driver.join(group_instance_id="i", protocols=protocols)]
    assert joined.error is ErrorCode.none
    driver.advance(0)
    assert driver.heartbeat(other.member_id, other.generation_id) is ErrorCode.rebalance_in_progress
    synced = driver.replies[driver.sync(joined.member_id, joined.generation_id, group_instance_id="i")]
    assert synced.error is ErrorCode.rebalance_in_progress


def test_a_record_that_names_a_member_twice_stops_no_timers() -> None:
    first = Driver()
    first.stable("one", "two")
    log = [
        (key, replace(value, members=(*value.members, *value.members)))
        if isinstance(value, GroupMetadataValue)
        else (key, value)
        for key, value in first.log
    ]
    driver = Driver(log=log)
    assert len(driver.described().members) == 2
    driver.leave("one-1")
    joined = driver.join("two-2", client_id="two")
    driver.advance(REBALANCE_MS)
    assert driver.replies[joined].error is ErrorCode.none
