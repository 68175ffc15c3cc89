"""A topic of the catalogue."""

from __future__ import annotations

import uuid  # noqa: TC003 - decoded
from typing import Final, Literal

import msgspec

from korvet.storage.keys import OFFSETS_TOPIC

CLEANUP_POLICY: Final = "cleanup.policy"

OffsetAssignment = Literal["clock", "dense"]
StorageLayout = Literal["record", "batch"]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as it stands in the catalogue. `configs` holds what was set, no defaults."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: dict[str, str] = {}
    internal: bool = False
    offset_assignment: OffsetAssignment = "clock"
    storage_layout: StorageLayout = "record"
    created_ms: int = 0
    deleting: bool = False

    @property
    def bias(self) -> int:
        """1 on dense topics, which store offset o under the entry ID of o + 1; else 0."""
        return 1 if self.offset_assignment == "dense" else 0

    @property
    def base_sequence(self) -> int:
        """What record batches that are made of its entries say: 0 where Kafka's group coordinator writes, -1
        elsewhere.
        """
        return 0 if self.name == OFFSETS_TOPIC else -1

    @property
    def keeps_latest(self) -> bool:
        """Whether Redis keeps track of the newest entry per key: where that is what a coordinator loads."""
        return self.internal and "compact" in self.configs.get(CLEANUP_POLICY, "")

    @property
    def native_format(self) -> str:
        """How entries of native writers are served (native.format)."""
        return self.configs.get("native.format", "json")

    @property
    def log_append_time(self) -> bool:
        """Whether records carry the append time (message.timestamp.type)."""
        return self.configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime"
