"""The group APIs and committed offsets: every version, and Kafka's errors."""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from korvet.cli.app import korvet as korvet_command
from tests.api.asking import KEYS, Client, connect, frame, newest, versions
from tests.support.polling import until
from tests.support.servers import KorvetServer
from tests.support.wire import decode_response

if TYPE_CHECKING:
    from collections.abc import Iterator

UNKNOWN_TOPIC, METADATA_TOO_LARGE, NOT_FOUND, INVALID_REQUEST = 3, 12, 69, 42
ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_MEMBER = 22, 23, 24, 25
INVALID_SESSION_TIMEOUT, REBALANCE, MEMBER_ID_REQUIRED, FENCED_INSTANCE = 26, 27, 79, 82
NON_EMPTY_GROUP, UNKNOWN_TOPIC_ID, SUBSCRIBED = 68, 100, 86
BY_NAME = 9


def join_fields(group, member_id="", *, instance=None, session_ms=10_000, protocols=(("range", b"meta"),)):
    return {
        "group_id": group,
        "member_id": member_id,
        "group_instance_id": instance,
        "session_timeout": session_ms,
        "rebalance_timeout": 5000,
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata} for name, metadata in protocols],
    }


def join(ask, group, version=5, **more):
    """Join with a member ID, which the broker assigns first if the version requires it."""
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")
    answer = ask("JoinGroup", version, **join_fields(group, **more))
    if answer.error_code == MEMBER_ID_REQUIRED:
        more["member_id"] = answer.member_id
        answer = ask("JoinGroup", version, **join_fields(group, **more))
    return answer


def sync(ask, group, joined, version=3, assignments=(), generation=None):
    return ask(
        "SyncGroup",
        version,
        group_id=group,
        generation_id=joined.generation_id if generation is None else generation,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": member, "assignment": part} for member, part in assignments],
    )


def stable(ask, group, **more):
    """Create a group with one member. Returns the join response."""
    joined = join(ask, group, **more)
    assert joined.error_code == 0
    assert sync(ask, group, joined, assignments=[(joined.member_id, b"mine")]).assignment == b"mine"
    return joined


