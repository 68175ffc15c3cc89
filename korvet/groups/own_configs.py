"""The configs that single groups can set: configs of the resource type GROUP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.config.fields import INT32_MAX
from korvet.config.kinds import ConfigType
from korvet.config.values import text_of, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LATEST: Final = "latest"
EARLIEST: Final = "earliest"
_BY_DURATION: Final = "by_duration:"
# ISO 8601 as java.time.Duration reads it: days, hours, minutes, seconds.
_DURATION: Final = re.compile(
    r"([-+]?)P(?=.)(?:([-+]?\d+)D)?(?:T(?=.)(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)


class InvalidGroupConfig(ValueError):
    """A config that groups do not have, or an impossible value, in Kafka's words."""


class GroupConfigName(msgspec.Struct, frozen=True):
    """A config. `least`: of a number; `parse`: the value in its one form. Raises ValueError."""

    name: str
    type: ConfigType
    default: str
    documentation: str
    least: int = 0
    parse_text: Callable[[str], str] | None = None

    @property
    def broker_name(self) -> str | None:
        """The broker's setting that counts for groups that have not set it."""
        return f"group.{self.name}" if self.type is ConfigType.INT else None

    def parse(self, value: str) -> str:
        """The value in its one form. Raises InvalidGroupConfig."""
        value = value.strip()
        try:
            return self._parse(value)
        except ValueError as error:
            raise InvalidGroupConfig(
                f"Invalid value {value} for configuration {self.name}: {error}"
            ) from None

    def _parse(self, value: str) -> str:
        if self.parse_text is not None:
            return self.parse_text(value)
        try:
            number = whole_number(value)
        except ValueError:
            number = INT32_MAX + 1
        if not -INT32_MAX - 1 <= number <= INT32_MAX:
            raise ValueError("Not a number of type INT")
        if number < self.least:
            raise ValueError(f"Value must be at least {self.least}")
        return text_of(number)


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(f"String must be one of: {', '.join(allowed)}")
        return value

    return parse


def _boolean(value: str) -> str:
    if value.lower() not in {"true", "false"}:
        raise ValueError("Expected value to be either true or false")
    return value.lower()


def _dead_letter_topic(value: str) -> str:
    if value.startswith("__"):
        raise ValueError("The name of a dead letter topic must not begin with '__'")
    return value


