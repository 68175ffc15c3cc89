"""What both ways to alter configs share: checks of the resources, in Kafka's order, and their answers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.groups.config import InvalidGroupConfig
from korvet.security.acls import CLUSTER_NAME, Operation, ResourceType
from korvet.slices import sliced
from korvet.storage.errors import StorageError
from korvet.topics.errors import InvalidTopicConfig, InvalidTopicRequest, TopicError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.api.common.context import RequestContext
    from korvet.topics.alterations import Alteration

# Kafka's numbers of resource types (ConfigResource.Type)
_TOPIC: Final = 2
_BROKER: Final = 4
_GROUP: Final = 32
# What is asked for access to their configs; the cluster for all others.
_GUARDED: Final = {_TOPIC: ResourceType.TOPIC, _GROUP: ResourceType.GROUP}
_DENIALS: Final = {
    ResourceType.TOPIC: (ErrorCode.topic_authorization_failed, "Topic authorization failed."),
    ResourceType.GROUP: (ErrorCode.group_authorization_failed, "Group authorization failed."),
    ResourceType.CLUSTER: (ErrorCode.cluster_authorization_failed, "Cluster authorization failed."),
}
_NOT_HERE: Final = {8: "broker loggers", 16: "client metrics"}


async def alter_resources(
    context: RequestContext,
    request: Any,
    nullable: Callable[[Any], bool],
    alteration: Callable[[Any], Alteration],
    group_alteration: Callable[[Any, Mapping[str, str]], dict[str, str]],
) -> tuple[Any, ...]:
    """Alter every resource of a request on its own. Returns the results in the order of the request.

    `nullable` returns whether a config needs no value. `alteration` returns the change of a topic's configs,
    or raises TopicError. `group_alteration` returns a group's new configs, from the request's and those that
    are set.
    """
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    results = []
    async for resource in sliced(request.resources):
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise InvalidTopicRequest("Each resource must appear at most once.")
            if not may_configure(context, Operation.ALTER_CONFIGS, resource):
                results.append(result(context, resource, *denial_of(resource)))
                continue
            _check(resource, nullable)
            if resource.resource_type == _GROUP:
                await _alter_group(context, resource, group_alteration, validate_only=request.validate_only)
            else:
                await context.services.topics.alter_configs(
                    resource.resource_name, alteration(resource.configs), validate_only=request.validate_only
                )
        except (TopicError, StorageError) as refused:
            results.append(result(context, resource, error_code_of(refused), str(refused)))
        else:
            results.append(result(context, resource, ErrorCode.none, None))
    return tuple(results)


async def _alter_group(
    context: RequestContext,
    resource: Any,
    alteration: Callable[[Any, Mapping[str, str]], dict[str, str]],
    *,
    validate_only: bool,
) -> None:
    security, group_id = context.services.security, resource.resource_name
    # Another broker may have changed them a moment ago.
    await security.refresh()
    try:
        altered = context.services.groups.check(
            alteration(resource.configs, security.group_configs.of(group_id))
        )
    except InvalidGroupConfig as refused:
        raise InvalidTopicConfig(str(refused)) from None
    if not validate_only:
        await security.change_group_configs(group_id, altered)


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


def _check(resource: Any, nullable: Callable[[Any], bool]) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise InvalidTopicRequest("Error due to duplicate config keys")
    nulls = [config.name for config in resource.configs if config.value is None and not nullable(config)]
    if nulls:
        raise InvalidTopicRequest(f"Null value not supported for : {', '.join(nulls)}")
    if resource.resource_type == _BROKER:
        raise InvalidTopicRequest(
            "A broker's settings can't be altered while it runs: they are in its configuration file, its "
            "environment and its flags"
        )
    if resource.resource_type in _NOT_HERE:
        raise InvalidTopicRequest(
            f"Resource type {resource.resource_type} is not supported: there are no configs of "
            f"{_NOT_HERE[resource.resource_type]}"
        )
    if resource.resource_type == _GROUP:
        if not resource.resource_name:
            raise InvalidTopicRequest("Default group resources are not allowed.")
        return
    if resource.resource_type != _TOPIC:
        raise InvalidTopicRequest(f"Unknown resource type {resource.resource_type}")
    if not resource.resource_name:
        raise InvalidTopicRequest("Default topic resources are not allowed.")
