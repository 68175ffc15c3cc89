"""Changes of a topic's configs: Kafka's four operations (KIP-339), and the replacement of all configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from korvet.config.changes import ConfigOperation, changed_list
from korvet.config.kinds import ConfigType
from korvet.topics.configs import (
    CLEANUP_POLICY,
    OFFSET_ASSIGNMENT,
    STORAGE_LAYOUT,
    TOPIC_CONFIGS,
    check_together,
    check_topic_config,
    describe,
)
from korvet.topics.errors import InvalidTopicConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from korvet.cluster.topic import Topic
    from korvet.config.changes import ConfigChange
    from korvet.topics.configs import BrokerConfigs

# (configs set for the topic, the broker's configs by synonym) -> the topic's new configs
Alteration: TypeAlias = "Callable[[Mapping[str, str], BrokerConfigs], dict[str, str]]"


def increments(changes: Sequence[ConfigChange]) -> Alteration:
    """Change single configs and keep all others. The alteration raises InvalidConfig and InvalidTopicConfig.

    APPEND and SUBTRACT start from the value in force. As in Kafka, it is no error to delete a config that is
    not set or does not exist.
    """

    def alter(configs: Mapping[str, str], broker_configs: BrokerConfigs) -> dict[str, str]:
        altered = dict(configs)
        for change in changes:
            if change.operation is ConfigOperation.DELETE:
                altered.pop(change.name, None)
                continue
            value = change.value
            if change.operation is not ConfigOperation.SET:
                value = _changed_list(change, configs, broker_configs)
            altered[change.name] = check_topic_config(change.name, value)
        check_together(altered)
        return altered

    return alter


def replacement(values: Mapping[str, str]) -> Alteration:
    """Replace all configs; a config that is not named returns to its default.

    Fixed configs are kept: a client that does not know offset.assignment or storage.layout must not be
    refused because it omits them. The alteration raises InvalidConfig.
    """

    def alter(configs: Mapping[str, str], broker_configs: BrokerConfigs) -> dict[str, str]:
        del broker_configs
        kept = {name: value for name, value in configs.items() if name in (OFFSET_ASSIGNMENT, STORAGE_LAYOUT)}
        altered = kept | {name: check_topic_config(name, value) for name, value in values.items()}
        check_together(altered)
        return altered

    return alter


def check_fixed(topic: Topic, configs: Mapping[str, str]) -> None:
    """Raises InvalidTopicConfig if the configs would change a property that is fixed at a topic's
    creation.
    """
    _check_same(topic, configs, OFFSET_ASSIGNMENT, topic.offset_assignment, "all its offsets depend on it")
    _check_same(topic, configs, STORAGE_LAYOUT, topic.storage_layout, "its records lie in Redis that way")
    policy = configs.get(CLEANUP_POLICY)
    if topic.internal and policy != "compact":
        raise InvalidTopicConfig(
            f"{CLEANUP_POLICY} of {topic.name} must stay compact and can't be {policy!r}: commits would be "
            "lost"
        )


def check_internal(name: str, configs: Mapping[str, str]) -> None:
    """Raises InvalidTopicConfig for configs that a coordinator's topic cannot be created with."""
    for config, only in (
        (CLEANUP_POLICY, "compact"),
        (OFFSET_ASSIGNMENT, "dense"),
        (STORAGE_LAYOUT, "record"),
    ):
        value = configs.get(config, only)
        if value != only:
            raise InvalidTopicConfig(f"{config} of {name} must be {only} and can't be {value!r}")


def _check_same(topic: Topic, configs: Mapping[str, str], name: str, fixed: str, why: str) -> None:
    value = configs.get(name)
    if value is None and name in topic.configs:
        value = TOPIC_CONFIGS[name].default
    if value not in (None, fixed):
        raise InvalidTopicConfig(
            f"{name} of {topic.name} was fixed at its creation as {fixed} and can't be changed: {why}"
        )


def _changed_list(change: ConfigChange, configs: Mapping[str, str], broker_configs: BrokerConfigs) -> str:
    config = TOPIC_CONFIGS.get(change.name)
    if config is None or config.type is not ConfigType.LIST:
        raise InvalidTopicConfig(
            f"Can't {change.operation.name} to key {change.name} because its type is not LIST."
        )
    return changed_list(change, describe(config, configs, broker_configs).value)