def test_a_protocol_that_a_client_chose_does_not_control_the_terminal(ask, broker, group):
    joined = join(ask, group, protocols=[("range\x1b[2J", b"meta")])
    assert sync(ask, group, joined, assignments=[(joined.member_id, b"")]).error_code == 0
    arguments = ["groups", "describe", group, "-b", broker.bootstrap]
    done = CliRunner().invoke(korvet_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output.splitlines()[0].split() == [group, "Stable", "range\ufffd[2J", "-"]


@versions("JoinGroup")
def test_join_sync_heartbeat_leave(ask, group, version):
    joined = join(ask, group, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (0, 1, "range")
    assert joined.leader == joined.member_id
    assert [(each.member_id, each.metadata) for each in joined.members] == [(joined.member_id, b"meta")]
    if version >= 7:
        assert joined.protocol_type == "consumer"
    for sync_version in range(6):
        got = sync(ask, group, joined, sync_version, [(joined.member_id, b"mine")])
        assert (got.error_code, got.assignment) == (0, b"mine")
        if sync_version >= 5:
            assert (got.protocol_type, got.protocol_name) == ("consumer", "range")
    for beat_version in range(5):
        fields = {"group_id": group, "member_id": joined.member_id}
        assert ask("Heartbeat", beat_version, generation_id=1, **fields).error_code == 0
        assert ask("Heartbeat", beat_version, generation_id=2, **fields).error_code == ILLEGAL_GENERATION
        assert ask("Heartbeat", beat_version, group_id=group, generation_id=1, member_id="x").error_code == 25
    leave_version = version % 6
    assert leave(ask, group, joined.member_id, leave_version) == [0]
    assert leave(ask, group, joined.member_id, leave_version) == [UNKNOWN_MEMBER]


def leave(ask, group, member_id, version):
    """Returns the error codes of the members, or of the request if it names one member."""
    members = [{"member_id": member_id, "group_instance_id": None, "reason": None}]
    answer = ask("LeaveGroup", version, group_id=group, member_id=member_id, members=members)
    if version < 3:
        return [answer.error_code]
    assert answer.error_code == 0
    return [member.error_code for member in answer.members]


@versions("JoinGroup")
def test_joins_that_are_refused(ask, group, version):
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")
    for fields, error in [
        (join_fields(""), INVALID_GROUP_ID),
        (join_fields(group, session_ms=1), INVALID_SESSION_TIMEOUT),
        (join_fields(group, session_ms=2**31 - 1), INVALID_SESSION_TIMEOUT),
        (join_fields(group, "nobody"), UNKNOWN_MEMBER),
        (join_fields(group, protocols=()), INCONSISTENT_PROTOCOL),
    ]:
        answer = ask("JoinGroup", version, **fields)
        assert answer.error_code == error
        assert (answer.generation_id, answer.members) == (-1, ())
    member_id = ask("JoinGroup", version, **join_fields(group)).member_id
    assert member_id


@versions("JoinGroup", since=4)
def test_a_member_id_is_given_first(ask, group, version):
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")
    answer = ask("JoinGroup", version, **join_fields(group))
    assert answer.error_code == MEMBER_ID_REQUIRED
    assert answer.member_id.startswith("api-")


@versions("SyncGroup")
def test_syncs_that_are_refused(ask, group, version):
    joined = stable(ask, group)
    assert sync(ask, group, joined, version, generation=9).error_code == ILLEGAL_GENERATION
    fields = {"generation_id": 1, "assignments": [], "protocol_type": "consumer", "protocol_name": "range"}
    assert ask("SyncGroup", version, group_id=group, member_id="x", **fields).error_code == UNKNOWN_MEMBER
    assert ask("SyncGroup", version, group_id="", member_id="x", **fields).error_code == INVALID_GROUP_ID


def test_a_sync_that_does_not_say_its_protocol(ask, group):
    joined = stable(ask, group)
    answer = ask("SyncGroup", 5, group_id=group, generation_id=1, member_id=joined.member_id)
    assert (answer.error_code, answer.assignment) == (INCONSISTENT_PROTOCOL, b"")


def test_a_second_member_and_the_rebalance(ask, another, group):
    first = stable(ask, group)
    other = another()
    asked = other("JoinGroup", 5, **join_fields(group))
    other.send("JoinGroup", 5, **join_fields(group, asked.member_id))
    beat = {"group_id": group, "generation_id": 1, "member_id": first.member_id}
    until(lambda: ask("Heartbeat", 3, **beat).error_code == REBALANCE, 10, "a rebalance")
    again = ask("JoinGroup", 5, **join_fields(group, first.member_id))
    second = other.receive("JoinGroup", 5)
    assert again.generation_id == second.generation_id == 2
    assert len(again.members) == 2
    assert second.members == ()
    other.send("SyncGroup", 3, group_id=group, generation_id=2, member_id=second.member_id, assignments=[])
    parts = [(first.member_id, b"a"), (second.member_id, b"b")]
    assert sync(ask, group, again, assignments=parts).assignment == b"a"
    assert other.receive("SyncGroup", 3).assignment == b"b"


def test_static_members(ask, another, group):
    first = stable(ask, group, instance="one")
    other = another()
    second = other("JoinGroup", 5, **join_fields(group, instance="one"))
    assert (second.error_code, second.generation_id) == (0, 1)
    assert second.member_id != first.member_id
    beat = {"group_id": group, "generation_id": 1, "group_instance_id": "one"}
    assert ask("Heartbeat", 3, member_id=first.member_id, **beat).error_code == FENCED_INSTANCE
    assert ask("Heartbeat", 3, member_id=second.member_id, **beat).error_code == 0
    gone = [{"member_id": "", "group_instance_id": "one", "reason": None}]
    answer = ask("LeaveGroup", 5, group_id=group, members=gone)
    assert [member.error_code for member in answer.members] == [0]


@versions("DescribeGroups")
def test_describe_groups(ask, group, fresh, version):
    joined = stable(ask, group)
    unknown = fresh("never")
    groups = {each.group_id: each for each in ask("DescribeGroups", version, groups=[group, unknown]).groups}
    described, missing = groups[group], groups[unknown]
    assert (described.error_code, described.group_id, described.group_state) == (0, group, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "api", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"meta", b"mine")
    assert (missing.group_state, missing.members) == ("Dead", ())
    assert missing.error_code == (NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert described.authorized_operations == -(2**31)


@versions("ListGroups")
def test_list_groups(ask, group, fresh, version):
    stable(ask, group)
    empty = fresh("empty")
    joined = stable(ask, empty)
    leave(ask, empty, joined.member_id, 0)

    def listed(**filters):
        answer = ask("ListGroups", version, **filters)
        assert answer.error_code == 0
        return {each.group_id: each for each in answer.groups}

    assert {group, empty} <= set(listed())
    assert listed()[group].protocol_type == "consumer"
    if version >= 4:
        assert listed()[group].group_state == "Stable"
        assert group in listed(states_filter=["Stable"])
        assert group in listed(states_filter=["stable"])
        assert empty not in listed(states_filter=["Stable"])
        assert empty in listed(states_filter=["Empty", "Dead"])
    if version >= 5:
        assert listed()[group].group_type == "classic"
        assert group in listed(types_filter=["classic"])
        assert group not in listed(types_filter=["consumer"])


@pytest.fixture(scope="module")
def sweeping() -> Iterator[Client]:
    """A connection to a server that continuously removes expired groups."""
    often = "--set", "offsets.retention.check.interval.ms=1"
    with KorvetServer(*often) as server, connect(server) as client:
        yield client


def test_an_empty_group_without_offsets_is_removed(sweeping):
    leave(sweeping, "left", stable(sweeping, "left").member_id, 0)

    def is_gone():
        (described,) = sweeping("DescribeGroups", 5, groups=["left"]).groups
        return described.group_state == "Dead"

    until(is_gone, 20, "the group's removal")
    assert "left" not in {each.group_id for each in sweeping("ListGroups", 4).groups}


def test_a_member_id_that_was_given_out_outlives_the_checks(sweeping):
    asked = {name: sweeping("JoinGroup", 5, **join_fields(name)) for name in map("new-{}".format, range(10))}
    assert {answer.error_code for answer in asked.values()} == {MEMBER_ID_REQUIRED}
    stable(sweeping, "meanwhile")
    for name, answer in asked.items():
        assert stable(sweeping, name, member_id=answer.member_id).member_id == answer.member_id


@versions("DeleteGroups")
def test_delete_groups(ask, group, fresh, version):
    empty, busy, unknown = group, fresh("busy"), fresh("never")
    leave(ask, empty, stable(ask, empty).member_id, 0)
    stable(ask, busy)
    results = ask("DeleteGroups", version, groups_names=[empty, busy, unknown]).results
    assert {each.group_id: int(each.error_code) for each in results} == {
        empty: 0,
        busy: NON_EMPTY_GROUP,
        unknown: NOT_FOUND,
    }


def commit(ask, group, parts, version=BY_NAME, *, generation=-1, member="", instance=None):
    """`parts` are (topic, partition, offset, metadata); the partitions' errors."""
    topics = [
        {
            "name": topic,
            "topic_id": topic,
            "partitions": [
                {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
            ],
        }
        for topic, partition, offset, metadata in parts
    ]
    answer = ask(
        "OffsetCommit",
        version,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        retention_time=-1,
        topics=topics,
    )
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def committed(ask, group, asked, version=BY_NAME):
    """{(topic, partition): (offset, metadata, error)}; `asked` is None for all, or [(topic, partitions)]."""
    topics = None
    if asked is not None:
        topics = [{"name": name, "topic_id": name, "partition_indexes": indexes} for name, indexes in asked]
    answer = ask(
        "OffsetFetch",
        version,
        group_id=group,
        topics=topics,
        groups=[{"group_id": group, "topics": topics, "member_epoch": -1}],
    )
    found = answer if version < 8 else answer.groups[0]
    if version >= 2:
        assert found.error_code == 0
    return {
        (topic.topic_id if version >= 10 else topic.name, part.partition_index): (
            part.committed_offset,
            part.metadata,
            int(part.error_code),
        )
        for topic in found.topics
        for part in topic.partitions
    }


@pytest.fixture
def coordinator(ask, group):
    """Returns the name of a group whose coordinator is ready."""
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")
    until(lambda: ask("Heartbeat", 0, group_id=group).error_code == UNKNOWN_MEMBER, 20, "it is loaded")
    return group


@versions("OffsetCommit")
def test_commits(ask, coordinator, new_topic, topic_ids, fresh, version):
    name = new_topic(2)
    named = topic_ids(name) if version >= 10 else name
    nobody = uuid.uuid4() if version >= 10 else fresh("never")
    parts = [
        (named, 0, 5, "meta"),
        (named, 1, 2**62, None),
        (named, 2, 0, ""),
        (named, -1, 0, ""),
        (nobody, 0, 0, ""),
    ]
    unknown = UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC
    assert sorted(commit(ask, coordinator, parts, version)) == sorted([0, 0, 3, 3, unknown])
    assert committed(ask, coordinator, None) == {(name, 0): (5, "meta", 0), (name, 1): (2**62, "", 0)}


@versions("OffsetCommit")
def test_a_consumer_commits_again_and_again(ask, another, group, new_topic, topic_ids, version):
    name, gone = new_topic(2), new_topic(1)
    named, parting = (topic_ids(name), topic_ids(gone)) if version >= 10 else (name, gone)
    joined = stable(ask, group)
    client = another()

    def commits(at: int, generation: int = 1) -> list[int]:
        parts = [(named, 0, at, "m"), (named, 1, at * 2**40, "m"), (parting, 0, at, "m")]
        return commit(client, group, parts, version, generation=generation, member=joined.member_id)

    for at in range(1, 6):
        assert commits(at) == [0, 0, 0]
        assert committed(ask, group, [(name, [0, 1])]) == {
            (name, 0): (at, "m", 0),
            (name, 1): (at * 2**40, "m", 0),
        }
    (deleted,) = ask("DeleteTopics", 6, topics=[{"name": gone}], timeout=20_000).responses
    assert deleted.error_code == 0
    unknown = UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_TOPIC
    assert commits(6) == [0, 0, unknown]
    assert commits(7, generation=2) == [ILLEGAL_GENERATION, ILLEGAL_GENERATION, unknown]
    assert commits(8) == [0, 0, unknown]
    assert ask("LeaveGroup", 1, group_id=group, member_id=joined.member_id).error_code == 0
    assert commits(9) == [UNKNOWN_MEMBER, UNKNOWN_MEMBER, unknown]
    assert committed(ask, group, [(name, [0])])[name, 0][0] == 8


@versions("OffsetCommit")
def test_commits_that_are_refused(ask, group, topic, topic_ids, version):
    named = topic_ids(topic) if version >= 10 else topic
    joined = stable(ask, group)
    one = [(named, 0, 1, "")]
    member = {"generation": 1, "member": joined.member_id}
    assert commit(ask, group, one, version, **member) == [0]
    assert commit(ask, group, one, version, generation=2, member=joined.member_id) == [ILLEGAL_GENERATION]
    assert commit(ask, group, one, version, generation=1, member="nobody") == [UNKNOWN_MEMBER]
    assert commit(ask, group, one, version) == [UNKNOWN_MEMBER]
    assert commit(ask, group, [(named, 0, 9, "x" * 4097)], version, **member) == [METADATA_TOO_LARGE]
    assert commit(ask, group, [(named, 0, 9, "😀" * 2049)], version, **member) == [METADATA_TOO_LARGE]
    # Kafka returns partitions that do not exist first.
    mixed = [(named, 0, 9, "x" * 4097), (named, 7, 9, "x" * 4097)]
    assert sorted(commit(ask, group, mixed, version, **member)) == [UNKNOWN_TOPIC, METADATA_TOO_LARGE]
    assert sorted(commit(ask, group, mixed, version, generation=2, member=joined.member_id)) == [
        UNKNOWN_TOPIC,
        ILLEGAL_GENERATION,
    ]
    assert commit(ask, group, [(named, 0, 9, "x" * 4096)], version, **member) == [0]
    assert committed(ask, group, [(topic, [0])])[topic, 0][0] == 9


@versions("OffsetFetch")
def test_offset_fetch(ask, coordinator, new_topic, topic_ids, fresh, version):
    name = new_topic(2)
    assert commit(ask, coordinator, [(name, 0, 7, "m")]) == [0]
    named = topic_ids(name) if version >= 10 else name
    expected = {(named, 0): (7, "m", 0), (named, 1): (-1, "", 0), (named, 9): (-1, "", 0)}
    assert committed(ask, coordinator, [(named, [0, 1, 9])], version) == expected
    assert committed(ask, fresh("never"), [(named, [0])], version) == {(named, 0): (-1, "", 0)}
    if version >= 2:
        assert committed(ask, coordinator, None, version) == {(named, 0): (7, "m", 0)}
        assert committed(ask, fresh("never"), None, version) == {}
    if version >= 10:
        nobody = uuid.uuid4()
        found = committed(ask, coordinator, [(nobody, [0]), (named, [0])], version)
        assert found == {(nobody, 0): (-1, "", UNKNOWN_TOPIC_ID), (named, 0): (7, "m", 0)}
    else:
        other = fresh("never")
        assert committed(ask, coordinator, [(other, [0])], version) == {(other, 0): (-1, "", 0)}


@versions("OffsetFetch", since=8)
def test_offset_fetch_of_several_groups(ask, coordinator, topic, topic_ids, fresh, version):
    assert commit(ask, coordinator, [(topic, 0, 7, "m")]) == [0]
    named = topic_ids(topic) if version >= 10 else topic
    wanted = [{"name": named, "topic_id": named, "partition_indexes": [0]}]
    unknown = fresh("never")
    groups = [{"group_id": each, "topics": wanted, "member_epoch": -1} for each in (coordinator, unknown)]
    answer = ask("OffsetFetch", version, groups=groups)
    found = {each.group_id: each.topics[0].partitions[0].committed_offset for each in answer.groups}
    assert found == {coordinator: 7, unknown: -1}


def test_offset_delete(ask, coordinator, new_topic, fresh):
    name, never = new_topic(2), fresh("never")
    commit(ask, coordinator, [(name, 0, 1, ""), (name, 1, 2, "")])

    def delete(group, asked):
        topics = [
            {"name": topic, "partitions": [{"partition_index": index} for index in parts]}
            for topic, parts in asked
        ]
        answer = ask("OffsetDelete", 0, group_id=group, topics=topics)
        return answer.error_code, {
            (topic.name, each.partition_index): int(each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        }

    assert delete(coordinator, [(name, [0])]) == (0, {(name, 0): 0})
    assert committed(ask, coordinator, None) == {(name, 1): (2, "", 0)}
    assert delete(coordinator, [(never, [0])]) == (0, {(never, 0): UNKNOWN_TOPIC})
    assert delete(fresh("never"), [(name, [0])]) == (NOT_FOUND, {})
    assert delete("", [(name, [0])])[0] in (INVALID_GROUP_ID, NOT_FOUND)


@versions("FindCoordinator")
def test_find_coordinator(ask, broker, group, version):
    if version < 4:
        answer = ask("FindCoordinator", version, key=group, key_type=0)
        assert (answer.error_code, answer.host, answer.port) == (0, broker.host, broker.port)
        return
    answer = ask("FindCoordinator", version, key_type=0, coordinator_keys=[group, f"{group}-2"])
    assert [(each.key, each.error_code, each.port) for each in answer.coordinators] == [
        (group, 0, broker.port),
        (f"{group}-2", 0, broker.port),
    ]


@versions("FindCoordinator", since=1)
def test_coordinators_of_other_kinds(ask, korvet, version):
    for key_type in (2, 9, -1):
        answer = ask("FindCoordinator", version, key="k", key_type=key_type, coordinator_keys=["k"])
        found = answer if version < 4 else answer.coordinators[0]
        assert (found.error_code, found.node_id, found.port) == (INVALID_REQUEST, -1, -1)


def test_a_member_that_hangs_up_while_it_waits(ask, another, group):
    """The second member's join waits for the first member.

    If it leaves, the first member continues as before.
    """
    first = stable(ask, group)
    other = another()
    member_id = other("JoinGroup", 5, **join_fields(group)).member_id
    other.send("JoinGroup", 5, **join_fields(group, member_id))
    beat = {"group_id": group, "generation_id": 1, "member_id": first.member_id}
    until(lambda: ask("Heartbeat", 3, **beat).error_code == REBALANCE, 10, "a rebalance")
    other.raw.socket.close()
    again = ask("JoinGroup", 5, **join_fields(group, first.member_id))
    assert (again.error_code, again.generation_id) == (0, 2)


@pytest.mark.parametrize("name", ["JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"])
def test_group_ids_that_cannot_be(ask, name):
    fields = join_fields("", "m") | {"members": [{"member_id": "m"}], "protocol_name": "range"}
    assert ask(name, newest(name), **fields).error_code == INVALID_GROUP_ID


@versions("DescribeGroups")
def test_no_member_is_let_in_that_a_description_cannot_hold(ask, another, fresh, version):
    group = fresh("group")
    joined = stable(ask, group)
    long = another()
    for join_version in (5, 9):
        asked = frame("JoinGroup", join_version, 1, **join_fields(group))
        # Member IDs begin with the client ID of the request's header.
        long.raw.send(asked[:8] + struct.pack(">h", 32_760) + b"c" * 32_760 + asked[13:])
        answer = decode_response(KEYS["JoinGroup"], join_version, long.raw.receive()).message
        assert (answer.error_code, answer.member_id) == (INVALID_REQUEST, "")
    (told,) = ask("DescribeGroups", version, groups=[group]).groups
    assert told.error_code == 0
    assert [member.member_id for member in told.members] == [joined.member_id]
