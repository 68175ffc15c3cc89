"""Groups of the newer protocols as ConsumerGroupDescribe and ShareGroupDescribe answer."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol

from kio.schema.errors import ErrorCode

from korvet.api.common.operations import NOT_ASKED, operations_on
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from korvet.api.common.context import RequestContext
    from korvet.coordinator.term import Handler
    from korvet.groups.consumer.messages import NamedTopic


class Described(Protocol):
    """What the coordinator says of a group."""

    group_id: str
    error: ErrorCode
    error_message: str | None
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[Any, ...]

    @property
    def topics(self) -> Collection[str]:
        """The topics that clients must be allowed to describe."""


def refused_groups(context: RequestContext, group_ids: Iterable[str], error: ErrorCode) -> tuple[Any, ...]:
    """Every group with the error."""
    return tuple(_refused(context, group_id, error) for group_id in group_ids)


async def described_groups(
    context: RequestContext,
    request: Any,
    describe: Handler,
    asked: Callable[[tuple[str, ...]], Any],
    member: Callable[[RequestContext, Any], Any],
) -> tuple[Any, ...]:
    """The groups that a request names. describe: the coordinator's method, `asked` makes its request;
    `member` makes the structure of a member.
    """
    groups = []
    async for group_id in sliced(dict.fromkeys(request.group_ids)):
        if not context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            groups.append(_refused(context, group_id, ErrorCode.group_authorization_failed))
        elif not group_id:
            groups.append(_refused(context, group_id, ErrorCode.invalid_group_id))
        else:
            reply = await context.services.coordinator.call(group_id, describe, asked((group_id,)))
            shows_operations = request.include_authorized_operations
            operations = (
                operations_on(context, ResourceType.GROUP, group_id) if shows_operations else NOT_ASKED
            )
            groups += [_group(context, group, member, operations) for group in reply.groups]
    return tuple(groups)


def assignment(context: RequestContext, topics: tuple[NamedTopic, ...]) -> Any:
    """The structure of partitions."""
    partitions = tuple(
        context.make(
            "TopicPartitions",
            topic_id=uuid.UUID(bytes=topic.topic_id),
            topic_name=topic.name,
            partitions=topic.partitions,
        )
        for topic in topics
    )
    return context.make("Assignment", topic_partitions=partitions)


def _group(
    context: RequestContext,
    group: Described,
    member: Callable[[RequestContext, Any], Any],
    operations: int,
) -> Any:
    if group.error is not ErrorCode.none:
        return _refused(context, group.group_id, group.error, group.error_message)
    if not all(context.may(Operation.DESCRIBE, ResourceType.TOPIC, name) for name in group.topics):
        return _refused(
            context,
            group.group_id,
            ErrorCode.topic_authorization_failed,
            "The group has described topic(s) that the client is not authorized to describe.",
        )
    return context.make(
        "DescribedGroup",
        error_code=group.error,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=tuple(member(context, each) for each in group.members),
        authorized_operations=operations,
    )


def _refused(context: RequestContext, group_id: str, error: ErrorCode, message: str | None = None) -> Any:
    return context.make(
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
        authorized_operations=NOT_ASKED,
    )
