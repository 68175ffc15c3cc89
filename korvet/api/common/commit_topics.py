"""The topics of an OffsetCommit or TxnOffsetCommit request as the group's coordinator takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.groups.messages import NO_LEADER_EPOCH, CommitPartition, CommitTopic
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext


def commit_topic(context: RequestContext, topic: Any, *, by_id: bool) -> CommitTopic:
    """A topic of the decoded request, found by its ID or name. Partitions that cannot be committed carry the
    error (`refusal`).
    """
    directory = context.services.topics
    if by_id:
        found = None if topic.topic_id is None else directory.by_id(topic.topic_id)
        name, unknown = "" if found is None else found.name, ErrorCode.unknown_topic_id
    else:
        found = directory.get(topic.name)
        name, unknown = topic.name, ErrorCode.unknown_topic_or_partition
    count, refusal = 0 if found is None else found.partitions, unknown
    if name and not context.may(Operation.READ, ResourceType.TOPIC, name):
        count, refusal = 0, ErrorCode.topic_authorization_failed
    elif found is not None:
        refusal = ErrorCode.unknown_topic_or_partition
    partitions = tuple(
        [
            CommitPartition(
                partition.partition_index,
                partition.committed_offset,
                # Versions before v6, of transactions before v2, have none.
                getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
                partition.committed_metadata,
                ErrorCode.none if 0 <= partition.partition_index < count else refusal,
            )
            for partition in topic.partitions
        ]
    )
    return CommitTopic(name, partitions, None if found is None else found.topic_id.bytes)
