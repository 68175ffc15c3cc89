"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848): every version, and Kafka's errors."""

from __future__ import annotations

import datetime
import uuid

import pytest

from tests.api.asking import newest, versions
from tests.api.test_groups import INVALID_GROUP_ID, commit
from tests.support.polling import until

INVALID_REQUEST, UNKNOWN_MEMBER, NOT_FOUND, FENCED_EPOCH, STALE_EPOCH = 42, 25, 69, 110, 113
UNSUPPORTED_ASSIGNOR, UNRELEASED_INSTANCE, INVALID_REGEX, UNSUPPORTED_VERSION = 112, 111, 128, 35
UNCHANGED = (
    "subscribed_topic_names",
    "subscribed_topic_regex",
    "server_assignor",
    "instance_id",
    "rack_id",
)
MEMBER = "made-by-the-client"


@pytest.fixture
def beat(ask, group):
    """Heartbeats of members of the test's group."""
    until(lambda: ask("FindCoordinator", 1, key=group, key_type=0).error_code == 0, 20, "a coordinator")

    def send(version=1, member_id=MEMBER, member_epoch=0, **fields):
        changed = {
            "rebalance_timeout": 5_000 if member_epoch == 0 else -1,
            "topic_partitions": [] if member_epoch == 0 else None,
        }
        return ask(
            "ConsumerGroupHeartbeat",
            version,
            group_id=group,
            member_id=member_id,
            member_epoch=member_epoch,
            **{**dict.fromkeys(UNCHANGED), **changed, **fields},
        )

    return send


def assigned(answer):
    return [(each.topic_id, each.partitions) for each in answer.assignment.topic_partitions]


@versions("ConsumerGroupHeartbeat")
def test_join_stay_and_leave(beat, new_topic, topic_ids, version):
    topic = new_topic(3)
    joined = beat(version, subscribed_topic_names=[topic])
    assert (joined.error_code, joined.error_message, joined.member_epoch) == (0, None, 2)
    assert joined.heartbeat_interval == datetime.timedelta(seconds=5)
    assert assigned(joined) == [(topic_ids(topic), (0, 1, 2))]
    owned = [{"topic_id": topic_ids(topic), "partitions": [0, 1, 2]}]
    stays = beat(version, member_epoch=2, topic_partitions=owned)
    assert (stays.error_code, stays.member_id, stays.member_epoch) == (0, MEMBER, 2)
    assert stays.assignment is None
    left = beat(version, member_epoch=-1)
    assert (left.error_code, left.member_id, left.member_epoch) == (0, MEMBER, -1)
    assert beat(version, member_epoch=2).error_code == UNKNOWN_MEMBER


def test_member_ids_are_given_out_in_v0_only(beat, topic):
    given = beat(0, member_id="", subscribed_topic_names=[topic])
    assert (given.error_code, bool(given.member_id)) == (0, True)
    refused = beat(1, member_id="", subscribed_topic_names=[topic])
    assert (refused.error_code, refused.error_message) == (INVALID_REQUEST, "MemberId can't be empty.")


def test_errors(beat, topic):
    assert beat(member_epoch=1).error_code == NOT_FOUND
    assert beat(subscribed_topic_names=None).error_code == INVALID_REQUEST
    assert beat(subscribed_topic_names=[topic], server_assignor="no").error_code == UNSUPPORTED_ASSIGNOR
    invalid = beat(subscribed_topic_regex="(")
    assert invalid.error_code == INVALID_REGEX
    assert "SubscribedTopicRegex `(` is not a valid regular expression" in invalid.error_message
    assert beat(subscribed_topic_names=[topic], instance_id="one").error_code == 0
    assert beat(member_epoch=9, instance_id="one").error_code == FENCED_EPOCH
    other = beat(member_id="other", subscribed_topic_names=[topic], instance_id="one")
    assert other.error_code == UNRELEASED_INSTANCE


def test_regex(beat, new_topic, topic_ids, fresh):
    topic = new_topic(2)
    joined = beat(subscribed_topic_regex=f"{topic[:-1]}.")
    assert (topic_ids(topic), (0, 1)) in assigned(joined)


