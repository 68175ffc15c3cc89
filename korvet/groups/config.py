"""The settings of the group coordinator; the comments name Kafka's broker settings of the same meaning."""

from __future__ import annotations

from enum import Enum

import msgspec

INT32_MAX = 2**31 - 1


class MigrationPolicy(Enum):
    """Whether a group with members may change its protocol: to the consumer protocol, and back."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def can_upgrade(self) -> bool:
        """Whether a classic group may become a consumer group."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE}

    @property
    def can_downgrade(self) -> bool:
        """Whether a consumer group may become a classic one."""
        return self in {MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE}


class GroupConfig(msgspec.Struct, frozen=True):
    """Limits and delays of groups and of their committed offsets; the same for all groups of a broker.

    initial_rebalance_delay_ms is how long a group that was empty waits for more members. Kafka waits 3 s;
    ours is short, so that a fresh group's first record arrives well within a second.
    """

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 100  # group.initial.rebalance.delay.ms
    max_size: int = INT32_MAX  # group.max.size
    new_member_join_timeout_ms: int = 300_000  # not a setting in Kafka either
    offset_metadata_max_units: int = 4_096  # offset.metadata.max.bytes, which counts UTF-16 units
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    commit_value_version: int = (
        3  # which OffsetCommitValue to write: 3, or 4 with the topic id (Kafka >= 4.1)
    )
    assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors, the first is the default
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_max_size: int = INT32_MAX  # group.consumer.max.size
    consumer_assignment_interval_ms: int = 1_000  # group.consumer.assignment.interval.ms
    regex_refresh_interval_ms: int = 10_000  # not a setting in Kafka either
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy
