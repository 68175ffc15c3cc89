"""The partition that a batch goes to, if it exists and the client may write to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from msgspec.structs import replace

from korvet.api.producing.checks import Refused
from korvet.security.acls import Operation, ResourceType
from korvet.storage.keys import OFFSETS_TOPIC

if TYPE_CHECKING:
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.records.produce_request import ProducePartition, ProduceRequest, ProduceTopic
    from korvet.security.authorizer import Access
    from korvet.topics.directory import Place

_TOPIC_IDS_SINCE: Final = 13
_ACKS: Final = (-1, 0, 1)


def distinct(topics: tuple[ProduceTopic, ...]) -> tuple[ProduceTopic, ...]:
    """The topics with each partition once. The last records of a partition count, as in Kafka."""
    if len({(topic.name, topic.topic_id) for topic in topics}) == len(topics) and all(
        len({each.index for each in topic.partitions}) == len(topic.partitions) for topic in topics
    ):
        return topics
    found: dict[tuple[str, UUID | None], tuple[ProduceTopic, dict[int, ProducePartition]]] = {}
    for topic in topics:
        _, partitions = found.setdefault((topic.name, topic.topic_id), (topic, {}))
        partitions.update((each.index, each) for each in topic.partitions)
    return tuple(replace(topic, partitions=tuple(each.values())) for topic, each in found.values())


def locate(context: RequestContext, request: ProduceRequest, topic: ProduceTopic, index: int) -> Place:
    """The partition with that index of a topic in the request. Raises Refused."""
    if request.acks not in _ACKS:
        raise Refused(ErrorCode.invalid_required_acks, f"acks of {request.acks} is none of -1, 0 and 1")
    key = topic.topic_id if context.api_version >= _TOPIC_IDS_SINCE else topic.name
    topics = context.services.topics
    place = topics.place(key, index)
    if context.client.access is not None:
        found = topics.find(key) if place is None else place.topic
        name = key if found is None else found.name
        _authorize(context.client.access, request.transactional_id, name)
    if place is None:
        raise _absent(context, key)
    name = place.topic.name
    writable = name == OFFSETS_TOPIC and context.services.config.offsets_topic_writable
    if (place.topic.internal and not writable) or place.is_alias:
        raise Refused(ErrorCode.invalid_topic_exception, f"{name} is written by the broker only")
    return place


def _authorize(access: Access, transactional_id: str | None, name: str | UUID | None) -> None:
    """Raises Refused unless the client may use the transactional ID, if there is one, and write to the topic,
    if its name is known.
    """
    kind = ResourceType.TRANSACTIONAL_ID
    if transactional_id is not None and not access.allows(Operation.WRITE, kind, transactional_id):
        raise Refused(ErrorCode.transactional_id_authorization_failed, "")
    if isinstance(name, str) and not access.allows(Operation.WRITE, ResourceType.TOPIC, name):
        raise Refused(ErrorCode.topic_authorization_failed, "")


def _absent(context: RequestContext, key: str | UUID | None) -> Refused:
    """The refusal of a batch for a partition that does not exist."""
    topics = context.services.topics
    found = topics.find(key)
    if found is None:
        topics.missed()
        by_name = isinstance(key, str)
        error = ErrorCode.unknown_topic_or_partition if by_name else ErrorCode.unknown_topic_id
        return Refused(error, "this server does not host this topic")
    return Refused(ErrorCode.unknown_topic_or_partition, f"{found.name} has {found.partitions} partition(s)")
