"""A consumer group in the form of ConsumerGroupDescribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from korvet.groups.consumer.messages import DescribedConsumer, DescribedConsumerGroup, NamedTopic

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from korvet.groups.consumer.group import ConsumerGroup
    from korvet.groups.consumer.member import Member
    from korvet.groups.consumer.topics import Topics


def describe(group: ConsumerGroup, topics: Topics, assignor: str) -> DescribedConsumerGroup:
    """The described group, without partitions of deleted topics."""
    members = tuple(_member(group, member, topics) for member in group.members.values())
    names = {topic.name for member in members for topic in (*member.assignment, *member.target)}
    return DescribedConsumerGroup(
        group.group_id,
        ErrorCode.none,
        None,
        group.state_name,
        group.epoch,
        group.target_epoch,
        assignor,
        members,
        group.subscribed_topics | names,
    )


def _member(group: ConsumerGroup, member: Member, topics: Topics) -> DescribedConsumer:
    known = member.subscription
    return DescribedConsumer(
        member.member_id,
        known.instance_id,
        known.rack_id,
        member.epoch,
        known.client_id,
        known.client_host,
        known.subscribed_topic_names,
        known.subscribed_topic_regex,
        named(member.assigned, topics),
        named(group.targets.get(member.member_id, {}), topics),
        member.is_classic,
    )


def named(partitions: Mapping[bytes, Collection[int]], topics: Topics) -> tuple[NamedTopic, ...]:
    """Partitions with the names of their topics."""
    found = ((topics.by_id(topic_id), numbers) for topic_id, numbers in partitions.items())
    return tuple(
        NamedTopic(topic.topic_id, topic.name, tuple(sorted(numbers)))
        for topic, numbers in found
        if topic is not None
    )
