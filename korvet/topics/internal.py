"""The topics that coordinators keep their state in, as Kafka makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.storage.errors import TopicExists
from korvet.storage.keys import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from korvet.topics.configs import CLEANUP_POLICY, OFFSET_ASSIGNMENT, SEGMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.storage.catalogue import Catalogue
    from korvet.storage.topic import Topic

# offsets.topic.segment.bytes and transaction.state.log.segment.bytes of Kafka.
_SEGMENT_BYTES: Final = "104857600"
_FIXED: Final = {CLEANUP_POLICY: "compact", OFFSET_ASSIGNMENT: "dense"}
_DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = {
    OFFSETS_TOPIC: {"compression.type": "producer", SEGMENT_BYTES: _SEGMENT_BYTES},
    TRANSACTIONS_TOPIC: {
        "compression.type": "uncompressed",
        SEGMENT_BYTES: _SEGMENT_BYTES,
        "unclean.leader.election.enable": "false",
    },
}
INTERNAL_TOPICS: Final = frozenset(_DEFAULTS)
"""Names that no ordinary topic can have."""


async def create_internal(
    catalogue: Catalogue, name: str, partitions: int, configs: Mapping[str, str] | None = None
) -> Topic:
    """Make a coordinator's topic. `configs`: what a client sets; Kafka's own configs of the topic if None.

    Raises TopicExists and StorageError.
    """
    own = _DEFAULTS[name] if configs is None else configs
    return await catalogue.create(
        name, partitions, {**own, **_FIXED}, internal=True, offset_assignment="dense"
    )


async def coordinated_topic(catalogue: Catalogue, name: str, partitions: int) -> Topic:
    """A coordinator's topic, which is created if it is missing. Raises StorageError."""
    topic = catalogue.get(name)
    if topic is None:
        for deleted in catalogue.pending_deletes():
            if deleted.name == name:
                # Somebody ended while it was made anew.
                await catalogue.finish_delete(deleted)
        try:
            return await create_internal(catalogue, name, partitions)
        except TopicExists:
            topic = catalogue.get(name)
            if topic is None:
                raise
    return topic
