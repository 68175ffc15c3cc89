"""The topics in which coordinators keep or show their state, with Kafka's configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.redis.errors import TopicExists
from korvet.redis.keys import OFFSETS_TOPIC, SHARE_STATES_TOPIC, TRANSACTIONS_TOPIC
from korvet.topics.configs import CLEANUP_POLICY, OFFSET_ASSIGNMENT, SEGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic

# Kafka's offsets.topic.segment.bytes, transaction.state.log.segment.bytes and
# share.coordinator.state.topic.segment.bytes.
_SEGMENT_BYTES: Final = "104857600"
_FIXED: Final = {CLEANUP_POLICY: "compact", OFFSET_ASSIGNMENT: "dense"}
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    OFFSETS_TOPIC: {"compression.type": "producer", SEGMENT_BYTES: _SEGMENT_BYTES},
    TRANSACTIONS_TOPIC: {
        "compression.type": "uncompressed",
        SEGMENT_BYTES: _SEGMENT_BYTES,
        "unclean.leader.election.enable": "false",
    },
    SHARE_STATES_TOPIC: {"compression.type": "producer", SEGMENT_BYTES: _SEGMENT_BYTES},
}
METADATA_TOPIC: Final = "__cluster_metadata"
"""Kafka's log of the cluster's metadata. korvet has none, and creates no topic of that name."""
INTERNAL_TOPICS: Final = frozenset(_DEFAULTS)
"""Names that ordinary topics cannot have."""


async def create_internal(
    catalogue: Catalogue, name: str, partitions: int, configs: Mapping[str, str] | None = None
) -> Topic:
    """Create a coordinator's topic. `configs`: set by a client; Kafka's own configs of the topic if None.

    Raises TopicExists and StorageError.
    """
    own = _DEFAULTS[name] if configs is None else configs
    return await catalogue.create(
        name, partitions, {**own, **_FIXED}, internal=True, offset_assignment="dense"
    )


async def coordinated_topic(catalogue: Catalogue, name: str, partitions: int) -> Topic:
    """A coordinator's topic, created if it does not exist. Raises StorageError."""
    topic = catalogue.get(name)
    if topic is None:
        for deleted in catalogue.pending_deletes():
            if deleted.name == name:
                # A broker ended while it replaced the topic.
                await catalogue.finish_delete(deleted)
        try:
            return await create_internal(catalogue, name, partitions)
        except TopicExists:
            topic = catalogue.get(name)
            if topic is None:
                raise
    return topic
