"""Topic configs: Kafka's, with their types, defaults and broker-level synonyms, and korvet's own.

korvet honours some of them; it accepts, stores and describes the others, because tools set them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from korvet.config.kinds import ConfigSource, ConfigType
from korvet.config.values import decimal_number, whole_number
from korvet.topics.config_texts import CONFIG_TEXTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# By synonym: the values of a broker's setting except its default, that with precedence first.
BrokerConfigs: TypeAlias = "Mapping[str, Sequence[tuple[str, ConfigSource]]]"

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
# PARTITION:BROKER of a throttled replica; Kafka allows empty elements.
_REPLICA: Final = re.compile(r"(\d+:\d+)?", re.ASCII)


class InvalidConfig(ValueError):
    """A topic config that does not exist, or a value that it cannot have; the message names both."""


class TopicConfig(msgspec.Struct, frozen=True):
    """One topic config. `check` raises ValueError with the allowed values."""

    name: str
    type: ConfigType
    default: str
    check: Callable[[str], None]
    synonym: str | None = None
    documentation: str = ""


def _integer(low: int, high: int) -> Callable[[str], None]:
    def check(value: str) -> None:
        try:
            number = whole_number(value)
        except ValueError:
            raise ValueError("it must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"it must be from {low} to {high}")

    return check


def _gzip_level(value: str) -> None:
    _integer(-1, 9)(value)
    if int(value) == 0:
        raise ValueError("it must be from 1 to 9, or -1")


def _one_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if value not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")

    return check


def _list_of(*allowed: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        # The empty list is allowed (KIP-1161), an empty element is not.
        if value and not set(value.split(",")) <= set(allowed):
            raise ValueError(f"it must be a list of {', '.join(allowed)}")

    return check


def _ratio(value: str) -> None:
    try:
        inside = 0.0 <= decimal_number(value) <= 1.0
    except ValueError:
        inside = False
    if not inside:
        raise ValueError("it must be a number from 0 to 1")


def _native_format(value: str) -> None:
    if value != "json" and not (value.startswith("field:") and len(value) > len("field:")):
        raise ValueError("it must be json or field:<name>")


def _throttled_replicas(value: str) -> None:
    if value not in ("", "*") and not all(_REPLICA.fullmatch(part.strip()) for part in value.split(",")):
        raise ValueError("it must be * or a list of PARTITION:BROKER")


_BOOLEAN: Final = _one_of("true", "false")


def _boolean(name: str, default: bool, synonym: str | None = None) -> TopicConfig:
    return TopicConfig(name, ConfigType.BOOLEAN, "true" if default else "false", _BOOLEAN, synonym)


def _int(name: str, default: int, low: int, synonym: str | None = None, high: int = INT32_MAX) -> TopicConfig:
    return TopicConfig(name, ConfigType.INT, str(default), _integer(low, high), synonym)


def _long(name: str, default: int, low: int, synonym: str | None = None) -> TopicConfig:
    return TopicConfig(name, ConfigType.LONG, str(default), _integer(low, INT64_MAX), synonym)


RETENTION_MS: Final = "retention.ms"
RETENTION_BYTES: Final = "retention.bytes"
CLEANUP_POLICY: Final = "cleanup.policy"
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
MAX_DECOMPRESSED_BYTES: Final = "max.decompressed.message.bytes"
TIMESTAMP_TYPE: Final = "message.timestamp.type"
TIMESTAMP_AFTER_MAX_MS: Final = "message.timestamp.after.max.ms"
TIMESTAMP_BEFORE_MAX_MS: Final = "message.timestamp.before.max.ms"
DELETE_RETENTION_MS: Final = "delete.retention.ms"
MIN_CLEANABLE_DIRTY_RATIO: Final = "min.cleanable.dirty.ratio"
MAX_COMPACTION_LAG_MS: Final = "max.compaction.lag.ms"
MIN_COMPACTION_LAG_MS: Final = "min.compaction.lag.ms"
SEGMENT_BYTES: Final = "segment.bytes"
DELETE_ACCEPTED: Final = "delete.accepted.records"
DELETION_CONFIGS: Final = frozenset(
    (
        CLEANUP_POLICY,
        RETENTION_MS,
        RETENTION_BYTES,
        DELETE_RETENTION_MS,
        MIN_COMPACTION_LAG_MS,
        DELETE_ACCEPTED,
    )
)
"""The configs that decide which records retention and compaction keep in the log."""
OFFSET_ASSIGNMENT: Final = "offset.assignment"
STORAGE_LAYOUT: Final = "storage.layout"
NATIVE_FORMAT: Final = "native.format"
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
ACKS_ALL_FSYNC: Final = "acks.all.fsync"
DEAD_LETTER_ENABLE: Final = "errors.deadletterqueue.group.enable"

_KAFKA: Final = (
    TopicConfig(
        CLEANUP_POLICY, ConfigType.LIST, "delete", _list_of("delete", "compact"), "log.cleanup.policy"
    ),
    TopicConfig("compression.gzip.level", ConfigType.INT, "-1", _gzip_level, "compression.gzip.level"),
    _int("compression.lz4.level", 9, 1, "compression.lz4.level", 17),
    TopicConfig(
        "compression.type",
        ConfigType.STRING,
        "producer",
        _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        "compression.type",
    ),
    _int("compression.zstd.level", 3, -131072, "compression.zstd.level", 22),
    _long(DELETE_RETENTION_MS, 86_400_000, 0, "log.cleaner.delete.retention.ms"),
    _boolean(DEAD_LETTER_ENABLE, False),
    _long("file.delete.delay.ms", 60_000, 0, "log.segment.delete.delay.ms"),
    _long("flush.messages", INT64_MAX, 1, "log.flush.interval.messages"),
    _long("flush.ms", INT64_MAX, 0),
    TopicConfig("follower.replication.throttled.replicas", ConfigType.LIST, "", _throttled_replicas),
    _int("index.interval.bytes", 4096, 0, "log.index.interval.bytes"),
    TopicConfig("leader.replication.throttled.replicas", ConfigType.LIST, "", _throttled_replicas),
    _long("local.retention.bytes", -2, -2, "log.local.retention.bytes"),
    _long("local.retention.ms", -2, -2, "log.local.retention.ms"),
    _long(MAX_COMPACTION_LAG_MS, INT64_MAX, 1, "log.cleaner.max.compaction.lag.ms"),
    _int(MAX_DECOMPRESSED_BYTES, 10 * 1024 * 1024, 1, "max.decompressed.message.bytes"),
    _int(MAX_MESSAGE_BYTES, DEFAULT_MAX_MESSAGE_BYTES, 0, "message.max.bytes"),
    _long(TIMESTAMP_AFTER_MAX_MS, 3_600_000, 0, "log.message.timestamp.after.max.ms"),
    _long(TIMESTAMP_BEFORE_MAX_MS, INT64_MAX, 0, "log.message.timestamp.before.max.ms"),
    TopicConfig(
        TIMESTAMP_TYPE,
        ConfigType.STRING,
        "CreateTime",
        _one_of("CreateTime", "LogAppendTime"),
        "log.message.timestamp.type",
    ),
    TopicConfig(
        MIN_CLEANABLE_DIRTY_RATIO, ConfigType.DOUBLE, "0.5", _ratio, "log.cleaner.min.cleanable.ratio"
    ),
    _long(MIN_COMPACTION_LAG_MS, 0, 0, "log.cleaner.min.compaction.lag.ms"),
    _int(MIN_INSYNC_REPLICAS, 1, 1, MIN_INSYNC_REPLICAS),
    _boolean("preallocate", False, "log.preallocate"),
    _long("remote.copy.lag.bytes", -1, -1, "log.remote.copy.lag.bytes"),
    _long("remote.copy.lag.ms", 0, -1, "log.remote.copy.lag.ms"),
    _boolean("remote.log.copy.disable", False),
    _boolean("remote.log.delete.on.disable", False),
    # korvet has no tiered storage, but tools set these configs.
    TopicConfig("remote.storage.enable", ConfigType.BOOLEAN, "false", _one_of("false")),
    _long(RETENTION_BYTES, -1, -(2**63), "log.retention.bytes"),
    _long(RETENTION_MS, 604_800_000, -1, "log.retention.ms"),
    # The minimum is Kafka's since 4.0 (KIP-1030).
    _int(SEGMENT_BYTES, 1_073_741_824, 1_048_576, "log.segment.bytes"),
    _int("segment.index.bytes", 10_485_760, 4, "log.index.size.max.bytes"),
    _long("segment.jitter.ms", 0, 0),
    _long("segment.ms", 604_800_000, 1),
    _boolean("unclean.leader.election.enable", False, "unclean.leader.election.enable"),
)

_OURS: Final = (
    _boolean(ACKS_ALL_FSYNC, False, ACKS_ALL_FSYNC),
    TopicConfig(
        OFFSET_ASSIGNMENT,
        ConfigType.STRING,
        "clock",
        _one_of("clock", "dense"),
        "log.offset.assignment",
    ),
    TopicConfig(
        STORAGE_LAYOUT,
        ConfigType.STRING,
        "record",
        _one_of("record", "batch"),
        "log.storage.layout",
    ),
    TopicConfig(
        NATIVE_FORMAT,
        ConfigType.STRING,
        "json",
        _native_format,
    ),
    _boolean(DELETE_ACCEPTED, False),
)

TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {
    config.name: msgspec.structs.replace(config, documentation=CONFIG_TEXTS[config.name])
    for config in (*_KAFKA, *_OURS)
}


def check_topic_config(name: str, value: str | None) -> str:
    """Returns the checked value without spaces around it, booleans in lower case, lists without repetitions.

    Raises InvalidConfig with a text for the client's user.
    """
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        raise InvalidConfig(f"Unknown topic config name: {name}")
    if value is None:
        raise InvalidConfig(f"Null value not supported for topic configs: {name}")
    value = value.strip()
    if config.type is ConfigType.BOOLEAN:
        value = value.lower()
    elif config.type is ConfigType.LIST:
        # A repetition is no error (KIP-1161).
        value = ",".join(dict.fromkeys(name.strip() for name in value.split(",")))
    try:
        config.check(value)
    except ValueError as error:
        raise InvalidConfig(f"Invalid value {value} for configuration {name}: {error}") from None
    return value


def config_problem(name: str, value: str) -> str | None:
    """Why a stored value cannot be in force; None if it can, or if korvet has no config of that name."""
    if name not in TOPIC_CONFIGS:
        return None
    try:
        check_topic_config(name, value)
    except InvalidConfig as error:
        return str(error)
    return None


def check_together(topic_configs: Mapping[str, str]) -> None:
    """Raises InvalidConfig if valid values contradict each other."""

    def number(name: str) -> int:
        return int(topic_configs.get(name, TOPIC_CONFIGS[name].default))

    least_ms, most_ms = number(MIN_COMPACTION_LAG_MS), number(MAX_COMPACTION_LAG_MS)
    if least_ms > most_ms:
        raise InvalidConfig(
            f"conflict topic config setting {MIN_COMPACTION_LAG_MS} ({least_ms}) > {MAX_COMPACTION_LAG_MS} "
            f"({most_ms})"
        )


class ConfigView(msgspec.Struct, frozen=True):
    """A topic's config value in force, and its source."""

    config: TopicConfig
    value: str
    source: ConfigSource
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


