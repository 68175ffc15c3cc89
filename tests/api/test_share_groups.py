"""ShareGroupHeartbeat and ShareGroupDescribe (KIP-932), and other APIs about share groups."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.api.asking import Client, connect
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

INCONSISTENT_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_MEMBER = 23, 24, 25
INVALID_REQUEST, NON_EMPTY_GROUP, NOT_FOUND, FENCED_EPOCH = 42, 68, 69, 110
NO_OPERATIONS = -(2**31)
TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    with KorvetServer("--set=group.share.assignment.interval.ms=0") as server:
        with connect(server) as client:
            topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1}
            client("CreateTopics", 7, topics=[topic], timeout=10_000, validate_only=False)
        yield server


@pytest.fixture
def ask(server: KorvetServer) -> Iterator[Client]:
    with connect(server) as client:
        yield client


Beat = "Callable[..., Any]"


@pytest.fixture
def beat(ask: Client, group: str) -> Beat:
    """Heartbeats of members of the test's group."""
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")

    def send(member_epoch: int = 0, member_id: str = "m", **fields: Any) -> Any:
        names = [TOPIC] if member_epoch == 0 else None
        wanted = {"rack_id": None, "subscribed_topic_names": names, "group_id": group} | fields
        return ask("ShareGroupHeartbeat", 1, member_id=member_id, member_epoch=member_epoch, **wanted)

    return send


@pytest.fixture
def member(beat: Beat) -> int:
    """A member that has all partitions, by its epoch."""
    epoch = until(lambda: (answer := beat()).error_code == 0 and answer.member_epoch, 20, "a coordinator")

    def all_partitions() -> int | None:
        nonlocal epoch
        answer = beat(epoch, subscribed_topic_names=[TOPIC])
        epoch = answer.member_epoch
        partitions = [number for each in answer.assignment.topic_partitions for number in each.partitions]
        return epoch if partitions == [*range(PARTITIONS)] else None

    return until(all_partitions, 20, "the member has all partitions")


def described(ask: Client, group: str, *, asked: bool = False) -> Any:
    (found,) = ask("ShareGroupDescribe", 1, group_ids=[group], include_authorized_operations=asked).groups
    return found


def test_join_share_and_leave(ask: Client, beat: Beat, member: int, group: str) -> None:
    assert beat(member).assignment is None
    joined = beat(0, "other", rack_id="r")
    assert (joined.error_code, joined.error_message, joined.member_id) == (0, None, "other")
    assert joined.heartbeat_interval == datetime.timedelta(seconds=5)
    ((topic,),) = [joined.assignment.topic_partitions]
    assert len(topic.partitions) == 1
    assert sum(len(each.partitions) for each in beat(member).assignment.topic_partitions) == 2
    found = described(ask, group, asked=True)
    assert (found.error_code, found.group_id, found.group_state, found.assignor_name) == (
        0,
        group,
        "Stable",
        "simple",
    )
    assert (found.group_epoch, found.assignment_epoch) == (joined.member_epoch, joined.member_epoch)
    assert found.authorized_operations != NO_OPERATIONS
    one, other = found.members
    assert (one.member_id, one.rack_id, one.client_id, one.client_host) == ("m", None, "api", "/127.0.0.1")
    assert (other.member_id, other.rack_id, other.subscribed_topic_names) == ("other", "r", (TOPIC,))
    (assigned,) = other.assignment.topic_partitions
    assert (assigned.topic_name, assigned.topic_id, assigned.partitions) == (
        TOPIC,
        topic.topic_id,
        topic.partitions,
    )
    assert beat(-1, "other").member_epoch == -1
    assert beat(joined.member_epoch, "other").error_code == UNKNOWN_MEMBER
    assert len(described(ask, group).members) == 1


