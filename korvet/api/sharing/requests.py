"""What ShareFetch and ShareAcknowledge have in common: rights, places of partitions, acknowledgements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.sharing.acknowledgements import (
    RENEWAL,
    InvalidAcknowledgement,
    acknowledged_ranges,
    is_repeated,
)
from korvet.config.features import SHARE_VERSION
from korvet.groups.share.membership import LONGEST_MEMBER_ID
from korvet.redis.errors import StorageError
from korvet.redis_groups.share import PastAcquired
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from korvet.api.common.context import RequestContext
    from korvet.api.sharing.acknowledgements import Batch
    from korvet.api.sharing.configs import ShareConfig
    from korvet.api.sharing.partition import SharedPartition
    from korvet.api.sharing.sessions import SharedKey
    from korvet.cluster.topic import Topic


class Outcome(NamedTuple):
    """An error of one partition, with a message for its reader."""

    error: ErrorCode
    message: str | None = None


OK: Final = Outcome(ErrorCode.none)
BATCHES: Final = (
    "Share groups cannot read topics with storage.layout=batch: their records are not stored one by one"
)
_NO_RENEWALS: Final = "Members of the group must not renew locks"
_PAST_ACQUIRED: Final = "The acknowledgement goes beyond the records that were acquired"
_REPEATED: Final = "An offset is in two batches: the first one ends its lock"
_NOT_OWNED: Final = "The member has no lock on one of the records"


def denial(context: RequestContext, request: Any) -> Outcome | None:
    """Why a request is refused as a whole."""
    if not context.services.security.features.levels[SHARE_VERSION]:
        return Outcome(ErrorCode.unsupported_version)
    if not context.may(Operation.READ, ResourceType.GROUP, request.group_id or ""):
        return Outcome(ErrorCode.group_authorization_failed)
    if not request.group_id or not request.member_id:
        return Outcome(ErrorCode.invalid_request, "GroupId and MemberId can't be empty.")
    if len(request.member_id) > LONGEST_MEMBER_ID:
        return Outcome(ErrorCode.invalid_request, f"MemberId is longer than {LONGEST_MEMBER_ID} characters.")
    return None


def named_partitions(topics: Iterable[Any]) -> dict[SharedKey, Sequence[Batch]]:
    """The partitions that a request names, with their acknowledgements. The last mention of one counts."""
    return {
        (topic.topic_id, each.partition_index): each.acknowledgement_batches
        for topic in topics
        for each in topic.partitions
    }


def locate(context: RequestContext, group: str, key: SharedKey) -> SharedPartition | Outcome:
    """A partition, or the error with which it is answered."""
    services, (topic_id, index) = context.services, key
    topic = None if topic_id is None else services.topics.by_id(topic_id)
    if topic is None:
        services.topics.missed()
        return Outcome(ErrorCode.unknown_topic_id)
    if not context.may(Operation.READ, ResourceType.TOPIC, topic.name):
        return Outcome(ErrorCode.topic_authorization_failed)
    if not 0 <= index < topic.partitions:
        return Outcome(ErrorCode.unknown_topic_or_partition)
    if topic.storage_layout == "batch":
        return Outcome(ErrorCode.invalid_request, BATCHES)
    return services.sharing.partition(group, key) or Outcome(ErrorCode.not_leader_or_follower)


async def acknowledge(
    context: RequestContext, request: Any, config: ShareConfig, key: SharedKey, batches: Sequence[Batch]
) -> Outcome:
    """Apply the acknowledgements of one partition. As in Kafka, an unknown topic comes before errors of the
    batches, all others of the place after them.
    """
    partition = locate(context, request.group_id, key)
    if isinstance(partition, Outcome) and partition.error is ErrorCode.unknown_topic_id:
        return partition
    try:
        ranges = acknowledged_ranges(batches, may_renew=getattr(request, "is_renew_ack", False))
    except InvalidAcknowledgement as error:
        return Outcome(ErrorCode.invalid_request, str(error))
    if isinstance(partition, Outcome):
        return partition
    if not config.renews and any(RENEWAL in one.types for one in ranges):
        return Outcome(ErrorCode.invalid_record_state, _NO_RENEWALS)
    if is_repeated(ranges):
        return Outcome(ErrorCode.invalid_record_state, _REPEATED)
    try:
        done = await partition.acknowledge(request.member_id, config, ranges)
    except PastAcquired:
        return Outcome(ErrorCode.invalid_request, _PAST_ACQUIRED)
    except StorageError as error:
        return Outcome(error_code_of(error, Asked.READ), str(error))
    return Outcome(ErrorCode.invalid_record_state, _NOT_OWNED) if done is None else OK


class Leaders:
    """The leaders of partitions that this broker does not lead, for a response."""

    def __init__(self, context: RequestContext, now_s: float) -> None:
        self._context = context
        self._now_s = now_s
        self._nodes: set[int] = set()

    def of(self, key: SharedKey, outcome: Outcome) -> Any:
        """The leader of a partition with this outcome; unknown for all but NOT_LEADER_OR_FOLLOWER."""
        (topic_id, index), leader_id, epoch = key, -1, -1
        services = self._context.services
        topic: Topic | None = None if topic_id is None else services.topics.by_id(topic_id)
        if outcome.error is ErrorCode.not_leader_or_follower and topic is not None:
            leader = services.leadership.assignment.leader(topic.name, index)
            leader_id, epoch = leader.node_id, leader.epoch
            self._nodes.add(leader_id)
        return self._context.make("LeaderIdAndEpoch", leader_id=leader_id, leader_epoch=epoch)

    def endpoints(self) -> tuple[Any, ...]:
        """Where these leaders are."""
        if not self._nodes:
            return ()
        listener = self._context.client.listener
        known = self._context.services.leadership.endpoints(listener, self._now_s)
        return tuple(
            self._context.make("NodeEndpoint", node_id=node_id, host=host, port=port)
            for node_id, host, port in known
            if node_id in self._nodes
        )


def by_topic(partitions: Mapping[SharedKey, Any]) -> dict[UUID | None, list[Any]]:
    """The structures of a response's partitions by topic."""
    found: dict[UUID | None, list[Any]] = {}
    for (topic_id, _), structure in partitions.items():
        found.setdefault(topic_id, []).append(structure)
    return found
