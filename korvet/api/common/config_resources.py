"""What both ways to alter configs share: checks of the resources, in Kafka's order, and their answers."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from korvet.api.common import loggers
from korvet.api.common.errors import error_code_of
from korvet.config.dynamic import check_names
from korvet.config.errors import ConfigError
from korvet.groups.own_configs import InvalidGroupConfig
from korvet.redis.errors import StorageError
from korvet.security.acls import CLUSTER_NAME, Operation, ResourceType
from korvet.slices import sliced
from korvet.topics.errors import InvalidTopicConfig, InvalidTopicRequest, TopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.api.common.context import RequestContext
    from korvet.topics.alterations import Alteration

# Kafka's numbers of resource types (ConfigResource.Type)
_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32
# What is asked for access to their configs; the cluster for all others.
_GUARDED: Final = {_TOPIC: ResourceType.TOPIC, _GROUP: ResourceType.GROUP}
_DENIALS: Final = {
    ResourceType.TOPIC: (ErrorCode.topic_authorization_failed, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.group_authorization_failed, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.cluster_authorization_failed, "Cluster authorization failed."),
}
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}")


class Way(NamedTuple):
    """How one of the two APIs alters configs. Each function takes the configs of a request's resource."""

    nullable: Callable[[Any], bool]
    """Whether a config needs no value."""
    topic: Callable[[Any], Alteration]
    """The change of a topic's configs. Raises TopicError."""
    group: Callable[[Any, Mapping[str, str]], dict[str, str]]
    """A group's new configs, from the request's and those that are set. Raises TopicError."""
    broker: Callable[[Any, Mapping[str, str]], dict[str, str]]
    """A broker's new dynamic configs, from the request's and those that are set. Raises ConfigError."""
    logger: Callable[[Any], list[tuple[str, int, str]]] | None
    """The changes of loggers' levels: name, operation, level. None if the API has none."""


async def alter_resources(context: RequestContext, request: Any, way: Way) -> tuple[Any, ...]:
    """Alter every resource of a request on its own. Returns the results in the order of the request."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    results = []
    async for resource in sliced(request.resources):
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise InvalidTopicRequest("Each resource must appear at most once.")
            if not may_configure(context, Operation.ALTER_CONFIGS, resource):
                results.append(result(context, resource, *denial_of(resource)))
                continue
            _check(resource, way)
            await _alter(context, resource, way, validate_only=request.validate_only)
        except (TopicError, StorageError, ConfigError) as refused:
            results.append(result(context, resource, error_code_of(refused), str(refused)))
        else:
            results.append(result(context, resource, ErrorCode.none, None))
    return tuple(results)


async def _alter(context: RequestContext, resource: Any, way: Way, *, validate_only: bool) -> None:
    kind = resource.resource_type
    if kind == _BROKER:
        await _alter_broker(context, resource, way, validate_only=validate_only)
    elif kind == _BROKER_LOGGER:
        assert way.logger is not None
        _check_id(context, resource.resource_name, "Unexpected node id. Expected {}, but received {}")
        loggers.alter(way.logger(resource.configs), validate_only=validate_only)
    elif kind == _GROUP:
        await _alter_group(context, resource, way, validate_only=validate_only)
    else:
        await context.services.topics.alter_configs(
            resource.resource_name, way.topic(resource.configs), validate_only=validate_only
        )


async def _alter_broker(context: RequestContext, resource: Any, way: Way, *, validate_only: bool) -> None:
    """Alter the dynamic configs of this broker, or of all brokers: all of them or none."""
    security, live = context.services.security, context.services.live
    of_cluster = not resource.resource_name
    if not of_cluster:
        _check_id(context, resource.resource_name, "Unexpected broker id, expected {}, but received {}")
    # Another broker may have changed them a moment ago.
    await security.refresh()
    before = live.of_cluster if of_cluster else live.of_broker
    after = way.broker(resource.configs, before)
    check_names(after, of_cluster=of_cluster)
    names = {config.name for config in resource.configs} | (before.keys() ^ after.keys())
    live.verify(after, names, of_cluster=of_cluster)
    if not validate_only:
        await security.change_broker_configs("" if of_cluster else str(live.static.node_id), after)
        live.renew()


async def _alter_group(context: RequestContext, resource: Any, way: Way, *, validate_only: bool) -> None:
    security, group_id = context.services.security, resource.resource_name
    # Another broker may have changed them a moment ago.
    await security.refresh()
    try:
        altered = context.services.groups.check(
            way.group(resource.configs, security.group_configs.of(group_id))
        )
    except InvalidGroupConfig as refused:
        raise InvalidTopicConfig(str(refused)) from None
    if not validate_only:
        await security.change_group_configs(group_id, altered)


def node_id_of(name: str) -> int | None:
    """The number that a broker's resource is named by; None if it is none."""
    return int(name) if _INTEGER.fullmatch(name) else None


def _check_id(context: RequestContext, name: str, unexpected: str) -> None:
    number, own = node_id_of(name), context.services.config.node_id
    if number is None:
        raise InvalidTopicRequest(f"Node id must be an integer, but it is: {name}")
    if number != own:
        raise InvalidTopicRequest(unexpected.format(own, number))


def may_configure(context: RequestContext, operation: Operation, resource: Any) -> bool:
    """Whether the client is allowed an operation on a resource's configs."""
    kind, name = _GUARDED.get(resource.resource_type, ResourceType.CLUSTER), CLUSTER_NAME
    if kind is not ResourceType.CLUSTER:
        name = resource.resource_name
    return context.may(operation, kind, name)


def denial_of(resource: Any) -> tuple[ErrorCode, str]:
    """Error and text for who may not."""
    return _DENIALS[_GUARDED.get(resource.resource_type, ResourceType.CLUSTER)]


def result(context: RequestContext, resource: Any, error: ErrorCode, message: str | None) -> Any:
    """The answer for one resource."""
    return context.make(
        "AlterConfigsResourceResponse",
        error_code=error,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _check(resource: Any, way: Way) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise InvalidTopicRequest("Error due to duplicate config keys")
    nulls = [config.name for config in resource.configs if config.value is None and not way.nullable(config)]
    if nulls:
        raise InvalidTopicRequest(f"Null value not supported for : {', '.join(nulls)}")
    kind = resource.resource_type
    if kind == _CLIENT_METRICS:
        raise InvalidTopicRequest(
            f"Resource type {kind} is not supported: there are no configs of client metrics"
        )
    if kind not in (_TOPIC, _BROKER, _BROKER_LOGGER, _GROUP) or (kind == _BROKER_LOGGER and not way.logger):
        raise InvalidTopicRequest(f"Unknown resource type {kind}")
    if not resource.resource_name and kind in (_TOPIC, _GROUP):
        said = "group" if kind == _GROUP else "topic"
        raise InvalidTopicRequest(f"Default {said} resources are not allowed.")