def describe(
    config: TopicConfig,
    topic_configs: Mapping[str, str],
    broker_configs: BrokerConfigs,
    dynamic: ConfigSource = ConfigSource.DYNAMIC_TOPIC,
) -> ConfigView:
    """The value in force: the topic's own, else the broker's (by synonym), else the default.

    `dynamic` is the source of own values; groups have own values, too.
    """
    synonyms: list[tuple[str, str, ConfigSource]] = []
    own = topic_configs.get(config.name)
    if own is not None:
        synonyms.append((config.name, own, dynamic))
    if config.synonym is not None:
        layers = broker_configs.get(config.synonym, ())
        synonyms += [(config.synonym, value, source) for value, source in layers]
        synonyms.append((config.synonym, config.default, ConfigSource.DEFAULT))
    if synonyms:
        _, value, source = synonyms[0]
        return ConfigView(config, value, source, tuple(synonyms))
    return ConfigView(config, config.default, ConfigSource.DEFAULT, ())


class TopicPolicy(msgspec.Struct, frozen=True):
    """The configs that the hot path and the housekeeping read, parsed once per topic."""

    max_message_bytes: int
    max_decompressed_message_bytes: int
    log_append_time: bool
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    retention_ms: int
    retention_bytes: int
    deletes: bool
    deletes_accepted: bool
    compacts: bool
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_dirty_ratio: float


