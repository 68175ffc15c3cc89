"""CreateTopics (key 19), versions 2-7.

A partition has as many replicas as Redis has, and its primary: a larger replication factor is refused, and a
smaller one changes nothing. An assignment must name the broker that hashing selects, alone or with the
replicas that Metadata shows. While `__consumer_offsets` is empty and there is one broker,
CreateTopics replaces it by a topic as requested. v5 returns partition count, replication factor and configs
(KIP-525) and is flexible, v6 may be throttled (KIP-599), v7 returns the topic ID (KIP-516).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.api.common.replicas import replicas_of, replication_factor
from korvet.outlook.copies import Copies
from korvet.protocol.registry import api
from korvet.quotas.throttle import MutationsExceeded
from korvet.redis.errors import StorageError
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.configs import TOPIC_CONFIGS, describe
from korvet.topics.directory import MAX_PARTITIONS, TOO_MANY
from korvet.topics.errors import (
    InvalidAssignment,
    InvalidPartitions,
    InvalidReplication,
    InvalidTopicRequest,
    NameCollision,
    TooManyPartitions,
    TopicError,
)
from korvet.topics.internal import METADATA_TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from korvet.api.common.context import RequestContext
    from korvet.cluster.topic import Topic

_BY_ASSIGNMENT: Final = -1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every topic with the error."""
    return context.make(
        "CreateTopicsResponse",
        topics=tuple(_failed(context, asked.name, error, None) for asked in request.topics),
    )


@api(19, "CreateTopics", (2, 7), refuse=refuse, changes_shared=True, strict_quota_since=6)
async def create_topics(context: RequestContext, request: Any) -> Any:
    """Make the topics, each on its own: one that is refused does not keep the others."""
    times = Counter(asked.name for asked in request.topics)
    results = [
        _failed(context, name, ErrorCode.invalid_request, f"Duplicate topic name: {name}")
        for name, count in times.items()
        if count > 1
    ]
    once = [asked for asked in request.topics if times[asked.name] == 1]
    default = context.services.config.num_partitions
    allowed = sum(_count(asked, default) for asked in once if _may_create(context, asked.name))
    # For all of them, as in Kafka.
    too_many = allowed > MAX_PARTITIONS
    results += [
        await _create(context, asked, request.validate_only, too_many=too_many)
        async for asked in sliced(once)
    ]
    return context.make("CreateTopicsResponse", topics=tuple(results))


def _may_create(context: RequestContext, name: str) -> bool:
    return context.may(Operation.CREATE, ResourceType.CLUSTER) or context.may(
        Operation.CREATE, ResourceType.TOPIC, name
    )


async def _create(context: RequestContext, asked: Any, validate_only: bool, *, too_many: bool) -> Any:
    if asked.name == METADATA_TOPIC:
        message = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
        return _failed(context, asked.name, ErrorCode.invalid_request, message)
    if not _may_create(context, asked.name):
        return _failed(context, asked.name, ErrorCode.topic_authorization_failed, "Authorization failed.")
    try:
        if too_many:
            raise TooManyPartitions(TOO_MANY)
        try:
            partitions = _partitions(context, asked)
        except TopicError:
            # As in Kafka, an existing topic is reported first: programs that create a topic ignore that.
            await context.services.topics.check_new(asked.name)
            raise
        if context.services.topics.get(asked.name) is None:
            context.mutate(partitions)
        # If a config is given twice, its last value counts, as in Kafka.
        configs = {config.name: config.value for config in asked.configs}
        topic = await context.services.topics.create(
            asked.name, partitions, configs, validate_only=validate_only
        )
    except NameCollision as refused:
        seen = context.may(Operation.DESCRIBE, ResourceType.TOPIC, refused.other)
        message = str(refused) if seen else f"Topic '{asked.name}' collides with an existing topic"
        return _failed(context, asked.name, error_code_of(refused), message)
    except (TopicError, MutationsExceeded, StorageError) as refused:
        return _failed(context, asked.name, error_code_of(refused), str(refused))
    shown = context.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, asked.name)
    return context.make(
        "CreatableTopicResult",
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.none,
        error_message=None,
        topic_config_error_code=ErrorCode.none if shown else ErrorCode.topic_authorization_failed,
        num_partitions=topic.partitions if shown else -1,
        replication_factor=replication_factor(context, topic) if shown else -1,
        configs=_described(context, topic) if shown else (),
    )


def _count(asked: Any, default: int) -> int:
    """The number of partitions of the requested topic, if the request is valid."""
    if asked.assignments:
        return len(asked.assignments)
    return default if asked.num_partitions == _BY_ASSIGNMENT else max(asked.num_partitions, 0)


def _partitions(context: RequestContext, asked: Any) -> int:
    """The partition count, from the count or from a manual assignment."""
    if asked.assignments:
        if asked.num_partitions != _BY_ASSIGNMENT or asked.replication_factor != _BY_ASSIGNMENT:
            raise InvalidTopicRequest(
                "With a manual assignment, partition count and replication factor must be -1"
            )
        if sorted(each.partition_index for each in asked.assignments) != list(range(len(asked.assignments))):
            raise InvalidAssignment("Partitions should be a consecutive 0-based integer sequence")
        check_replicas(
            context, asked.name, [(each.partition_index, each.broker_ids) for each in asked.assignments]
        )
        return len(asked.assignments)
    if asked.num_partitions == _BY_ASSIGNMENT:
        partitions = context.services.config.num_partitions
    elif asked.num_partitions <= 0:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value")
    else:
        partitions = asked.num_partitions
    if asked.replication_factor == 0 or asked.replication_factor < -1:
        raise InvalidReplication("Replication factor must be larger than 0, or -1 to use the default value")
    most = 1 + context.services.copies.expected
    if asked.replication_factor > most:
        raise InvalidReplication(
            f"Unable to replicate the partition {asked.replication_factor} time(s): Redis has {most - 1} "
            f"replica(s), so the largest replication factor is {most}"
        )
    return int(partitions)


def check_replicas(
    context: RequestContext, topic: str, assigned: Iterable[tuple[int, Sequence[int]]]
) -> None:
    """Raises InvalidAssignment unless each partition is given to the broker that leads it anyway, alone or
    with replicas that Redis has.
    """
    assignment, expected = context.services.leadership.assignment, context.services.copies.expected
    for index, broker_ids in assigned:
        leader = assignment.leader(topic, index).node_id
        others = replicas_of(leader, Copies(expected)).all[1:]
        if [*broker_ids] not in ([leader, *others[:count]] for count in range(len(others) + 1)):
            raise InvalidAssignment(
                f"The replicas of partition {index} have to be {[leader, *others]}, or only the first of "
                "them: who leads it follows from its name"
            )


def _described(context: RequestContext, topic: Topic) -> tuple[Any, ...]:
    if not context.schema.has("CreatableTopicResult", "configs"):
        return ()
    broker_configs = context.services.topics.broker_configs(topic)
    views = (describe(config, topic.configs, broker_configs) for config in TOPIC_CONFIGS.values())
    return tuple(
        context.make(
            "CreatableTopicConfigs",
            name=view.config.name,
            value=view.value,
            read_only=False,
            config_source=view.source,
            is_sensitive=False,
        )
        for view in views
    )


def _failed(context: RequestContext, name: str, error: ErrorCode, message: str | None) -> Any:
    # Empty, never null: some clients can't read null configs.
    return context.make(
        "CreatableTopicResult",
        name=name,
        topic_id=None,
        error_code=error,
        error_message=message,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )
