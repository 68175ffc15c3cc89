"""DescribeConfigs (key 32), versions 1-4.

Returns all topic configs of Kafka and of korvet, a broker's settings under Kafka's names, the dynamic
settings of all brokers (empty name), the levels of a broker's loggers, and the configs that a group may set.
v1 adds sources and synonyms (KIP-226), v3 types and documentation (KIP-569), v4 is flexible.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.config_resources import denial_of, may_configure, node_id_of
from korvet.api.common.described import Described, of_broker, of_cluster, of_loggers, of_view
from korvet.api.common.errors import error_code_of
from korvet.config.keys import settings
from korvet.config.kinds import ConfigSource
from korvet.groups.own_configs import GROUP_CONFIGS
from korvet.protocol.registry import api
from korvet.security.acls import Operation
from korvet.slices import sliced
from korvet.topics.configs import TOPIC_CONFIGS, TopicConfig, describe
from korvet.topics.errors import InvalidTopicRequest, TopicError, UnknownTopic
from korvet.topics.names import check_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.api.common.context import RequestContext


# What is set for one group is checked by GroupConfig.check.
_OF_GROUPS: Final = tuple(
    TopicConfig(each.name, each.type, each.default, lambda _: None, each.broker_name, each.documentation)
    for each in GROUP_CONFIGS.values()
)
_BROKERS_OF_GROUPS: Final = tuple(
    setting for setting in settings() if setting.key in {config.synonym for config in _OF_GROUPS}
)


class _Resource(enum.IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every resource with the error."""
    results = tuple(_failed(context, resource, error, None) for resource in request.resources)
    return context.make("DescribeConfigsResponse", results=results)


@api(32, "DescribeConfigs", (1, 4), refuse=refuse)
async def describe_configs(context: RequestContext, request: Any) -> Any:
    """The configs of topics, of groups, of this broker and its loggers, and of all brokers."""
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
    try:
        configs = _configs(context, resource)
    except TopicError as refused:
        message = None if isinstance(refused, UnknownTopic) else str(refused)
        return _failed(context, resource, error_code_of(refused), message)
    # An empty list means all as well: librdkafka sends it so.
    keys = frozenset(resource.configuration_keys or ())
    return context.make(
        "DescribeConfigsResult",
        error_code=ErrorCode.none,
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(
            _result(context, request, config) for config in configs if not keys or config.name in keys
        ),
    )


def _configs(context: RequestContext, resource: Any) -> Iterator[Described]:
    """The configs of a resource. Raises TopicError."""
    kind, name, live = resource.resource_type, resource.resource_name, context.services.live
    if kind == _Resource.TOPIC:
        check_topic_name(name)
        if context.services.topics.get(name) is None:
            raise UnknownTopic(name)
        return _topic_configs(context, resource)
    if kind == _Resource.BROKER:
        if not name:
            return of_cluster(live)
        _check_id(context, name, "Unexpected broker id, expected {} or empty string, but received {}")
        return of_broker(live)
    if kind == _Resource.BROKER_LOGGER:
        if not name:
            raise InvalidTopicRequest("Broker id must not be empty")
        _check_id(context, name, "Unexpected broker id, expected {} but received {}")
        return of_loggers()
    if kind == _Resource.GROUP:
        if not name:
            raise InvalidTopicRequest("Group name must not be empty")
        return _group_configs(context, resource)
    raise InvalidTopicRequest(f"Resource type {kind} is not supported.")


def _check_id(context: RequestContext, name: str, unexpected: str) -> None:
    number = node_id_of(name)
    if number is None:
        raise InvalidTopicRequest(f"Broker id must be an integer, but it is: {name}")
    own = context.services.config.node_id
    if number != own:
        raise InvalidTopicRequest(unexpected.format(own, number))


def _topic_configs(context: RequestContext, resource: Any) -> Iterator[Described]:
    topics = context.services.topics
    topic = topics.get(resource.resource_name)
    assert topic is not None
    broker_configs = topics.broker_configs(topic)
    return (of_view(describe(config, topic.configs, broker_configs)) for config in TOPIC_CONFIGS.values())


def _group_configs(context: RequestContext, resource: Any) -> Iterator[Described]:
    services = context.services
    own = services.security.group_configs.of(resource.resource_name)
    broker_configs = {each.key: services.live.layers(each) for each in _BROKERS_OF_GROUPS}
    return (of_view(describe(config, own, broker_configs, ConfigSource.GROUP)) for config in _OF_GROUPS)


def _result(context: RequestContext, request: Any, config: Described) -> Any:
    synonyms = (
        context.make("DescribeConfigsSynonym", name=name, value=value, source=source)
        for name, value, source in config.synonyms
    )
    return context.make(
        "DescribeConfigsResourceResult",
        name=config.name,
        value=config.value,
        read_only=config.read_only,
        config_source=config.source,
        is_sensitive=config.sensitive,
        synonyms=tuple(synonyms) if request.include_synonyms else (),
        config_type=config.type,
        documentation=config.documentation if getattr(request, "include_documentation", False) else None,
    )


def _failed(context: RequestContext, resource: Any, error: ErrorCode, message: str | None) -> Any:
    return context.make(
        "DescribeConfigsResult",
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=(),
    )