def policy_of(topic_configs: Mapping[str, str], broker_configs: BrokerConfigs) -> TopicPolicy:
    """The policy of a topic with these configs, on a broker with `broker_configs` (by synonym)."""

    def value(name: str) -> str:
        return describe(TOPIC_CONFIGS[name], topic_configs, broker_configs).value

    cleanup = {part.strip() for part in value(CLEANUP_POLICY).split(",")}
    return TopicPolicy(
        max_message_bytes=int(value(MAX_MESSAGE_BYTES)),
        max_decompressed_message_bytes=int(value(MAX_DECOMPRESSED_BYTES)),
        log_append_time=value(TIMESTAMP_TYPE) == "LogAppendTime",
        timestamp_after_max_ms=int(value(TIMESTAMP_AFTER_MAX_MS)),
        timestamp_before_max_ms=int(value(TIMESTAMP_BEFORE_MAX_MS)),
        retention_ms=int(value(RETENTION_MS)),
        retention_bytes=int(value(RETENTION_BYTES)),
        deletes="delete" in cleanup,
        deletes_accepted=value(DELETE_ACCEPTED) == "true",
        compacts="compact" in cleanup,
        delete_retention_ms=int(value(DELETE_RETENTION_MS)),
        min_compaction_lag_ms=int(value(MIN_COMPACTION_LAG_MS)),
        max_compaction_lag_ms=int(value(MAX_COMPACTION_LAG_MS)),
        min_cleanable_dirty_ratio=float(value(MIN_CLEANABLE_DIRTY_RATIO)),
    )
