"""DescribeClientQuotas (key 48), versions 0-1 (KIP-546).

A filter's components match names, defaults, or all entities with a type; a strict filter matches only
entities without other types. Needs DescribeConfigs on the cluster. v1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.quotas.entities import (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    EntityFilter,
    InvalidQuota,
    UnsupportedEntity,
)
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.quotas.entities import Entity


# In Kafka's order, which is that of a Java hash map: the last one is the first one if an entity has all.
_KEYS: Final[tuple[str, ...]] = (
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    REQUEST_PERCENTAGE,
    PRODUCER_BYTE_RATE,
)


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """The error with no entities."""
    del request
    return context.make("DescribeClientQuotasResponse", error_code=error, error_message=message, entries=None)


@api(48, "DescribeClientQuotas", (0, 1), refuse=refuse)
async def describe_client_quotas(context: RequestContext, request: Any) -> Any:
    """The quotas of all entities that the filter finds."""
    if not context.may(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    components = [(each.entity_type, each.match_type, each.match) for each in request.components]
    try:
        wanted = EntityFilter(components, strict=request.strict)
    except UnsupportedEntity as unsupported:
        return refuse(context, request, ErrorCode.unsupported_version, str(unsupported))
    except InvalidQuota as invalid:
        return refuse(context, request, ErrorCode.invalid_request, str(invalid))
    await context.services.security.refresh()
    found: dict[Entity, dict[str, float]] = {}
    for (entity, key), value in context.services.quotas.values.items():
        if wanted.matches(entity):
            found.setdefault(entity, {})[key] = value
    return context.make(
        "DescribeClientQuotasResponse",
        error_code=ErrorCode.none,
        error_message=None,
        entries=tuple(_entry(context, entity, values) for entity, values in found.items()),
    )


def _entry(context: RequestContext, entity: Entity, values: dict[str, float]) -> Any:
    keys = [key for key in _KEYS if key in values] or [*values]
    if len(keys) == len(_KEYS):
        keys.insert(0, keys.pop())
    return context.make(
        "EntryData",
        entity=tuple(context.make("EntityData", entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(context.make("ValueData", key=key, value=values[key]) for key in keys),
    )