@versions("ConsumerGroupDescribe")
def test_describe(ask, beat, new_topic, topic_ids, group, version):
    topic = new_topic(2)
    beat(subscribed_topic_names=[topic], rack_id="r", instance_id="i")
    (found,) = ask("ConsumerGroupDescribe", version, group_ids=[group]).groups
    assert (found.error_code, found.group_id, found.group_state) == (0, group, "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (2, 2, "uniform")
    (member,) = found.members
    assert (member.member_id, member.member_epoch) == (MEMBER, 2)
    assert (member.rack_id, member.instance_id) == ("r", "i")
    assert member.subscribed_topic_names == (topic,)
    for told in (member.assignment, member.target_assignment):
        (part,) = told.topic_partitions
        assert (part.topic_id, part.topic_name, part.partitions) == (topic_ids(topic), topic, (0, 1))
    if version >= 1:
        assert member.member_type == 1
    (other,) = ask("ConsumerGroupDescribe", version, group_ids=["no such group"]).groups
    assert (other.error_code, other.error_message) == (NOT_FOUND, "Group no such group not found.")


def test_the_classic_apis_know_the_group_by_its_type(ask, beat, topic, group):
    beat(subscribed_topic_names=[topic])
    (listed,) = [each for each in ask("ListGroups", 5).groups if each.group_id == group]
    assert (listed.group_type, listed.protocol_type, listed.group_state) == ("consumer", "consumer", "Stable")
    assert group not in [each.group_id for each in ask("ListGroups", 5, types_filter=["classic"]).groups]
    (described,) = ask("DescribeGroups", 6, groups=[group]).groups
    assert (described.error_code, described.group_state) == (NOT_FOUND, "Dead")
    assert described.error_message == f"Group {group} is not a classic group."
    (deleted,) = ask("DeleteGroups", 2, groups_names=[group]).results
    assert deleted.error_code == 68
    beat(member_epoch=-1)
    (deleted,) = ask("DeleteGroups", 2, groups_names=[group]).results
    assert deleted.error_code == 0


def test_commits_and_fetches_say_their_epoch(ask, beat, topic, topic_ids, group):
    beat(subscribed_topic_names=[topic])

    def commit(epoch, version=9):
        part = {"partition_index": 0, "committed_offset": 3}
        named = {"name": topic, "topic_id": topic_ids(topic), "partitions": [part]}
        answer = ask(
            "OffsetCommit",
            version,
            group_id=group,
            generation_id_or_member_epoch=epoch,
            member_id=MEMBER,
            topics=[named],
        )
        return answer.topics[0].partitions[0].error_code

    assert commit(2) == commit(2, 10) == 0
    assert commit(3) == STALE_EPOCH
    assert commit(2, 8) == UNSUPPORTED_VERSION

    def fetch(epoch, member_id=MEMBER):
        asked = {"group_id": group, "member_id": member_id, "member_epoch": epoch, "topics": None}
        (answer,) = ask("OffsetFetch", 9, groups=[asked]).groups
        return answer.error_code

    assert fetch(2) == fetch(-1, None) == 0
    assert fetch(1) == STALE_EPOCH
    assert fetch(2, "other") == UNKNOWN_MEMBER


def test_topics_of_any_id_may_be_owned(beat, topic):
    beat(subscribed_topic_names=[topic])
    owned = [{"topic_id": uuid.UUID(int=5), "partitions": [0]}]
    assert beat(member_epoch=2, topic_partitions=owned).error_code == 0


def test_an_empty_group_that_has_commits_has_no_members(ask, topic):
    """Simple consumers may commit in it. As in Kafka, it can't be described as a group of consumers."""
    until(lambda: ask("FindCoordinator", 1, key="", key_type=0).error_code == 0, 20, "a coordinator")
    assert commit(ask, "", [(topic, 0, 5, "")]) == [0]
    beat = {"group_id": "", "generation_id": 1, "member_id": "x"}
    assert ask("Heartbeat", newest("Heartbeat"), **beat).error_code == INVALID_GROUP_ID
    (described,) = ask("ConsumerGroupDescribe", newest("ConsumerGroupDescribe"), group_ids=[""]).groups
    assert (described.error_code, described.error_message) == (INVALID_GROUP_ID, None)
