"""DescribeProducers (key 61), version 0 (KIP-664).

Returns the producers that the partition's leader remembers. The start of a transaction is the log end before
its first record; on topics with clock offsets a gap may follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.protocol.registry import api
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import gathered

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.log.transactions import KnownProducer


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every partition with the error."""
    topics = tuple(
        context.make(
            "TopicResponse",
            name=topic.name,
            partitions=tuple(_partition(context, index, error, []) for index in topic.partition_indexes),
        )
        for topic in request.topics
    )
    return context.make("DescribeProducersResponse", topics=topics)


@api(61, "DescribeProducers", (0, 0), refuse=refuse)
async def describe_producers(context: RequestContext, request: Any) -> Any:
    """Idempotent and transactional producers of each partition."""
    # A partition that is repeated is answered once: it may have many producers.
    once: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        once.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, indexes in once.items():
        partitions = await gathered(_one(context, name, index) for index in indexes)
        topics.append(context.make("TopicResponse", name=name, partitions=tuple(partitions)))
    return context.make("DescribeProducersResponse", topics=tuple(topics))


async def _one(context: RequestContext, name: str, index: int) -> Any:
    if not context.may(Operation.READ, ResourceType.TOPIC, name):
        return _partition(context, index, ErrorCode.topic_authorization_failed, [])
    log = context.services.topics.log(name, index)
    if log is None:
        return _partition(context, index, ErrorCode.unknown_topic_or_partition, [])
    if log.closed:
        return _partition(context, index, ErrorCode.not_leader_or_follower, [])
    try:
        producers = await log.queries.producers()
    except StorageError as error:
        return _partition(context, index, error_code_of(error, Asked.READ), [])
    return _partition(context, index, ErrorCode.none, producers)


def _partition(context: RequestContext, index: int, error: ErrorCode, producers: list[KnownProducer]) -> Any:
    return context.make(
        "PartitionResponse",
        partition_index=index,
        error_code=error,
        active_producers=tuple(
            context.make(
                "ProducerState",
                producer_id=each.producer_id,
                producer_epoch=each.epoch,
                last_sequence=each.last_sequence,
                last_timestamp=each.seen_ms,
                coordinator_epoch=each.coordinator_epoch,
                current_txn_start_offset=each.first_open,
            )
            for each in producers
        ),
    )
