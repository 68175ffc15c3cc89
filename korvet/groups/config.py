"""The settings of the group coordinator; comments name Kafka's broker settings of the same meaning."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.config.values import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.config.settings import Config

INT32_MAX = 2**31 - 1
SESSION_TIMEOUT_MS: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS: Final = "consumer.heartbeat.interval.ms"
CONFIG_NAMES: Final = (SESSION_TIMEOUT_MS, HEARTBEAT_INTERVAL_MS)
"""Configs that a group can set for itself."""


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


class InvalidGroupConfig(ValueError):
    """A config that groups do not have, or an impossible value, in Kafka's words."""


class OwnConfigs:
    """The configs that single groups have set: configs of the resource type GROUP."""

    __slots__ = ("_by_group", "_numbers")

    def __init__(self) -> None:
        self._by_group: Mapping[str, Mapping[str, str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}

    def replace(self, by_group: Mapping[str, Mapping[str, str]]) -> None:
        """Replace all configs, which have been checked. The next heartbeats use them."""
        self._by_group = by_group
        self._numbers = {
            group: {name: int(value) for name, value in configs.items()}
            for group, configs in by_group.items()
        }

    @property
    def groups(self) -> list[str]:
        """The groups that have set configs."""
        return sorted(self._by_group)

    def of(self, group_id: str) -> Mapping[str, str]:
        """The group's configs."""
        return self._by_group.get(group_id, {})

    def number(self, group_id: str, name: str) -> int | None:
        """The value of a config that the group has set; None if it has not set it."""
        numbers = self._numbers.get(group_id)
        return None if numbers is None else numbers.get(name)


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

    def session_timeout_ms(self, group_id: str) -> int:
        """The session timeout of that consumer group's members, in ms."""
        own = self.own.number(group_id, SESSION_TIMEOUT_MS)
        return self.consumer_session_timeout_ms if own is None else own

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """The heartbeat interval of that consumer group's members, in ms."""
        own = self.own.number(group_id, HEARTBEAT_INTERVAL_MS)
        return self.consumer_heartbeat_interval_ms if own is None else own

    def check(self, configs: Mapping[str, str]) -> dict[str, str]:
        """Returns the checked configs of a group, without surrounding space. Raises InvalidGroupConfig."""
        bounds = {
            SESSION_TIMEOUT_MS: (self.consumer_min_session_timeout_ms, self.consumer_max_session_timeout_ms),
            HEARTBEAT_INTERVAL_MS: (
                self.consumer_min_heartbeat_interval_ms,
                self.consumer_max_heartbeat_interval_ms,
            ),
        }
        numbers = {SESSION_TIMEOUT_MS: self.consumer_session_timeout_ms}
        numbers[HEARTBEAT_INTERVAL_MS] = self.consumer_heartbeat_interval_ms
        for name in configs:
            if name not in bounds:
                raise InvalidGroupConfig(f"Unknown group config name: {name}")
        own = {name: parse_number(name, value) for name, value in configs.items()}
        for name, number in own.items():
            low, high = bounds[name]
            broker_name = name.replace("consumer.", "group.consumer.{}.")
            if number < low:
                raise InvalidGroupConfig(
                    f"{name} must be greater than or equal to {broker_name.format('min')}"
                )
            if number > high:
                raise InvalidGroupConfig(f"{name} must be less than or equal to {broker_name.format('max')}")
        numbers |= own
        if numbers[SESSION_TIMEOUT_MS] <= numbers[HEARTBEAT_INTERVAL_MS]:
            raise InvalidGroupConfig(f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}")
        return {name: str(number) for name, number in own.items()}


def parse_number(name: str, value: str) -> int:
    """Parse a group config's value. Raises InvalidGroupConfig."""
    try:
        number = whole_number(value.strip())
    except ValueError:
        number = None
    if number is None or number > INT32_MAX:
        raise InvalidGroupConfig(f"Invalid value {value} for configuration {name}: Not a number of type INT")
    if number < 1:
        raise InvalidGroupConfig(f"Invalid value {number} for configuration {name}: Value must be at least 1")
    return number
