"""Groups when the clock of their coordinator is set."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.groups.consumers import Consumer, FakeTopics
from tests.unit.groups.driver import SESSION_MS, Driver


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_sessions_last_when_the_clock_is_set(by_ms: int) -> None:
    driver = Driver()
    (member,) = driver.stable("a")
    driver.advance(1_000)
    driver.now_ms += by_ms
    driver.shard.shift(by_ms)
    driver.advance(SESSION_MS - 1_001)
    assert driver.state() == "Stable"
    assert driver.heartbeat(member, 1) is ErrorCode.none
    driver.advance(SESSION_MS - 1)
    assert driver.state() == "Stable"
    driver.advance(1)
    assert driver.state() == "Empty"


def test_expressions_are_searched_for_again_when_the_clock_is_set_back() -> None:
    topics = FakeTopics({"orders": 1})
    driver = Driver(topics=topics)
    member = Consumer(driver, "m", subscribed_topic_regex="orders.*")
    member.join()
    driver.now_ms -= 3_600_000
    driver.shard.shift(-3_600_000)
    topics.set("orders-2", 1)
    for _ in range(3):
        driver.advance(5_000)
        member.beat()
    assert member.partitions("orders-2") == [0]
