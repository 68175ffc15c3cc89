"""AlterClientQuotas (key 49), versions 0-1 (KIP-546).

Makes all changes of an entity, or none. Each broker enforces the quotas on its own (KIP-219, KIP-599,
KIP-612). Needs AlterConfigs on the cluster. v1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from korvet.protocol.registry import api
from korvet.quotas.entities import InvalidQuota, check_entity, check_value, entity_of
from korvet.security.acls import Operation, ResourceType
from korvet.slices import sliced

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.quotas.entities import Entity


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every entity with the error."""
    entities = dict.fromkeys(_entity(entry) for entry in request.entries)
    entries = tuple(_entry(context, entity, (error, None)) for entity in entities)
    return context.make("AlterClientQuotasResponse", entries=entries)


@api(49, "AlterClientQuotas", (0, 1), refuse=refuse, changes_shared=True)
async def alter_client_quotas(context: RequestContext, request: Any) -> Any:
    """Store and forget quotas; in force here when answered, and everywhere within two seconds."""
    if not context.may(Operation.ALTER_CONFIGS, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    results: dict[Entity, tuple[ErrorCode, str | None]] = {}
    changes: dict[tuple[Entity, str], float | None] = {}
    async for entry in sliced(request.entries):
        entity = _entity(entry)
        try:
            values = _values(entity, entry.ops, repeated=entity in results)
        except InvalidQuota as invalid:
            results[entity] = ErrorCode.invalid_request, str(invalid)
        else:
            results[entity] = ErrorCode.none, None
            changes.update(((entity, key), value) for key, value in values.items())
    if changes and not request.validate_only:
        await context.services.security.change_quotas(changes)
    entries = [_entry(context, *each) async for each in sliced(results.items())]
    return context.make("AlterClientQuotasResponse", entries=tuple(entries))


def _entity(entry: Any) -> Entity:
    return entity_of({each.entity_type: each.entity_name for each in entry.entity})


def _values(entity: Entity, ops: Any, *, repeated: bool) -> dict[str, float | None]:
    """The entity's new values by key; None removes a value. Raises InvalidQuota."""
    values = {op.key: None if op.remove else op.value for op in ops}
    if repeated or len(values) < len(ops):
        shown = ", ".join(f"{kind}={name}" for kind, name in entity)
        raise InvalidQuota(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")
    check_entity(entity)
    for key, value in values.items():
        if value is not None:
            check_value(entity, key, value)
    return values


def _entry(context: RequestContext, entity: Entity, result: tuple[ErrorCode, str | None]) -> Any:
    error, message = result
    named = [context.make("EntityData", entity_type=kind, entity_name=name) for kind, name in entity]
    return context.make("EntryData", error_code=error, error_message=message, entity=tuple(named))
