"""AlterConfigs (key 33), versions 0-2 (KIP-133).

Replaces all configs of a topic, of a group, of this broker or of all brokers (empty name): configs that the
request doesn't name return to their defaults.
Exceptions: `offset.assignment` stays, and internal topics stay compacted. Kafka deprecated this API for
IncrementalAlterConfigs; old tools still use it. v2 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from korvet.api.common.config_resources import Way, alter_resources, result
from korvet.protocol.registry import api
from korvet.topics.alterations import replacement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kio.schema.errors import ErrorCode

    from korvet.api.common.context import RequestContext
    from korvet.topics.alterations import Alteration


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """Every resource with the error."""
    responses = tuple(result(context, resource, error, None) for resource in request.resources)
    return context.make("AlterConfigsResponse", responses=responses)


@api(33, "AlterConfigs", (0, 2), refuse=refuse, changes_shared=True)
async def alter_configs(context: RequestContext, request: Any) -> Any:
    """Replace the configs of topics, groups and brokers, each on its own."""
    responses = await alter_resources(context, request, _WAY)
    return context.make("AlterConfigsResponse", responses=responses)


def _never_null(config: Any) -> bool:
    del config
    return False


def _alteration(configs: Any) -> Alteration:
    return replacement({config.name: config.value for config in configs})


def _given(configs: Any, now: Mapping[str, str]) -> dict[str, str]:
    del now
    return {config.name: config.value for config in configs}


def _stripped(configs: Any, now: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in _given(configs, now).items()}


_WAY = Way(_never_null, _alteration, _given, _stripped, None)
