"""The settings of the group coordinator; the comments name Kafka's broker settings of the same meaning."""

from __future__ import annotations

import msgspec

INT32_MAX = 2**31 - 1


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
