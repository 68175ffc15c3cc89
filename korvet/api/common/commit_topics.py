"""What OffsetCommit and TxnOffsetCommit say of one topic, as its coordinator takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from kio.schema.errors import ErrorCode

from korvet.groups.messages import CommitPartition, CommitTopic
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.api.common.offset_commit_form import AskedTopic


def commit_topic(context: RequestContext, asked: AskedTopic, *, by_id: bool = False) -> CommitTopic:
    """A topic of a request, by its id or name; partitions that can't be committed say why."""
    directory = context.services.topics
    if by_id:
        topic = None if asked.topic_id is None else directory.by_id(asked.topic_id)
        unknown = ErrorCode.unknown_topic_id
    else:
        topic = directory.get(asked.name)
        unknown = ErrorCode.unknown_topic_or_partition
    name = asked.name if topic is None else topic.name
    partitions = asked.partitions
    if name and not context.may(Operation.READ, ResourceType.TOPIC, name):
        partitions = tuple(_refused(each, ErrorCode.topic_authorization_failed) for each in partitions)
    elif topic is None:
        partitions = tuple(_refused(each, unknown) for each in partitions)
    else:
        count = topic.partitions
        partitions = tuple(
            [
                each if 0 <= each.partition < count else _refused(each, ErrorCode.unknown_topic_or_partition)
                for each in partitions
            ]
        )
    return CommitTopic(name, partitions, None if topic is None else topic.topic_id.bytes)


def _refused(partition: CommitPartition, error: ErrorCode) -> CommitPartition:
    return msgspec.structs.replace(partition, refusal=error)
