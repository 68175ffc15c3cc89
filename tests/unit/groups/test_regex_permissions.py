"""Expressions of subscriptions follow changed permissions, without a change of topics."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.consumer.messages import OwnedTopic
from korvet.offsets.schema import GroupRegexKey
from tests.unit.groups.consumers import Consumer, FakeTopics
from tests.unit.groups.driver import Driver

INTERVAL_MS = GroupConfig().regex_permissions_interval_ms
BEAT_MS = 5_000


def beat_for(driver: Driver, consumer: Consumer, allowed: set[str], time_ms: int) -> None:
    """Send heartbeats of a member that may describe these topics."""
    for _ in range(time_ms // BEAT_MS):
        driver.advance(BEAT_MS)
        owned = tuple(OwnedTopic(topic, numbers) for topic, numbers in consumer.owned.items())
        reply = consumer.send(owned=owned, may_describe=allowed.__contains__)
        assert reply.error is ErrorCode.none


def test_a_member_gets_the_topics_that_it_may_describe_later() -> None:
    driver = Driver(topics=FakeTopics({"orders": 1, "payments": 1}))
    allowed = {"orders"}
    consumer = Consumer(driver, "m", subscribed_topic_regex=".*", may_describe=allowed.__contains__)
    consumer.join()
    assert (consumer.partitions("orders"), consumer.partitions("payments")) == ([0], [])
    allowed.add("payments")
    beat_for(driver, consumer, allowed, INTERVAL_MS + 2 * BEAT_MS)
    assert (consumer.partitions("orders"), consumer.partitions("payments")) == ([0], [0])
    allowed.remove("orders")
    beat_for(driver, consumer, allowed, INTERVAL_MS + 2 * BEAT_MS)
    assert (consumer.partitions("orders"), consumer.partitions("payments")) == ([], [0])


def test_permissions_are_not_compared_with_every_heartbeat() -> None:
    driver = Driver(topics=FakeTopics({"orders": 1}))
    allowed = {"orders"}
    consumer = Consumer(driver, "m", subscribed_topic_regex=".*", may_describe=allowed.__contains__)
    consumer.join()
    before = len(driver.log)
    beat_for(driver, consumer, allowed, INTERVAL_MS - BEAT_MS)
    assert len(driver.log) == before
    beat_for(driver, consumer, allowed, INTERVAL_MS)
    assert len(driver.log) == before + 1


def test_the_expression_of_a_member_that_takes_another_instance_id_is_forgotten() -> None:
    driver = Driver(topics=FakeTopics({"orders": 2}))
    two = Consumer(driver, "two", "orders", instance_id="i")
    two.join()
    one = Consumer(driver, "one", subscribed_topic_regex="ord.*")
    one.join()
    two.leave(-2)
    assert Consumer(driver, "one", "orders", instance_id="i").join().error is ErrorCode.none
    assert (GroupRegexKey("g", "ord.*"), None) in driver.log
