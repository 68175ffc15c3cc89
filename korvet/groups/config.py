"""The settings of the group coordinator; comments name Kafka's broker settings of the same meaning."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from korvet.config.fields import INT32_MAX
from korvet.config.kinds import ConfigType
from korvet.groups.own_configs import (
    GROUP_CONFIGS,
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    SHARE_HEARTBEAT_INTERVAL_MS,
    SHARE_SESSION_TIMEOUT_MS,
    InvalidGroupConfig,
    OwnConfigs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.config.settings import Config


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


class GroupConfig(msgspec.Struct):
    """Limits and delays of groups and of their committed offsets; the same for all groups of a broker, except
    for configs that a group has set for itself.

    initial_rebalance_delay_ms is how long an empty group waits for more members. Kafka waits 3 s; this
    default is short, so that a new group's first record arrives well within a second.
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
    consumer_min_session_timeout_ms: int = 45_000  # group.consumer.min.session.timeout.ms
    consumer_max_session_timeout_ms: int = 60_000  # group.consumer.max.session.timeout.ms
    consumer_min_heartbeat_interval_ms: int = 5_000  # group.consumer.min.heartbeat.interval.ms
    consumer_max_heartbeat_interval_ms: int = 15_000  # group.consumer.max.heartbeat.interval.ms
    consumer_max_size: int = INT32_MAX  # group.consumer.max.size
    consumer_assignment_interval_ms: int = 1_000  # group.consumer.assignment.interval.ms
    regex_refresh_interval_ms: int = 10_000  # not a setting in Kafka either
    regex_permissions_interval_ms: int = 600_000  # group.consumer.regex.batch.refresh.max.interval.ms
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy
    share_max_size: int = 200  # group.share.max.size
    share_session_timeout_ms: int = 45_000  # group.share.session.timeout.ms, and so on
    share_min_session_timeout_ms: int = 45_000
    share_max_session_timeout_ms: int = 60_000
    share_heartbeat_interval_ms: int = 5_000
    share_min_heartbeat_interval_ms: int = 5_000
    share_max_heartbeat_interval_ms: int = 15_000
    share_assignment_interval_ms: int = 1_000
    share_min_assignment_interval_ms: int = 0
    share_max_assignment_interval_ms: int = 15_000
    share_initialize_retry_interval_ms: int = 30_000
    share_record_lock_duration_ms: int = 30_000
    share_min_record_lock_duration_ms: int = 15_000
    share_max_record_lock_duration_ms: int = 60_000
    share_delivery_count_limit: int = 5
    share_min_delivery_count_limit: int = 2
    share_max_delivery_count_limit: int = 10
    share_partition_max_record_locks: int = 2_000
    share_min_partition_max_record_locks: int = 100
    share_max_partition_max_record_locks: int = 4_000
    own: OwnConfigs = msgspec.field(default_factory=OwnConfigs)

    @classmethod
    def from_settings(cls, settings: Config) -> GroupConfig:
        """The settings that concern groups, from the broker's settings."""
        config = cls()
        config.take(settings)
        return config

    def take(self, settings: Config) -> None:
        """Take the settings that concern groups from the broker's settings. All groups use them from now
        on.
        """
        self.min_session_timeout_ms = settings.group_min_session_timeout_ms
        self.max_session_timeout_ms = settings.group_max_session_timeout_ms
        self.initial_rebalance_delay_ms = settings.group_initial_rebalance_delay_ms
        self.max_size = settings.group_max_size
        self.offset_metadata_max_units = settings.offset_metadata_max_bytes
        self.offsets_retention_ms = settings.offsets_retention_minutes * 60_000
        self.offsets_retention_check_interval_ms = settings.offsets_retention_check_interval_ms
        self.commit_value_version = settings.offsets_commit_value_version
        self.assignors = settings.consumer_assignors
        self.consumer_session_timeout_ms = settings.group_consumer_session_timeout_ms
        self.consumer_heartbeat_interval_ms = settings.group_consumer_heartbeat_interval_ms
        self.consumer_min_session_timeout_ms = settings.group_consumer_min_session_timeout_ms
        self.consumer_max_session_timeout_ms = settings.group_consumer_max_session_timeout_ms
        self.consumer_min_heartbeat_interval_ms = settings.group_consumer_min_heartbeat_interval_ms
        self.consumer_max_heartbeat_interval_ms = settings.group_consumer_max_heartbeat_interval_ms
        self.consumer_max_size = settings.group_consumer_max_size
        self.consumer_assignment_interval_ms = settings.group_consumer_assignment_interval_ms
        self.migration_policy = MigrationPolicy(settings.group_consumer_migration_policy)
        for name in self.__struct_fields__:
            if name.startswith("share_"):
                setattr(self, name, getattr(settings, f"group_{name}"))

    def number(self, group_id: str, name: str) -> int:
        """The value of a config that counts for that group."""
        own = self.own.number(group_id, name)
        return self._of_broker(name) if own is None else own

    def text(self, group_id: str, name: str) -> str:
        """The value of a config that counts for that group, and that is no number."""
        return self.own.of(group_id).get(name, GROUP_CONFIGS[name].default)

    def _of_broker(self, name: str) -> int:
        found: int = getattr(self, name.replace(".", "_"))
        return found

    def check(self, configs: Mapping[str, str]) -> dict[str, str]:
        """Returns the checked configs of a group, without surrounding space. Raises InvalidGroupConfig."""
        for name in configs:
            if name not in GROUP_CONFIGS:
                raise InvalidGroupConfig(f"Unknown group config name: {name}")
        own = {name: GROUP_CONFIGS[name].parse(value) for name, value in configs.items()}
        numbers = {
            name: int(text) for name, text in own.items() if GROUP_CONFIGS[name].type is ConfigType.INT
        }
        for name, number in numbers.items():
            kind, _, rest = name.partition(".")
            low, high = (self._of_broker(f"{kind}.{bound}.{rest}") for bound in ("min", "max"))
            if not low <= number <= high:
                raise InvalidGroupConfig(f"{name} must be in the range {low} to {high} inclusive.")
        for session, heartbeat in (
            (SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS),
            (SHARE_SESSION_TIMEOUT_MS, SHARE_HEARTBEAT_INTERVAL_MS),
        ):
            timeout_ms, interval_ms = (
                numbers.get(name, self._of_broker(name)) for name in (session, heartbeat)
            )
            if timeout_ms <= interval_ms:
                raise InvalidGroupConfig(f"{session} must be greater than {heartbeat}")
        return own
