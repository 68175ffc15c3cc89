"""Topics for a coordinator, and the hash that detects changes of them."""

from __future__ import annotations

from functools import lru_cache
from struct import pack
from typing import TYPE_CHECKING, Protocol

import msgspec
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable

# The first byte of a topic's hash input: the version of its layout.
_LAYOUT = b"\x00"
_CACHED_HASHES = 4_096


class TopicInfo(msgspec.Struct, frozen=True, gc=False):
    """A topic; topic_id has 16 bytes."""

    name: str
    topic_id: bytes
    partitions: int


class Matching(msgspec.Struct, frozen=True, gc=False):
    """The names that an expression matched among the topics of a version."""

    names: tuple[str, ...]
    version: int


class Topics(Protocol):
    """The existing topics. `version` changes with every change of them."""

    @property
    def version(self) -> int:
        """The version of the topics."""

    def get(self, name: str) -> TopicInfo | None:
        """The topic of that name."""

    def by_id(self, topic_id: bytes) -> TopicInfo | None:
        """The topic of that id."""

    def matching(self, pattern: str) -> Matching | None:
        """The topics that an expression matches, as far as they have been searched for."""


class NoTopics:
    """The topics of a shard without topics: classic groups do not use them."""

    version = 0

    def get(self, name: str) -> TopicInfo | None:
        """None."""
        del name
        return None

    def by_id(self, topic_id: bytes) -> TopicInfo | None:
        """None."""
        del topic_id
        return None

    def matching(self, pattern: str) -> Matching | None:
        """No names."""
        del pattern
        return Matching((), self.version)


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """The hash of those of these topics that exist, as a signed number of 64 bits; 0 if none exists.

    Kafka's hash in ConsumerGroupMetadataValue: XXH3 over the topics' own hashes in the order of their names.
    """
    # Names are ASCII, so this is also Java's order.
    found = [topic for name in sorted(names) if (topic := topics.get(name)) is not None]
    if not found:
        return 0
    value = xxh3_64_intdigest(b"".join([pack("<Q", _topic_hash(topic)) for topic in found]))
    return value - 2**64 if value >= 2**63 else value


@lru_cache(_CACHED_HASHES)
def _topic_hash(topic: TopicInfo) -> int:
    # Kafka adds racks after each partition; a log in Redis has none.
    high, low = int.from_bytes(topic.topic_id[:8], "big"), int.from_bytes(topic.topic_id[8:], "big")
    name = topic.name.encode("utf-16-le") + pack("<i", len(topic.name))
    partitions = pack(f"<{topic.partitions}i", *range(topic.partitions))
    return xxh3_64_intdigest(
        _LAYOUT + pack("<QQ", high, low) + name + pack("<i", topic.partitions) + partitions
    )
