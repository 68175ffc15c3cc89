"""Classic members of consumer groups with subscriptions of later versions, or metadata of their own."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.groups.messages import JoinProtocol
from korvet.offsets.consumer_protocol import (
    Subscription,
    decode_assignment,
    encode_subscription,
)
from tests.unit.groups.consumers import Consumer, FakeTopics
from tests.unit.groups.driver import Driver

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
