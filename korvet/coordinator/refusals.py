"""Replies to requests that no shard could handle: one error, in the shape of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kio.schema.errors import ErrorCode

from korvet.groups.commits import refuse_all
from korvet.groups.consumer.messages import (
    ConsumerDescribeReply,
    ConsumerDescribeRequest,
    ConsumerHeartbeatRequest,
    DescribedConsumerGroup,
    MemberHeartbeatReply,
)
from korvet.groups.messages import (
    CommitReply,
    CommitRequest,
    DeletedGroup,
    DeleteReply,
    DeleteRequest,
    DescribedGroup,
    DescribeReply,
    DescribeRequest,
    FetchReply,
    FetchRequest,
    HeartbeatReply,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeaveRequest,
    ListReply,
    ListRequest,
    OffsetDeleteReply,
    OffsetDeleteRequest,
    PutReply,
    PutRequest,
    Reply,
    SyncReply,
    SyncRequest,
)
from korvet.groups.share.messages import (
    DescribedShareGroup,
    EndStatesRequest,
    RemoveStatesRequest,
    RestartStatesRequest,
    ShareDescribeReply,
    ShareDescribeRequest,
    ShareHeartbeatRequest,
    StatesReply,
    StatesRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

GroupRequest: TypeAlias = (
    JoinRequest
    | SyncRequest
    | HeartbeatRequest
    | LeaveRequest
    | CommitRequest
    | FetchRequest
    | DescribeRequest
    | ListRequest
    | DeleteRequest
    | OffsetDeleteRequest
    | ConsumerHeartbeatRequest
    | ConsumerDescribeRequest
    | ShareHeartbeatRequest
    | ShareDescribeRequest
    | StatesRequest
    | RestartStatesRequest
    | RemoveStatesRequest
    | EndStatesRequest
    | PutRequest
)
"""A request that concerns the groups that it names, or all groups of a partition."""


def refuse(request: GroupRequest, error: ErrorCode) -> Reply:
    """The reply with `error` for every element of `request`."""
    return _REFUSALS[type(request)](request, error)


def _join(request: JoinRequest, error: ErrorCode) -> JoinReply:
    return JoinReply(error, member_id=request.member_id)


def _sync(_request: SyncRequest, error: ErrorCode) -> SyncReply:
    # Java consumers raise other errors of SyncGroup to the application; with this one they join again.
    loading = error is ErrorCode.coordinator_load_in_progress
    return SyncReply(ErrorCode.rebalance_in_progress if loading else error)


def _commit(request: CommitRequest, error: ErrorCode) -> CommitReply:
    return CommitReply(refuse_all(request.topics, error))


def _fetch(request: FetchRequest, error: ErrorCode) -> FetchReply:
    # Apache Kafka does not return COORDINATOR_NOT_AVAILABLE to OffsetFetch: librdkafka would ask no more, and
    # Java consumers would raise it to the application.
    unavailable = error is ErrorCode.coordinator_not_available
    return FetchReply(request.group_id, ErrorCode.coordinator_load_in_progress if unavailable else error)


def _describe(request: DescribeRequest, error: ErrorCode) -> DescribeReply:
    return DescribeReply(
        tuple(DescribedGroup(group_id, error, None, "", "", "", ()) for group_id in request.group_ids)
    )


def _delete(request: DeleteRequest, error: ErrorCode) -> DeleteReply:
    return DeleteReply(tuple(DeletedGroup(group_id, error) for group_id in request.group_ids))


_REFUSALS: dict[type, Callable[[Any, ErrorCode], Reply]] = {
    JoinRequest: _join,
    SyncRequest: _sync,
    HeartbeatRequest: lambda _request, error: HeartbeatReply(error),
    LeaveRequest: lambda _request, error: LeaveReply(error),
    CommitRequest: _commit,
    FetchRequest: _fetch,
    DescribeRequest: _describe,
    ListRequest: lambda _request, error: ListReply((), error),
    DeleteRequest: _delete,
    OffsetDeleteRequest: lambda _request, error: OffsetDeleteReply(error),
    ConsumerHeartbeatRequest: lambda _request, error: MemberHeartbeatReply(error),
    ConsumerDescribeRequest: lambda request, error: ConsumerDescribeReply(
        tuple(DescribedConsumerGroup(group_id, error) for group_id in request.group_ids)
    ),
    ShareHeartbeatRequest: lambda _request, error: MemberHeartbeatReply(error),
    ShareDescribeRequest: lambda request, error: ShareDescribeReply(
        tuple(DescribedShareGroup(group_id, error) for group_id in request.group_ids)
    ),
    PutRequest: lambda _request, error: PutReply(error),
} | dict.fromkeys(
    (StatesRequest, RestartStatesRequest, RemoveStatesRequest, EndStatesRequest),
    lambda _request, error: StatesReply(error),
)