def test_errors(ask: Client, beat: Beat, member: int) -> None:
    assert beat(3, group_id="nobody").error_code == NOT_FOUND
    assert beat(member + 1).error_code == FENCED_EPOCH
    assert beat(-2).error_code == INVALID_REQUEST
    assert beat(subscribed_topic_names=[]).error_code == INVALID_REQUEST
    assert beat(member_id="m" * 37).error_code == INVALID_REQUEST
    refused = beat(group_id="")
    assert (refused.error_code, refused.error_message) == (INVALID_REQUEST, "GroupId can't be empty.")
    assert described(ask, "").error_code == INVALID_GROUP_ID
    missing = described(ask, "nobody")
    assert (missing.error_code, missing.error_message) == (NOT_FOUND, "Group nobody not found.")


def test_other_apis_about_a_share_group(ask: Client, member: int, group: str) -> None:
    protocols = [{"name": "range", "metadata": b""}]
    joined = ask(
        "JoinGroup",
        9,
        group_id=group,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        protocol_type="consumer",
        protocols=protocols,
    )
    assert joined.error_code == INCONSISTENT_PROTOCOL
    consumer = ask(
        "ConsumerGroupHeartbeat",
        1,
        group_id=group,
        member_id="c",
        rebalance_timeout=1000,
        subscribed_topic_names=[TOPIC],
        topic_partitions=[],
    )
    assert (consumer.error_code, consumer.error_message) == (
        NOT_FOUND,
        f"Group {group} is not a consumer group.",
    )
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    committed = ask(
        "OffsetCommit",
        9,
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[{"name": TOPIC, "partitions": [partition]}],
    )
    assert committed.topics[0].partitions[0].error_code == NOT_FOUND
    wanted = [{"group_id": group, "member_epoch": -1, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}]
    (fetched,) = ask("OffsetFetch", 9, groups=wanted).groups
    (part,) = fetched.topics[0].partitions
    assert (fetched.error_code, part.error_code, part.committed_offset) == (0, 0, -1)
    assert ask("OffsetDelete", 0, group_id=group, topics=[]).error_code == NOT_FOUND
    (classic,) = ask("DescribeGroups", 6, groups=[group]).groups
    assert (classic.error_code, classic.error_message) == (
        NOT_FOUND,
        f"Group {group} is not a classic group.",
    )
    (found,) = ask("ConsumerGroupDescribe", 1, group_ids=[group]).groups
    assert found.error_code == NOT_FOUND


def test_listed_and_deleted(ask: Client, beat: Beat, member: int, group: str, server: KorvetServer) -> None:
    def listed(**filters: list[str]) -> dict[str, tuple[str, str, str]]:
        wanted = {"states_filter": [], "types_filter": []} | filters
        groups = ask("ListGroups", 5, **wanted).groups
        return {each.group_id: (each.group_type, each.protocol_type, each.group_state) for each in groups}

    assert listed(types_filter=["Share"])[group] == ("share", "share", "Stable")
    assert group not in listed(types_filter=["consumer", "classic"])
    assert group not in listed(types_filter=["share"], states_filter=["Empty"])

    def deleted() -> int:
        (result,) = ask("DeleteGroups", 2, groups_names=[group]).results
        return int(result.error_code)

    assert deleted() == NON_EMPTY_GROUP
    assert beat(-1).error_code == 0
    assert described(ask, group).group_state == "Empty"
    redis = server.redis
    streams = [f"korvet:{TOPIC}:{number}" for number in range(PARTITIONS)]
    assert all(group.encode() in {found["name"] for found in redis.xinfo_groups(each)} for each in streams)
    assert deleted() == 0
    assert not any(
        group.encode() in {found["name"] for found in redis.xinfo_groups(each)} for each in streams
    )
    assert group not in listed()
    assert deleted() == NOT_FOUND
    assert beat().error_code == 0, "the name can be used again"


def test_another_groups_name_is_taken(ask: Client, beat: Beat, group: str) -> None:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [partition]}]

    def commit() -> bool:
        answer = ask("OffsetCommit", 9, group_id=group, generation_id_or_member_epoch=-1, topics=topics)
        return bool(answer.topics[0].partitions[0].error_code == 0)

    until(commit, 20, "the coordinator has loaded")
    refused = beat()
    assert (refused.error_code, refused.error_message) == (NOT_FOUND, f"Group {group} is not a share group.")
    assert described(ask, group).error_message == f"Group {group} is not a share group."
