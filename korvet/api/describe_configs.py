"""DescribeConfigs (key 32), versions 1-4.

Returns all topic configs of Kafka and of korvet, a broker's settings under Kafka's names, and the configs
that a group may set. v1 adds sources and synonyms (KIP-226), v3 types and documentation (KIP-569), v4 is
flexible.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.config_resources import denial_of, may_configure
from korvet.api.common.errors import error_code_of
from korvet.config.keys import SECRETS, settings
from korvet.groups.config import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from korvet.protocol.registry import api
from korvet.security.acls import Operation
from korvet.slices import sliced
from korvet.topics.configs import (
    TOPIC_CONFIGS,
    ConfigSource,
    ConfigType,
    ConfigView,
    TopicConfig,
    describe,
)
from korvet.topics.errors import InvalidTopicName
from korvet.topics.names import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.api.common.context import RequestContext


# What is set for one group is checked by GroupConfig.check.
_OF_GROUPS: Final = tuple(
    TopicConfig(name, ConfigType.INT, default, lambda _: None, f"group.{name}", text)
    for name, default, text in (
        (SESSION_TIMEOUT_MS, "45000", "Time after which a member of the group that is silent is out."),
        (HEARTBEAT_INTERVAL_MS, "5000", "Time between two heartbeats of a member of the group."),
    )
)
_BROKERS_OF_GROUPS: Final = {
    setting.key: setting.field
    for setting in settings()
    if setting.key in {config.synonym for config in _OF_GROUPS}
}


class _Resource(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    GROUP = 32


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every resource with the error."""
    results = tuple(_failed(context, resource, error, None) for resource in request.resources)
    return context.make("DescribeConfigsResponse", results=results)


@api(32, "DescribeConfigs", (1, 4), refuse=refuse)
async def describe_configs(context: RequestContext, request: Any) -> Any:
    """The configs of topics, of groups and of this broker."""
    # A resource that is repeated is answered once: clients keep the answers by resource.
    once = {
        (each.resource_type, each.resource_name, frozenset(each.configuration_keys or ())): each
        for each in request.resources
    }
    results = [_describe(context, request, each) async for each in sliced(once.values())]
    return context.make("DescribeConfigsResponse", results=tuple(results))


def _describe(context: RequestContext, request: Any, resource: Any) -> Any:
    if not may_configure(context, Operation.DESCRIBE_CONFIGS, resource):
        return _failed(context, resource, *denial_of(resource))
    if resource.resource_type == _Resource.TOPIC:
        try:
            check_topic_name(resource.resource_name)
        except InvalidTopicName as refused:
            return _failed(context, resource, error_code_of(refused), str(refused))
        if context.services.topics.get(resource.resource_name) is None:
            return _failed(context, resource, ErrorCode.unknown_topic_or_partition, None)
        configs = _topic_configs(context, request, resource)
    elif resource.resource_type == _Resource.BROKER:
        own = str(context.services.config.node_id)
        if resource.resource_name not in ("", own):
            message = (
                f"Unexpected broker id, expected {own} or empty string, but received {resource.resource_name}"
            )
            return _failed(context, resource, ErrorCode.invalid_request, message)
        configs = _broker_configs(context, request, resource)
    elif resource.resource_type == _Resource.GROUP:
        if not resource.resource_name:
            return _failed(context, resource, ErrorCode.invalid_request, "Group name must not be empty")
        configs = _group_configs(context, request, resource)
    else:
        message = f"Resource type {resource.resource_type} is not supported."
        return _failed(context, resource, ErrorCode.invalid_request, message)
    return context.make(
        "DescribeConfigsResult",
        error_code=ErrorCode.none,
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=configs,
    )


def _wanted(resource: Any) -> Callable[[str], bool]:
    """Which configs of a resource are asked for."""
    # An empty list means all as well: librdkafka sends it so.
    keys = frozenset(resource.configuration_keys or ())
    return lambda name: not keys or name in keys


def _topic_configs(context: RequestContext, request: Any, resource: Any) -> tuple[Any, ...]:
    topics = context.services.topics
    topic = topics.get(resource.resource_name)
    assert topic is not None
    own, broker_configs, wanted = topic.configs, topics.broker_configs(topic), _wanted(resource)
    return _described(
        context,
        request,
        [describe(config, own, broker_configs) for config in TOPIC_CONFIGS.values() if wanted(config.name)],
    )


def _group_configs(context: RequestContext, request: Any, resource: Any) -> tuple[Any, ...]:
    services = context.services
    own, wanted = services.security.group_configs.of(resource.resource_name), _wanted(resource)
    broker_configs = {key: str(getattr(services.config, field)) for key, field in _BROKERS_OF_GROUPS.items()}
    return _described(
        context,
        request,
        [
            describe(config, own, broker_configs, ConfigSource.GROUP)
            for config in _OF_GROUPS
            if wanted(config.name)
        ],
    )


def _described(context: RequestContext, request: Any, views: Iterable[ConfigView]) -> tuple[Any, ...]:
    results = []
    for view in views:
        config = view.config
        synonyms = (
            context.make("DescribeConfigsSynonym", name=name, value=value, source=source)
            for name, value, source in view.synonyms
        )
        results.append(
            context.make(
                "DescribeConfigsResourceResult",
                name=config.name,
                value=view.value,
                read_only=False,
                config_source=view.source,
                is_sensitive=False,
                synonyms=tuple(synonyms) if request.include_synonyms else (),
                config_type=config.type,
                documentation=_documentation(request, config.documentation),
            )
        )
    return tuple(results)


def _broker_configs(context: RequestContext, request: Any, resource: Any) -> tuple[Any, ...]:
    results = []
    wanted = _wanted(resource)
    for setting in settings():
        if not wanted(setting.key):
            continue
        value = getattr(context.services.config, setting.field)
        # Shown as null, as Kafka shows its sensitive configs.
        sensitive = setting.key in SECRETS
        source = ConfigSource.DEFAULT if value == setting.default else ConfigSource.STATIC_BROKER
        shown = None if sensitive or value is None else _text(value)
        synonym = context.make("DescribeConfigsSynonym", name=setting.key, value=shown, source=source)
        results.append(
            context.make(
                "DescribeConfigsResourceResult",
                name=setting.key,
                value=shown,
                read_only=True,
                config_source=source,
                is_sensitive=sensitive,
                synonyms=(synonym,) if request.include_synonyms else (),
                config_type=_type(value),
                documentation=_documentation(request, setting.description),
            )
        )
    return tuple(results)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(value: object) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    return ConfigType.LONG if isinstance(value, int) else ConfigType.STRING


def _documentation(request: Any, text: str) -> str | None:
    return text if getattr(request, "include_documentation", False) else None


def _failed(context: RequestContext, resource: Any, error: ErrorCode, message: str | None) -> Any:
    return context.make(
        "DescribeConfigsResult",
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=(),
    )