def _reset(value: str) -> str:
    if value not in {EARLIEST, LATEST} and reset_age_ms(value) is None:
        raise ValueError(
            f"Invalid value `{value}` for configuration {SHARE_AUTO_OFFSET_RESET}. The value must be either "
            "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )
    return value


def reset_age_ms(reset: str) -> int | None:
    """How old the first records of a share group may be, in ms, if share.auto.offset.reset has the form
    `by_duration:PT1H`; None if it has another form.
    """
    found = _DURATION.fullmatch(reset.removeprefix(_BY_DURATION)) if reset.startswith(_BY_DURATION) else None
    if found is None:
        return None
    sign, days, hours, minutes, seconds, fraction = found.groups(default="")
    whole = sum(
        int(number or 0) * unit_s
        for number, unit_s in ((days, 86_400), (hours, 3_600), (minutes, 60), (seconds, 1))
    )
    below = int(fraction.ljust(9, "0")) // 1_000_000
    age_ms = whole * 1_000 + (-below if seconds.startswith("-") else below)
    age_ms = -age_ms if sign == "-" else age_ms
    return age_ms if age_ms >= 0 else None


SESSION_TIMEOUT_MS: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL_MS: Final = "consumer.heartbeat.interval.ms"
SHARE_SESSION_TIMEOUT_MS: Final = "share.session.timeout.ms"
SHARE_HEARTBEAT_INTERVAL_MS: Final = "share.heartbeat.interval.ms"
SHARE_ASSIGNMENT_INTERVAL_MS: Final = "share.assignment.interval.ms"
SHARE_RECORD_LOCK_DURATION_MS: Final = "share.record.lock.duration.ms"
SHARE_DELIVERY_COUNT_LIMIT: Final = "share.delivery.count.limit"
SHARE_PARTITION_MAX_RECORD_LOCKS: Final = "share.partition.max.record.locks"
SHARE_AUTO_OFFSET_RESET: Final = "share.auto.offset.reset"
SHARE_ISOLATION_LEVEL: Final = "share.isolation.level"
SHARE_RENEW_ACKNOWLEDGE_ENABLE: Final = "share.renew.acknowledge.enable"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTER_COPIES: Final = "errors.deadletterqueue.copy.record.enable"

_INT, _STRING, _BOOLEAN = ConfigType.INT, ConfigType.STRING, ConfigType.BOOLEAN
_SILENT: Final = "Time after which a member of the group that is silent is out."
_BEATS: Final = "Time between two heartbeats of a member of the group."
GROUP_CONFIGS: Final[Mapping[str, GroupConfigName]] = {
    config.name: config
    for config in (
        GroupConfigName(SESSION_TIMEOUT_MS, _INT, "45000", _SILENT, 1),
        GroupConfigName(HEARTBEAT_INTERVAL_MS, _INT, "5000", _BEATS, 1),
        GroupConfigName(SHARE_SESSION_TIMEOUT_MS, _INT, "45000", _SILENT, 1),
        GroupConfigName(SHARE_HEARTBEAT_INTERVAL_MS, _INT, "5000", _BEATS, 1),
        GroupConfigName(
            SHARE_ASSIGNMENT_INTERVAL_MS, _INT, "1000", "Shortest time between two assignments of the group."
        ),
        GroupConfigName(
            SHARE_RECORD_LOCK_DURATION_MS,
            _INT,
            "30000",
            "How long a record stays locked for the member of the group that has it.",
            1_000,
        ),
        GroupConfigName(
            SHARE_DELIVERY_COUNT_LIMIT, _INT, "5", "How often the group delivers a record at most.", 2
        ),
        GroupConfigName(
            SHARE_PARTITION_MAX_RECORD_LOCKS,
            _INT,
            "2000",
            "Largest number of locked records of one partition in the group.",
            100,
        ),
        GroupConfigName(
            SHARE_AUTO_OFFSET_RESET,
            _STRING,
            LATEST,
            "The first record of a partition that the group takes: `latest` (the next one), `earliest`, or "
            "with `by_duration:PT1H` the first one that is not older.",
            parse_text=_reset,
        ),
        GroupConfigName(
            SHARE_ISOLATION_LEVEL,
            _STRING,
            "read_uncommitted",
            "Whether the group waits until the transactions of records are committed.",
            parse_text=_one_of("read_committed", "read_uncommitted"),
        ),
        GroupConfigName(
            SHARE_RENEW_ACKNOWLEDGE_ENABLE,
            _BOOLEAN,
            "true",
            "Whether members may renew the lock of a record.",
            parse_text=_boolean,
        ),
        GroupConfigName(
            DEAD_LETTER_TOPIC,
            _STRING,
            "",
            "The topic that gets a dead letter for each record that members reject, or that was delivered as "
            "often as share.delivery.count.limit says; none if it is empty.",
            parse_text=_dead_letter_topic,
        ),
        GroupConfigName(
            DEAD_LETTER_COPIES,
            _BOOLEAN,
            "false",
            "Whether dead letters have the key and the value of the record.",
            parse_text=_boolean,
        ),
    )
}
"""By name."""


class OwnConfigs:
    """The configs that single groups have set."""

    __slots__ = ("_by_group", "_numbers")

    def __init__(self) -> None:
        self._by_group: Mapping[str, Mapping[str, str]] = {}
        self._numbers: dict[str, dict[str, int]] = {}

    def replace(self, by_group: Mapping[str, Mapping[str, str]]) -> None:
        """Replace all configs, which have been checked. The next heartbeats use them."""
        self._by_group = by_group
        self._numbers = {
            group: {name: int(value) for name, value in configs.items() if GROUP_CONFIGS[name].type is _INT}
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
