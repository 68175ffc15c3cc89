"""Which settings can change while brokers run, and what a change makes of the dynamic ones (KIP-226).

The dynamic settings of a broker, and those of the whole cluster, are texts by key. A key may begin with
`listener.name.NAME.`. Names that korvet does not know are kept without effect, as in Kafka: tools and plugins
may set them. Kafka refuses to change those of its own settings that need a restart; korvet keeps them, too.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from korvet.config.changes import ConfigOperation, changed_list
from korvet.config.errors import ConfigError
from korvet.config.keys import LISTENER_PREFIX, find
from korvet.config.kinds import ConfigType, type_of
from korvet.config.values import parse_value, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from korvet.config.changes import ConfigChange


class Scope(enum.Enum):
    """Where a setting can be altered while brokers run; the value is the word in the documentation."""

    CLUSTER = "cluster, broker"
    """For all brokers, and for one."""
    BROKER = "broker"
    """For one broker, with or without a listener's prefix."""
    LISTENER = "broker, by listener"
    """For one listener of one broker."""
    STATIC = "no"


_SCOPES: Final[Mapping[str, Scope]] = {
    **dict.fromkeys(
        (
            "acks.all.fsync",
            "embedded.maxmemory",
            "errors.deadletterqueue.auto.create.topics.enable",
            "errors.deadletterqueue.topic.name.prefix",
            "fetch.readahead.bytes",
            "group.consumer.assignment.interval.ms",
            "group.consumer.heartbeat.interval.ms",
            "group.consumer.max.heartbeat.interval.ms",
            "group.consumer.max.session.timeout.ms",
            "group.consumer.max.size",
            "group.consumer.migration.policy",
            "group.consumer.min.heartbeat.interval.ms",
            "group.consumer.min.session.timeout.ms",
            "group.consumer.session.timeout.ms",
            "group.initial.rebalance.delay.ms",
            "group.max.session.timeout.ms",
            "group.max.size",
            "group.min.session.timeout.ms",
            "group.share.assignment.interval.ms",
            "group.share.delivery.count.limit",
            "group.share.heartbeat.interval.ms",
            "group.share.initialize.retry.interval.ms",
            "group.share.max.assignment.interval.ms",
            "group.share.max.delivery.count.limit",
            "group.share.max.heartbeat.interval.ms",
            "group.share.max.partition.max.record.locks",
            "group.share.max.record.lock.duration.ms",
            "group.share.max.session.timeout.ms",
            "group.share.max.size",
            "group.share.min.assignment.interval.ms",
            "group.share.min.delivery.count.limit",
            "group.share.min.heartbeat.interval.ms",
            "group.share.min.partition.max.record.locks",
            "group.share.min.record.lock.duration.ms",
            "group.share.min.session.timeout.ms",
            "group.share.partition.max.record.locks",
            "group.share.record.lock.duration.ms",
            "group.share.session.timeout.ms",
            "log.cleaner.backoff.ms",
            "log.cleaner.dedupe.buffer.size",
            "log.cleaner.delete.retention.ms",
            "log.cleaner.io.max.bytes.per.second",
            "log.cleaner.max.compaction.lag.ms",
            "log.cleaner.min.cleanable.ratio",
            "log.cleaner.min.compaction.lag.ms",
            "log.cleanup.policy",
            "log.message.timestamp.after.max.ms",
            "log.message.timestamp.before.max.ms",
            "log.retention.bytes",
            "log.retention.memory.ratio",
            "log.retention.ms",
            "log_level",
            "max.connection.creation.rate",
            "max.connections",
            "max.connections.per.ip",
            "max.connections.per.ip.overrides",
            "max.decompressed.message.bytes",
            "message.max.bytes",
            "metrics.groups",
            "metrics.lag.interval.ms",
            "metrics.max.rows",
            "metrics.topics",
            "min.insync.replicas",
            "offsets.history.retention.bytes",
            "offsets.history.retention.ms",
            "producer.id.expiration.ms",
            "request.log.clients",
            "request.log.failed",
            "request.log.slow.ms",
            "tail.cache.bytes",
        ),
        Scope.CLUSTER,
    ),
    **dict.fromkeys(
        (
            "plain.sasl.jaas.config",
            "sasl.enabled.mechanisms",
            "ssl.cipher.suites",
            "ssl.client.auth",
            "ssl.enabled.protocols",
        ),
        Scope.BROKER,
    ),
    **dict.fromkeys(("ssl.key.password", "ssl.keystore.location", "ssl.truststore.location"), Scope.LISTENER),
}
# Settings of a listener that can be altered for all brokers.
_OF_ALL_LISTENERS: Final = frozenset({"max.connection.creation.rate", "max.connections"})


class NotAList(ConfigError):
    """APPEND or SUBTRACT for a config that is not a list."""


def scope_of(key: str) -> Scope:
    """Where the setting with that key, without a listener's prefix, can be altered."""
    return _SCOPES.get(key, Scope.STATIC)


def is_static(name: str) -> bool:
    """Whether a broker's config can't change while the broker runs. Unknown names are not static."""
    found = find(name)
    return found is not None and scope_of(found[1].key) is Scope.STATIC


def altered(before: Mapping[str, str], changes: Iterable[ConfigChange]) -> dict[str, str]:
    """The dynamic settings after single changes. APPEND and SUBTRACT begin with the value in `before`, else
    with the default. Raises NotAList.
    """
    after = dict(before)
    for change in changes:
        if change.operation is ConfigOperation.DELETE:
            after.pop(change.name, None)
        elif change.operation is ConfigOperation.SET:
            after[change.name] = change.value.strip()
        else:
            after[change.name] = changed_list(change, before.get(change.name, _default_list(change)))
    return after


def _default_list(change: ConfigChange) -> str:
    found = find(change.name)
    if found is None:
        raise NotAList(f"Unknown config name: {change.name}")
    if type_of(found[1]) is not ConfigType.LIST:
        operation = change.operation.name.lower()
        raise NotAList(f"Config value {operation} is not allowed for config key: {change.name}")
    return "" if found[1].default is None else text_of(found[1].default)


def check_names(dynamic: Mapping[str, str], *, of_cluster: bool) -> None:
    """Check dynamic settings one by one, in Kafka's order. `of_cluster`: they are for all brokers. Raises
    ConfigError.
    """
    _refuse("Cannot update these configs dynamically", filter(is_static, dynamic))
    _refuse(
        "These security configs can be dynamically updated only per-listener using the listener prefix",
        (name for name in dynamic if scope_of(name) is Scope.LISTENER),
    )
    for name, text in dynamic.items():
        found = find(name)
        if found is not None:
            parse_value(found[1], name, text)
    if of_cluster:
        _refuse(
            "Cannot update these configs at default cluster level, broker id must be specified",
            filter(_is_of_one_broker, dynamic),
        )


def _is_of_one_broker(name: str) -> bool:
    if name.startswith(LISTENER_PREFIX):
        found = find(name)
        return found is None or found[1].key not in _OF_ALL_LISTENERS
    return scope_of(name) is Scope.BROKER


def _refuse(why: str, names: Iterable[str]) -> None:
    found = list(names)
    if found:
        raise ConfigError(f"{why}: [{', '.join(found)}]")
