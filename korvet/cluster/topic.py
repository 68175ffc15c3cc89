"""A topic of the catalogue."""

from __future__ import annotations

import uuid  # noqa: TC003 - decoded
from typing import Final, Literal

import msgspec

from korvet.redis.keys import OFFSETS_TOPIC, SHARE_STATES_TOPIC

CLEANUP_POLICY: Final = "cleanup.policy"

OffsetAssignment = Literal["clock", "dense"]
StorageLayout = Literal["record", "batch"]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the catalogue. `configs` holds the configs that were set, without defaults."""

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
        """1 on a dense topic, which stores offset o under the entry ID of o + 1; else 0."""
        return 1 if self.offset_assignment == "dense" else 0

    @property
    def base_sequence(self) -> int:
        """The base sequence of record batches that are built from the topic's entries: 0 on the topic of
        Kafka's group coordinator, else -1.
        """
        return 0 if self.name == OFFSETS_TOPIC else -1

    @property
    def keeps_latest(self) -> bool:
        """Whether Redis keeps the newest entry ID per key, because a coordinator loads only these entries."""
        return self.internal and "compact" in self.configs.get(CLEANUP_POLICY, "")

    @property
    def keeps_history(self) -> bool:
        """Whether superseded records stay for offsets.history.retention.ms: those of coordinators do."""
        return self.internal and self.name != SHARE_STATES_TOPIC

    @property
    def min_insync_replicas(self) -> int | None:
        """The topic's own min.insync.replicas; None if the broker's is in force."""
        value = self.configs.get("min.insync.replicas")
        return None if value is None else int(value)

    @property
    def acks_all_fsync(self) -> bool | None:
        """The topic's own acks.all.fsync; None if the broker's is in force."""
        value = self.configs.get("acks.all.fsync")
        return None if value is None else value == "true"

    @property
    def native_format(self) -> str:
        """The format in which entries of native writers are served (native.format)."""
        return self.configs.get("native.format", "json")

    @property
    def log_append_time(self) -> bool:
        """Whether the timestamp of a record is its append time (message.timestamp.type)."""
        return self.configs.get("message.timestamp.type", "CreateTime") == "LogAppendTime"
