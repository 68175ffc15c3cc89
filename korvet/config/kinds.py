"""Types and sources of configs, by their numbers in DescribeConfigs, and the type of each setting."""

from __future__ import annotations

import enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from msgspec import inspect

from korvet.config.fields import INT32_MAX
from korvet.config.keys import SECRETS

if TYPE_CHECKING:
    from korvet.config.keys import Setting


class ConfigType(enum.IntEnum):
    """Config types of DescribeConfigs (DescribeConfigsResponse.json)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(enum.IntEnum):
    """The source of a config's value (DescribeConfigsResponse.json)."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    GROUP = 8


# Settings whose value is a comma-separated list.
_LISTS: Final = frozenset(
    {
        "group.consumer.assignors",
        "listeners",
        "advertised.listeners",
        "log.cleanup.policy",
        "request.log.failed",
        "sasl.enabled.mechanisms",
        "sasl.oauthbearer.expected.audience",
        "ssl.cipher.suites",
        "ssl.enabled.protocols",
    }
)
# Settings whose type in Kafka is wider or narrower than their range here.
_AS_IN_KAFKA: Final = {
    "log.cleaner.backoff.ms": ConfigType.LONG,
    "log.cleaner.dedupe.buffer.size": ConfigType.LONG,
    "log.retention.check.interval.ms": ConfigType.LONG,
    "oauthbearer.sasl.server.callback.handler.class": ConfigType.CLASS,
    "offsets.retention.check.interval.ms": ConfigType.LONG,
    "producer.id.expiration.ms": ConfigType.INT,
    "transactional.id.expiration.ms": ConfigType.INT,
}


@cache
def shape_of(setting: Setting) -> Any:
    """msgspec's description of a setting's type, without None."""
    found: Any = inspect.type_info(setting.type)
    while isinstance(found, inspect.Metadata):
        found = found.type
    if isinstance(found, inspect.UnionType):
        (found,) = (each for each in found.types if not isinstance(each, inspect.NoneType))
    return found


@cache
def type_of(setting: Setting) -> ConfigType:
    """The type of a setting."""
    if setting.key in SECRETS:
        return ConfigType.PASSWORD
    if setting.key in _LISTS:
        return ConfigType.LIST
    if setting.key in _AS_IN_KAFKA:
        return _AS_IN_KAFKA[setting.key]
    shape = shape_of(setting)
    if isinstance(shape, inspect.IntType):
        return ConfigType.INT if shape.le is not None and shape.le <= INT32_MAX else ConfigType.LONG
    if isinstance(shape, inspect.LiteralType) and isinstance(shape.values[0], int):
        return ConfigType.INT
    if isinstance(shape, inspect.BoolType):
        return ConfigType.BOOLEAN
    return ConfigType.DOUBLE if isinstance(shape, inspect.FloatType) else ConfigType.STRING
