"""ListConfigResources (key 74), versions 0-1 (KIP-714, KIP-1142).

v0 lists clients' metrics subscriptions, of which there are none. v1 lists resources of any type that can have
configs; of groups, those that have set some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_TYPES: Final = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)
_TYPES_SINCE: Final = 1


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error alone."""
    del request
    return context.make("ListConfigResourcesResponse", error_code=error, config_resources=())


@api(74, "ListConfigResources", (0, 1), refuse=refuse)
async def list_config_resources(context: RequestContext, request: Any) -> Any:
    """The names of the resources of the requested types; of all types if the request names none."""
    if not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    if context.api_version < _TYPES_SINCE:
        return refuse(context, request, ErrorCode.none)
    asked = set(request.resource_types) or set(_TYPES)
    if not asked <= set(_TYPES):
        return refuse(context, request, ErrorCode.unsupported_version)
    services = context.services
    brokers = [str(broker.node_id) for broker in services.leadership.assignment.brokers]
    names = {
        _TOPIC: [topic.name for topic in services.topics.listed()],
        _BROKER: brokers,
        _BROKER_LOGGER: brokers,
        _GROUP: services.security.group_configs.groups,
    }
    resources = tuple(
        context.make("ConfigResource", resource_name=name, resource_type=kind)
        for kind in _TYPES
        if kind in asked
        for name in names.get(kind, ())
    )
    return context.make("ListConfigResourcesResponse", error_code=ErrorCode.none, config_resources=resources)
