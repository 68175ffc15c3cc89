"""Share groups (KIP-932): members, time-outs, states of partitions, restarts, groups of other types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.errors import ErrorCode

from korvet.groups.config import GroupConfig
from korvet.groups.consumer.messages import ConsumerHeartbeatRequest, OwnedTopic
from korvet.groups.messages import (
    DeleteRequest,
    HeartbeatRequest,
    LeaveRequest,
    LeavingMember,
    ListRequest,
    OffsetDeleteRequest,
    PutRequest,
)
from korvet.groups.share.group import ASSIGNMENT, EPOCH, MEMBER, STATES, TARGET, TARGET_EPOCH
from korvet.groups.share.messages import (
    EndStatesRequest,
    RemoveStatesRequest,
    RestartStatesRequest,
    ShareHeartbeatRequest,
    SharePartition,
    StatesReply,
    StatesRequest,
)
from korvet.offsets.group_records import ShareAssignment
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from tests.unit.groups.consumers import Consumer, FakeTopics, topic_id
from tests.unit.groups.driver import Driver, commit_request
from tests.unit.groups.sharers import Sharer, described, group_of, initialise

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.offsets.group_records import NamedTopicPartitions

INTERVAL_MS = GroupConfig().share_assignment_interval_ms
SESSION_MS = GroupConfig().share_session_timeout_ms
RETRY_MS = GroupConfig().share_initialize_retry_interval_ms
ORDERS = topic_id("orders")


def make(config: GroupConfig | None = None, **counts: int) -> tuple[Driver, FakeTopics]:
    topics = FakeTopics(counts or {"orders": 6})
    return Driver(config, topics=topics), topics


def settle(driver: Driver, *sharers: Sharer) -> None:
    """Send heartbeats until no member has anything left to do."""
    for _ in range(20):
        initialise(driver)
        driver.advance(INTERVAL_MS)
        before = len(driver.log)
        for sharer in sharers:
            assert sharer.beat().error is ErrorCode.none
        if len(driver.log) == before:
            return
    raise AssertionError("the group does not settle")


def joined(
    driver: Driver, *names: str, group_id: str = "g", topics: tuple[str, ...] = ("orders",)
) -> list[Sharer]:
    sharers = [Sharer(driver, name, *topics, group_id=group_id) for name in names]
    for sharer in sharers:
        assert sharer.join().error is ErrorCode.none
    settle(driver, *sharers)
    return sharers


def test_partitions_are_assigned_once_they_are_initialised() -> None:
    driver, _ = make()
    one = Sharer(driver, "one", "orders")
    reply = one.join()
    assert (reply.member_epoch, reply.assignment, reply.heartbeat_interval_ms) == (2, (), 5_000)
    assert [each.place.partition for each in driver.initialisations] == list(range(6))
    assert not any(each.is_added for each in driver.initialisations)
    driver.advance(INTERVAL_MS)
    assert one.beat().assignment is None
    initialise(driver)
    assert one.beat().assignment == (OwnedTopic(ORDERS, tuple(range(6))),)
    assert one.epoch == 3


def test_members_share_at_once() -> None:
    driver, _ = make()
    (one,) = joined(driver, "one")
    two = Sharer(driver, "two", "orders")
    assert two.join().assignment == (OwnedTopic(ORDERS, (3, 4, 5)),)
    one.beat()
    assert one.partitions("orders") == [0, 1, 2]
    others = [Sharer(driver, f"x{number}", "orders") for number in range(10)]
    for other in others:
        other.join()
    settle(driver, one, two, *others)
    assert {number for other in (one, two, *others) for number in other.partitions("orders")} == set(range(6))
    assert all(other.partitions("orders") for other in (one, two, *others))


def test_assignments_are_an_interval_apart() -> None:
    driver, _ = make()
    joined(driver, "one", "two")
    three = Sharer(driver, "three", "orders")
    three.join()
    four = Sharer(driver, "four", "orders")
    assert four.join().assignment == ()
    driver.advance(INTERVAL_MS - 1)
    assert four.beat().assignment is None
    driver.advance(1)
    assert four.beat().assignment != ()


def test_quiet_heartbeat_writes_nothing() -> None:
    driver, _ = make()
    (one,) = joined(driver, "one")
    before = len(driver.log)
    assert one.beat().assignment is None
    assert one.subscribe("orders").assignment == (OwnedTopic(ORDERS, tuple(range(6))),)
    assert len(driver.log) == before


REFUSED: dict[str, tuple[dict[str, Any], ErrorCode, str]] = {
    "no group": ({"group_id": ""}, ErrorCode.invalid_request, "GroupId can't be empty."),
    "no member id": ({"member_id": ""}, ErrorCode.invalid_request, "Invalid member id in the request."),
    "long member id": (
        {"member_id": "m" * 37},
        ErrorCode.invalid_request,
        "Invalid member id in the request.",
    ),
    "blank member id": ({"member_id": " "}, ErrorCode.invalid_request, "MemberId can't be empty."),
    "empty rack": ({"rack_id": ""}, ErrorCode.invalid_request, "RackId can't be empty."),
    "no topics": (
        {"subscribed_topic_names": None},
        ErrorCode.invalid_request,
        "SubscribedTopicNames must be set in first request.",
    ),
    "empty topics": (
        {"subscribed_topic_names": ()},
        ErrorCode.invalid_request,
        "SubscribedTopicNames must be set in first request.",
    ),
    "bad epoch": ({"member_epoch": -2}, ErrorCode.invalid_request, "MemberEpoch is invalid."),
    "unknown group": ({"member_epoch": 3}, ErrorCode.group_id_not_found, "Share group g not found."),
    "leaves unknown group": ({"member_epoch": -1}, ErrorCode.group_id_not_found, "Group g not found."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    driver, _ = make()
    fields, error, message = REFUSED[name]
    wanted = {"group_id": "g", "member_id": "one", "member_epoch": 0, "subscribed_topic_names": ("orders",)}
    reply = driver.answer("share_heartbeat", ShareHeartbeatRequest(**(wanted | fields)))
    assert (reply.error, reply.error_message) == (error, message)
    assert not driver.log


def test_members_are_fenced_by_their_epoch() -> None:
    driver, _ = make()
    one, _ = joined(driver, "one", "two")
    greater = one.send(one.epoch + 1)
    assert greater.error is ErrorCode.fenced_member_epoch
    assert "greater member epoch" in (greater.error_message or "")
    assert one.send(one.epoch - 1).error is ErrorCode.none  # the last response may have been lost
    smaller = one.send(one.epoch - 2)
    assert smaller.error is ErrorCode.fenced_member_epoch
    assert "does not match the previous member epoch" in (smaller.error_message or "")
    assert one.join().assignment == (OwnedTopic(ORDERS, (0, 2, 4)),)
    assert Sharer(driver, "nobody").send(5).error is ErrorCode.unknown_member_id
    assert Sharer(driver, "nobody").leave().error is ErrorCode.unknown_member_id


def test_a_group_is_full() -> None:
    driver, _ = make(GroupConfig(share_max_size=2))
    one, _ = joined(driver, "one", "two")
    reply = Sharer(driver, "three", "orders").join()
    assert (reply.error, reply.error_message) == (
        ErrorCode.group_max_size_reached,
        "The share group has reached its maximum capacity of 2 members.",
    )
    assert one.join().error is ErrorCode.none


def test_a_silent_member_is_out_and_others_take_over() -> None:
    driver, _ = make()
    one, two = joined(driver, "one", "two")
    driver.advance(SESSION_MS - INTERVAL_MS)
    two.beat()
    driver.advance(INTERVAL_MS)
    assert [member.member_id for member in described(driver).members] == ["two"]
    two.beat()
    assert two.partitions("orders") == list(range(6))
    assert one.beat().error is ErrorCode.unknown_member_id


def test_the_last_member_leaves() -> None:
    driver, _ = make()
    (one,) = joined(driver, "one")
    before = len(driver.log)
    assert one.leave().member_epoch == -1
    kinds = [key.version for key, _ in driver.log[before:]]
    assert kinds == [ASSIGNMENT, TARGET, MEMBER, EPOCH, TARGET_EPOCH]
    group = described(driver)
    assert (group.state, group.assignor, group.members) == ("Empty", "simple", ())
    assert (group.epoch, group.target_epoch) == (4, 4)


def test_configs_of_a_group_count() -> None:
    config = GroupConfig()
    own = {
        "share.session.timeout.ms": "50000",
        "share.heartbeat.interval.ms": "6000",
        "share.assignment.interval.ms": "0",
    }
    config.own.replace({"g": own})
    driver, _ = make(config)
    one, two = Sharer(driver, "one", "orders"), Sharer(driver, "two", "orders")
    assert one.join().heartbeat_interval_ms == 6_000
    initialise(driver)
    assert two.join().assignment != ()
    driver.advance(49_999)
    assert len(described(driver).members) == 2
    driver.advance(1)
    assert described(driver).members == ()


# States of partitions


def test_initialisations_begin_once() -> None:
    driver, _ = make()
    one, two = Sharer(driver, "one", "orders"), Sharer(driver, "two", "orders")
    one.join()
    two.join()
    assert len(driver.initialisations) == 6
    driver.advance(RETRY_MS - 1)
    one.beat()
    two.beat()
    assert len(driver.initialisations) == 6
    driver.advance(1)
    one.beat()
    assert len(driver.initialisations) == 12
    assert not any(each.is_added for each in driver.initialisations)
    initialise(driver)
    assert group_of(driver).states.initialising == {}


def test_failed_initialisations_begin_again() -> None:
    driver, _ = make()
    one = Sharer(driver, "one", "orders")
    one.join()
    initialise(driver, failed=True)
    states = group_of(driver).states
    assert (states.initialising, states.initialised) == ({}, {})
    one.beat()
    assert [(each.place.partition, each.is_added) for each in driver.initialisations] == [
        (number, False) for number in range(6)
    ]


def test_new_partitions_are_taken_from_their_beginning() -> None:
    driver, topics = make()
    (one,) = joined(driver, "one")
    topics.set("orders", 8)
    one.beat()
    assert [(each.place.partition, each.is_added) for each in driver.initialisations] == [
        (6, True),
        (7, True),
    ]
    settle(driver, one)
    assert one.partitions("orders") == list(range(8))


def test_another_topic_is_added() -> None:
    driver, _ = make(orders=2, payments=1)
    one, two = joined(driver, "one", "two")
    two.subscribe("orders", "payments")
    assert [(each.place.topic, each.is_added) for each in driver.initialisations] == [("payments", False)]
    settle(driver, one, two)
    assert (one.partitions("payments"), two.partitions("payments")) == ([], [0])
    two.subscribe("orders")
    assert two.partitions("payments") == []
    settle(driver, one, two)
    assert [member.subscribed_topic_names for member in described(driver).members] == [
        ("orders",),
        ("orders",),
    ]


def test_a_topic_that_does_not_exist_yet_is_found() -> None:
    driver, topics = make(orders=2)
    one = joined(driver, "one", topics=("later",))[0]
    assert one.owned == {}
    topics.set("later", 1)
    settle(driver, one)
    assert one.partitions("later") == [0]


def test_states_of_deleted_topics_are_forgotten() -> None:
    driver, topics = make()
    (one,) = joined(driver, "one")
    driver.take(driver.shard.delete_topics(["orders"], driver.now_ms))
    topics.delete("orders")
    assert group_of(driver).states.initialised == {}
    settle(driver, one)
    assert one.partitions("orders") == []
    topics.set("orders", 1)
    settle(driver, one)
    assert one.partitions("orders") == [0]


def test_initialisations_of_a_group_that_is_gone_end_without_effect() -> None:
    driver, _ = make()
    one = Sharer(driver, "one", "orders")
    one.join()
    places = [each.place for each in driver.initialisations]
    one.leave()
    assert driver.answer("remove_states", RemoveStatesRequest("g")).places == tuple(places)
    before = len(driver.log)
    initialise(driver, places)
    assert len(driver.log) == before
    driver.ask("delete_groups", DeleteRequest(("g",)))
    before = len(driver.log)
    initialise(driver, places, failed=True)
    assert len(driver.log) == before


def test_groups_with_members_keep_their_states() -> None:
    driver, _ = make()
    joined(driver, "one")
    assert driver.answer("remove_states", RemoveStatesRequest("g")).error is ErrorCode.non_empty_group
    assert driver.answer("delete_groups", DeleteRequest(("g",))).groups[0].error is ErrorCode.non_empty_group
    assert driver.answer("remove_states", RemoveStatesRequest("other")).places == ()


def test_an_interrupted_removal_is_repeated() -> None:
    driver, _ = make(orders=2)
    (one,) = joined(driver, "one")
    one.leave()
    first = driver.answer("remove_states", RemoveStatesRequest("g"))
    again = driver.answer("remove_states", RemoveStatesRequest("g"))
    assert [place.partition for place in again.places] == [0, 1]
    assert first.places == again.places
    # Its name can be used again at once.
    one.join()
    assert group_of(driver).states.deleting == {}


# Offsets that administrators set and delete


def places_of(driver: Driver, *numbers: int, group_id: str = "g") -> tuple[SharePartition, ...]:
    return tuple(SharePartition(group_id, ORDERS, "orders", number) for number in numbers)


def restart(driver: Driver, *numbers: int, group_id: str = "g") -> StatesReply:
    places = places_of(driver, *numbers, group_id=group_id)
    reply: StatesReply = driver.answer("restart_states", RestartStatesRequest(group_id, places))
    if reply.error is ErrorCode.none:
        assert reply.places == places
        driver.answer("end_states", EndStatesRequest(group_id, initialised=places))
    return reply


def shown(driver: Driver, group_id: str = "g") -> list[int]:
    """The initialised partitions; asked for one by one, the coordinator says the same."""
    places = driver.answer("show_states", StatesRequest(group_id)).places
    for place in (*places, *places_of(driver, *range(6), group_id=group_id)):
        one = driver.answer("show_states", StatesRequest(group_id, place)).places
        assert one == ((place,) if place in places else ())
    return [place.partition for place in places]


def written(driver: Driver) -> list[tuple[list[int], list[int]]]:
    """The partitions that records of states name as initialising, and as initialised."""
    return [
        (numbers_of(states.initializing_topics), numbers_of(states.initialized_topics))
        for _, states in driver.log
    ]


def numbers_of(topics: Iterable[NamedTopicPartitions]) -> list[int]:
    return [number for topic in topics for number in topic.partitions]


def test_a_restart_creates_a_group() -> None:
    driver, _ = make(orders=3)
    assert restart(driver).error is ErrorCode.none
    assert "g" not in driver.shard.groups
    assert shown(driver) == []
    assert restart(driver, 1).error is ErrorCode.none
    assert shown(driver) == [1]
    assert {key.version for key, _ in driver.log} == {STATES}
    (found,) = driver.answer("list_groups", ListRequest()).groups
    assert (found.group_type, found.state) == ("share", "Empty")
    assert restart(driver, 1, 2).error is ErrorCode.none
    # As Kafka writes them.
    assert written(driver) == [([1], []), ([], [1]), ([1, 2], [1]), ([], [1, 2])]
    (one,) = joined(driver, "one")
    assert one.partitions("orders") == [0, 1, 2]


def test_a_restart_that_has_not_ended_is_no_second_initialisation() -> None:
    driver, _ = make(orders=1)
    driver.answer("restart_states", RestartStatesRequest("g", places_of(driver, 0)))
    one = Sharer(driver, "one", "orders")
    one.join()
    assert driver.initialisations == []
    driver.advance(RETRY_MS)
    one.beat()
    assert [each.place for each in driver.initialisations] == list(places_of(driver, 0))


def test_states_of_one_topic_are_removed() -> None:
    driver, _ = make(orders=2, other=1)
    (one,) = joined(driver, "one", topics=("orders", "other"))
    request = RemoveStatesRequest("g", frozenset({"orders"}))
    assert driver.answer("remove_states", request).error is ErrorCode.non_empty_group
    one.leave()
    assert driver.answer("remove_states", request).places == places_of(driver, 0, 1)
    assert group_of(driver).states.deleting == {ORDERS: "orders"}
    assert shown(driver) == [0]
    assert driver.answer("remove_states", request).places == places_of(driver, 0, 1), "it may be repeated"
    driver.answer("end_states", EndStatesRequest("g", removed=frozenset({ORDERS})))
    assert group_of(driver).states.deleting == {}
    before = len(driver.log)
    assert driver.answer("remove_states", request).places == ()
    assert [key.version for key, _ in driver.log[before:]] == [STATES], "as in Kafka"


def test_offsets_of_other_groups_are_not_changed() -> None:
    driver, _ = make(orders=1)
    driver.commit(5)
    what = "Group g is not a share group."
    removed = driver.answer("remove_states", RemoveStatesRequest("g", frozenset({"orders"})))
    for refused in (restart(driver, 0), removed):
        assert (refused.error, refused.error_message) == (ErrorCode.group_id_not_found, what)
    missing = driver.answer("remove_states", RemoveStatesRequest("h", frozenset({"orders"})))
    assert (missing.error, missing.error_message) == (ErrorCode.group_id_not_found, "Group h not found.")
    joined(driver, "one", group_id="h")
    assert restart(driver, 0, group_id="h").error is ErrorCode.non_empty_group
    assert shown(driver) == []


# Restarts


def test_a_loaded_group_goes_on() -> None:
    driver, topics = make()
    one, two = joined(driver, "one", "two")
    again = Driver(topics=topics, log=driver.log)
    assert described(again) == described(driver)
    one.driver = two.driver = again
    before = len(again.log)
    assert (one.beat().error, two.beat().error) == (0, 0)
    assert len(again.log) == before
    again.advance(SESSION_MS)
    assert described(again).state == "Empty"


def test_initialisations_begin_again_after_a_load() -> None:
    driver, topics = make()
    one = Sharer(driver, "one", "orders")
    one.join()
    again = Driver(topics=topics, log=driver.log)
    one.driver = again
    one.beat()
    assert [each.place.partition for each in again.initialisations] == list(range(6))
    settle(again, one)
    assert one.partitions("orders") == list(range(6))


def test_members_without_a_subscription_are_dropped() -> None:
    driver, topics = make()
    joined(driver, "one")
    lost = (GroupMemberKey("g", "lost", ASSIGNMENT), ShareAssignment(2, 0, 0, ()))
    again = Driver(topics=topics, log=[*driver.log, lost])
    assert [member.member_id for member in described(again).members] == ["one"]


def test_a_discarded_join_leaves_nothing() -> None:
    driver, _ = make()
    request = ShareHeartbeatRequest("g", "one", 0, subscribed_topic_names=("orders",))
    outcome = driver.shard.share_heartbeat(request, 99, driver.now_ms)
    assert outcome.records
    driver.shard.discard(outcome, (99,))
    assert "g" not in driver.shard.groups
    (one,) = joined(driver, "one")
    assert one.partitions("orders") == list(range(6))


def test_a_discarded_leave_does_not_end_the_session() -> None:
    driver, _ = make()
    joined(driver, "one")
    outcome = driver.shard.share_heartbeat(ShareHeartbeatRequest("g", "one", -1), 99, driver.now_ms)
    driver.shard.discard(outcome, (99,))
    assert len(described(driver).members) == 1
    driver.advance(SESSION_MS)
    assert described(driver).members == ()


def test_lost_epochs_are_not_used_again() -> None:
    driver = Driver(topics=FakeTopics({"orders": 1}), least_generation=9)
    assert Sharer(driver, "one", "orders").join().member_epoch == 9


# Other types


def test_other_protocols_do_not_take_a_share_group() -> None:
    driver, _ = make()
    (one,) = joined(driver, "one")
    for _ in range(2):
        assert driver.replies[driver.join()].error is ErrorCode.inconsistent_group_protocol
        reply = driver.answer(
            "consumer_heartbeat",
            ConsumerHeartbeatRequest(
                "g", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=(), owned=()
            ),
        )
        assert (reply.error, reply.error_message) == (
            ErrorCode.group_id_not_found,
            "Group g is not a consumer group.",
        )
        assert (
            driver.answer("heartbeat", HeartbeatRequest("g", 1, "one")).error is ErrorCode.unknown_member_id
        )
        left = driver.answer("leave", LeaveRequest("g", (LeavingMember("one"),)))
        assert (
            left.error is ErrorCode.unknown_member_id or left.members[0].error is ErrorCode.unknown_member_id
        )
        assert driver.commit(5) is ErrorCode.group_id_not_found
        in_transaction = commit_request(5, producer=(7, 0))
        (topic,) = driver.answer("commit", in_transaction).topics
        assert topic.partitions[0].error is ErrorCode.group_id_not_found
        assert driver.fetched() == {}
        assert (
            driver.answer("delete_offsets", OffsetDeleteRequest("g", ())).error
            is ErrorCode.group_id_not_found
        )
        assert driver.state() == "Dead"
        one.leave()


def test_a_share_group_does_not_take_another_group() -> None:
    driver, _ = make()
    driver.commit(5)
    Consumer(driver, "m", "orders", group_id="k").join()
    for group_id in ("g", "k"):
        reply = Sharer(driver, "one", "orders", group_id=group_id).join()
        assert (reply.error, reply.error_message) == (
            ErrorCode.group_id_not_found,
            f"Group {group_id} is not a share group.",
        )
        assert described(driver, group_id).error is ErrorCode.group_id_not_found


def test_groups_are_listed_by_type_and_state() -> None:
    driver, _ = make()
    joined(driver, "one")
    (other,) = joined(driver, "one", group_id="h")
    other.leave()
    driver.commit(5, group_id="simple")

    def listed(**wanted: tuple[str, ...]) -> list[tuple[str, str, str, str]]:
        return sorted(
            (each.group_id, each.group_type, each.protocol_type, each.state)
            for each in driver.answer("list_groups", ListRequest(**wanted)).groups
        )

    assert listed(types=("Share",)) == [("g", "share", "share", "Stable"), ("h", "share", "share", "Empty")]
    assert [each[0] for each in listed(types=("share",), states=("stable",))] == ["g"]
    assert len(listed()) == 3


def test_share_groups_do_not_expire() -> None:
    driver, _ = make()
    (one,) = joined(driver, "one")
    one.leave()
    driver.advance(GroupConfig().offsets_retention_ms * 2)
    assert described(driver).state == "Empty"


def test_nothing_else_is_put_into_a_share_group() -> None:
    driver, _ = make()
    joined(driver, "one")
    for key, value in (
        (GroupMetadataKey("g"), GroupMetadataValue("", 0, None, None, 0, ())),
        (OffsetCommitKey("g", "orders", 0), OffsetCommitValue(1)),
    ):
        assert driver.answer("put", PutRequest(((key, value),))).error is ErrorCode.non_empty_group
    assert driver.answer("put", PutRequest(((OffsetCommitKey("g", "orders", 0), None),))).error == 0


def test_rebalances_are_counted() -> None:
    driver, _ = make()
    joined(driver, "one", "two")
    counts = driver.shard._context.counts
    assert counts.rebalances["g"] == group_of(driver).epoch - 1
    assert counts.joins == 2
    assert group_of(driver).rebalancing_since_ms is None


def test_record_types() -> None:
    assert (MEMBER, EPOCH, TARGET_EPOCH, TARGET, ASSIGNMENT, STATES) == (10, 11, 12, 13, 14, 15)
