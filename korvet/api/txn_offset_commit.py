"""TxnOffsetCommit (key 28), versions 0-6 (KIP-98).

The offsets count once the transaction is committed. v2 adds leader epochs. v3 is flexible and adds the
consumer's member and generation, which fence it (KIP-447). v4 may return TRANSACTION_ABORTABLE. v5 adds the
group's partition of `__consumer_offsets` to the transaction if necessary (KIP-890). v6 names topics by ID
(KIP-1319).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.commit_topics import commit_topic
from korvet.groups.messages import CommitReply, CommitRequest
from korvet.groups.shard import GroupShard
from korvet.protocol.registry import api
from korvet.redis.futures import resolve
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.transactions.messages import BUMPING_PROTOCOL, AddRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.api.common.context import RequestContext

_ABORTABLE_SINCE: Final = 4
_ADDS_SINCE: Final = 5
_TOPIC_IDS_SINCE: Final = 6
# Errors that end soon: the transaction coordinator, or another one, will answer. All clients retry.
_PASSING: Final = frozenset(
    {
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.request_timed_out,
    }
)


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        _topic(
            context, topic, [_partition(context, each.partition_index, error) for each in topic.partitions]
        )
        for topic in request.topics
    )
    return context.make("TxnOffsetCommitResponse", topics=topics)


@api(28, "TxnOffsetCommit", (0, 6), refuse=refuse)
async def txn_offset_commit(context: RequestContext, request: Any) -> Any:
    """Commit offsets in a transaction that the group's partition of `__consumer_offsets` belongs to."""
    if not context.may(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
        return refuse(context, request, ErrorCode.transactional_id_authorization_failed)
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id):
        return refuse(context, request, ErrorCode.group_authorization_failed)
    adds, by_id = context.api_version >= _ADDS_SINCE, context.api_version >= _TOPIC_IDS_SINCE
    partition = context.services.coordinator.partition_of(request.group_id)
    asked = AddRequest(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        frozenset({partition}),
        BUMPING_PROTOCOL if adds else 0,
        verify_only=not adds,
    )
    topics = [commit_topic(context, topic, by_id=by_id) async for topic in sliced(request.topics)]
    # Others get a turn: one topic may have 100,000 partitions.
    await asyncio.sleep(0)
    commit = CommitRequest(
        group_id=request.group_id,
        topics=tuple(topics),
        generation_id=getattr(request, "generation_id", -1),
        member_id=getattr(request, "member_id", ""),
        group_instance_id=getattr(request, "group_instance_id", None),
        knows_member_epochs=by_id,
        producer=(request.producer_id, request.producer_epoch),
    )
    if not request.group_id:
        return await _refuse_others(context, request, commit, ErrorCode.invalid_group_id)
    if all(each.refusal is not ErrorCode.none for topic in commit.topics for each in topic.partitions):
        # No offset is left to commit, so the transaction does not matter.
        return await _refuse_others(context, request, commit, ErrorCode.none)
    answer: asyncio.Future[ErrorCode | CommitReply] = asyncio.get_running_loop().create_future()

    def in_transaction(reply: Any) -> None:
        error = _error(context.api_version, reply.error, is_absent=bool(reply.absent))
        if error is not ErrorCode.none:
            resolve(answer, error)
        else:
            # At once: the transaction may end in the loop's next turn.
            try:
                context.services.coordinator.submit(
                    commit.group_id, GroupShard.commit, commit, partial(resolve, answer)
                )
            except Exception as failure:  # noqa: BLE001 - raised in the handler
                if not answer.done():
                    answer.set_exception(failure)

    context.services.transactions.add(asked, in_transaction)
    reply = await answer
    if isinstance(reply, ErrorCode):
        return await _refuse_others(context, request, commit, reply)
    errors = [[(each.partition, each.error) for each in result.partitions] for result in reply.topics]
    return await _answer(context, request, errors)


async def _refuse_others(
    context: RequestContext, request: Any, commit: CommitRequest, error: ErrorCode
) -> Any:
    """Refused partitions carry their own error, all others carry `error`."""
    errors = [
        [
            (each.partition, error if each.refusal is ErrorCode.none else each.refusal)
            for each in topic.partitions
        ]
        for topic in commit.topics
    ]
    return await _answer(context, request, errors)


async def _answer(
    context: RequestContext, request: Any, errors: Sequence[Sequence[tuple[int, ErrorCode]]]
) -> Any:
    """The response: by topic of the request, each partition and its error."""
    topics = []
    for asked, of_topic in zip(request.topics, errors, strict=True):
        partitions = [_partition(context, *each) async for each in sliced(of_topic)]
        topics.append(_topic(context, asked, partitions))
    return context.make("TxnOffsetCommitResponse", topics=tuple(topics))


def _error(version: int, error: ErrorCode, *, is_absent: bool) -> ErrorCode:
    """The error that makes producers of a version do the right thing."""
    if error in _PASSING:
        return ErrorCode.coordinator_load_in_progress
    if is_absent or error is ErrorCode.transaction_abortable:
        knows = version >= _ABORTABLE_SINCE
        return ErrorCode.transaction_abortable if knows else ErrorCode.invalid_txn_state
    return ErrorCode.invalid_producer_epoch if error is ErrorCode.producer_fenced else error


def _partition(context: RequestContext, partition: int, error: ErrorCode) -> Any:
    return context.make("TxnOffsetCommitResponsePartition", partition_index=partition, error_code=error)


def _topic(context: RequestContext, asked: Any, partitions: Sequence[Any]) -> Any:
    return context.make(
        "TxnOffsetCommitResponseTopic",
        name=getattr(asked, "name", ""),
        topic_id=getattr(asked, "topic_id", None),
        partitions=tuple(partitions),
    )
