"""Groups after a request that was refused because its records cannot be written now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.consumer.messages import OwnedTopic
from korvet.groups.messages import DeleteRequest, JoinRequest, ListRequest
from korvet.offsets.consumer_protocol import Assignment, encode_assignment
from tests.unit.groups.consumers import Consumer, FakeTopics, described, heartbeat
from tests.unit.groups.driver import RANGE, REBALANCE_MS, SESSION_MS, Driver

if TYPE_CHECKING:
    from korvet.groups.consumer.messages import ConsumerHeartbeatRequest

TOKEN = 99


def refused(driver: Driver, request: ConsumerHeartbeatRequest) -> None:
    """Let the shard forget the outcome of a heartbeat."""
    outcome = driver.shard.consumer_heartbeat(request, TOKEN, driver.now_ms)
    assert outcome.records
    driver.shard.discard(outcome, (TOKEN,))


def joining(member_id: str, topic: str = "orders") -> ConsumerHeartbeatRequest:
    return heartbeat(member_id, 0, subscribed_topic_names=(topic,), rebalance_timeout_ms=60_000, owned=())


def classic_group() -> tuple[Driver, str]:
    """A stable classic group of two members whose assignment can be read, and its leader."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    tokens = [driver.join(client_id=client) for client in ("a", "b")]
    driver.pass_initial_delay()
    ids = [driver.replies[token].member_id for token in tokens]
    for member_id in reversed(ids):
        driver.sync(member_id, 1, dict.fromkeys(ids, encode_assignment(Assignment(()))))
    return driver, ids[0]


def test_members_of_a_classic_group_expire_after_a_refused_upgrade() -> None:
    driver, _ = classic_group()
    refused(driver, joining("new"))
    assert driver.state() == "Stable"
    driver.advance(SESSION_MS)
    driver.advance(REBALANCE_MS)
    assert driver.state() == "Empty"


def test_a_waiting_member_expires_after_a_refused_upgrade() -> None:
    """Its join was answered by the refused outcome, and it never returns."""
    driver, leader = classic_group()
    driver.join(leader)
    assert driver.state() == "PreparingRebalance"
    driver.advance(SESSION_MS)
    refused(driver, joining("new"))
    driver.advance(SESSION_MS + 2 * REBALANCE_MS)
    assert driver.state() == "Empty"


def test_a_join_phase_ends_after_a_refused_upgrade() -> None:
    driver, leader = classic_group()
    driver.join(leader)
    refused(driver, joining("new"))
    again = driver.join(leader)
    driver.advance(REBALANCE_MS)
    assert driver.replies[again].error is ErrorCode.none


def test_member_ids_that_were_given_out_expire_after_a_refused_upgrade() -> None:
    """A join phase would wait for their owners."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    driver.join(needs_member_id=True)
    refused(driver, joining("new"))
    driver.advance(SESSION_MS)
    (member,) = driver.stable("a")
    assert driver.replies[driver.join(member)].error is ErrorCode.none


def test_new_partitions_are_noticed_after_a_refused_heartbeat() -> None:
    topics = FakeTopics({"orders": 1})
    driver = Driver(topics=topics)
    member = Consumer(driver, "m", "orders")
    member.join()
    driver.advance(5_000)
    topics.set("orders", 2)
    refused(driver, heartbeat("m", member.epoch))
    driver.advance(5_000)
    for _ in range(3):
        member.beat()
        driver.advance(5_000)
    assert member.partitions("orders") == [0, 1]
    assert described(driver).state == "Stable"


def test_a_member_that_keeps_partitions_expires_after_a_refused_heartbeat() -> None:
    """It reported once that it had given partitions up, which could not be recorded."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    one, two = Consumer(driver, "one", "orders"), Consumer(driver, "two", "orders")
    one.join()
    driver.advance(5_000)
    two.join()
    one.beat()
    assert driver.shard.groups["g"].state_name == "Reconciling"
    owned = tuple(OwnedTopic(topic, numbers) for topic, numbers in one.owned.items())
    refused(driver, heartbeat("one", one.epoch, owned=owned))
    for _ in range(13):
        driver.advance(5_000)
        one.send()
        two.beat()
    assert [member.member_id for member in described(driver).members] == ["two"]


def group_of_consumers_that_refused_a_classic_member() -> Driver:
    """An empty consumer group; the records of the join that would have ended it were refused."""
    driver = Driver(topics=FakeTopics({"orders": 2}))
    one = Consumer(driver, "one", "orders")
    one.join()
    one.leave()
    request = JoinRequest("g", "", "consumer", RANGE, SESSION_MS, needs_member_id=True)
    outcome = driver.shard.join(request, TOKEN, driver.now_ms)
    assert outcome.records
    driver.shard.discard(outcome, (TOKEN,))
    return driver


def test_a_consumer_group_ends_with_the_next_join_after_a_refused_one() -> None:
    """Otherwise it would be there again after the deletion of the classic group and a restart."""
    driver = group_of_consumers_that_refused_a_classic_member()
    driver.advance(SESSION_MS)
    (member,) = driver.stable("a")
    driver.leave(member)
    driver.answer("delete_groups", DeleteRequest(("g",)))
    assert Driver(log=driver.log).answer("list_groups", ListRequest()).groups == ()


def test_a_consumer_group_is_deleted_after_a_refused_join() -> None:
    driver = group_of_consumers_that_refused_a_classic_member()
    driver.answer("delete_groups", DeleteRequest(("g",)))
    assert Driver(log=driver.log).answer("list_groups", ListRequest()).groups == ()
