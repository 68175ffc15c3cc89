"""IncrementalAlterConfigs (key 44), versions 0-1 (KIP-339).

Sets and deletes single configs of topics, of groups, of this broker and of all brokers (KIP-226, empty name),
and appends to or subtracts from lists. A change is in force when the response is sent; other brokers follow
within a second. `offset.assignment` can't change, and `__consumer_offsets` stays compacted. Levels of this
broker's loggers (KIP-412) last until the broker ends. v1 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.api.common.config_resources import Way, alter_resources, result
from korvet.config.changes import ConfigChange, ConfigOperation
from korvet.config.dynamic import altered
from korvet.protocol.registry import api
from korvet.topics.alterations import increments
from korvet.topics.errors import InvalidTopicConfig, InvalidTopicRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kio.schema.errors import ErrorCode

    from korvet.api.common.context import RequestContext
    from korvet.topics.alterations import Alteration


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every resource with the error."""
    responses = tuple(result(context, resource, error, None) for resource in request.resources)
    return context.make("IncrementalAlterConfigsResponse", responses=responses)


@api(44, "IncrementalAlterConfigs", (0, 1), refuse=refuse, changes_shared=True)
async def incremental_alter_configs(context: RequestContext, request: Any) -> Any:
    """Change single configs of resources, each on its own: all its changes or none."""
    responses = await alter_resources(context, request, _WAY)
    return context.make("IncrementalAlterConfigsResponse", responses=responses)


def _deletes(config: Any) -> bool:
    return bool(config.config_operation == ConfigOperation.DELETE)


def _alteration(configs: Any) -> Alteration:
    return increments([_change(config) for config in configs])


def _group_configs(configs: Any, now: Mapping[str, str]) -> dict[str, str]:
    changed = dict(now)
    for change in map(_change, configs):
        if change.operation is ConfigOperation.DELETE:
            changed.pop(change.name, None)
        elif change.operation is ConfigOperation.SET:
            changed[change.name] = change.value
        else:
            raise InvalidTopicConfig(
                f"Can't {change.operation.name} to key {change.name} because its type is not LIST."
            )
    return changed


def _broker_configs(configs: Any, now: Mapping[str, str]) -> dict[str, str]:
    return altered(now, map(_change, configs))


def _levels(configs: Any) -> list[tuple[str, int, str]]:
    return [(config.name, config.config_operation, config.value or "") for config in configs]


def _change(config: Any) -> ConfigChange:
    try:
        operation = ConfigOperation(config.config_operation)
    except ValueError:
        raise InvalidTopicRequest(
            f"Unknown operation {config.config_operation} on config {config.name}"
        ) from None
    return ConfigChange(config.name, operation, config.value or "")


_WAY = Way(_deletes, _alteration, _group_configs, _broker_configs, _levels)
