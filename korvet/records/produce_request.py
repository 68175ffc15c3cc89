"""What a Produce request holds (ProduceRequest.json), as the record kernel decodes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from uuid import UUID


class RequestError(ValueError):
    """Bytes that hold no Produce request."""


class ProducePartition(msgspec.Struct, frozen=True, gc=False):
    """PartitionProduceData."""

    index: int
    records: bytes | memoryview | None


class ProduceTopic(msgspec.Struct, frozen=True, gc=False):
    """TopicProduceData: a name or an ID, as the version has it."""

    name: str
    topic_id: UUID | None
    partitions: tuple[ProducePartition, ...]


class ProduceRequest(msgspec.Struct, frozen=True, gc=False):
    """ProduceRequest."""

    acks: int
    timeout_ms: int
    """Longest wait for replicas with acks=-1."""
    transactional_id: str | None
    topics: tuple[ProduceTopic, ...]
