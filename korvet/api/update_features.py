"""UpdateFeatures (key 57), versions 0-2 (KIP-584).

Sets the levels of features, all or none. v1 adds downgrades, and requests that only validate (KIP-778); in
v0 every update is an upgrade. v2 has no results for single features. Producers use transactions by the level
of `transaction.version`; with `group.version` 0, the consumer group protocol is refused, and with
`share.version` 0 share groups are. Below `share.version` 2 they give up the dead letters that wait. Safe and
unsafe downgrades are equivalent.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.config.features import METADATA_VERSION, SUPPORTED
from korvet.protocol.registry import api
from korvet.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from korvet.api.common.context import RequestContext

_FAILED: Final = "The update failed for all features since the following feature had an error: "


class _Type(IntEnum):
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


_WHY_NOT: Final = {
    _Type.SAFE_DOWNGRADE: "Refusing to perform the requested downgrade because it might delete metadata "
    "information.",
    _Type.UNSAFE_DOWNGRADE: "Unsafe metadata downgrade is not supported in this version.",
}


class _InvalidUpdate(Exception):
    """A level that a feature cannot have, in Kafka's words."""


def refuse(context: RequestContext, request: Any, error: ErrorCode, message: str | None = None) -> Any:
    """The error with no results."""
    del request
    return context.make("UpdateFeaturesResponse", error_code=error, error_message=message, results=())


@api(57, "UpdateFeatures", (0, 2), refuse=refuse, changes_shared=True)
async def update_features(context: RequestContext, request: Any) -> Any:
    """Set the levels of features for the whole cluster."""
    if not context.may(Operation.ALTER, ResourceType.CLUSTER):
        return refuse(context, request, ErrorCode.cluster_authorization_failed)
    security = context.services.security
    # Another broker may have changed them a moment ago.
    await security.refresh()
    controller = context.services.leadership.assignment.controller.node_id
    levels = security.features.levels
    updates = request.feature_updates
    try:
        for update in updates:
            _check(update, levels, controller)
    except _InvalidUpdate as refused:
        return refuse(context, request, ErrorCode.invalid_update_version, f"{_FAILED}{refused}")
    changed = {update.feature: int(update.max_version_level) for update in updates}
    changed = {name: level for name, level in changed.items() if level != levels[name]}
    if changed and not getattr(request, "validate_only", False):
        await security.change_features(changed)
    results = (
        context.make(
            "UpdatableFeatureResult", feature=update.feature, error_code=ErrorCode.none, error_message=None
        )
        for update in updates
    )
    return context.make(
        "UpdateFeaturesResponse",
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(results) if context.schema.has("UpdateFeaturesResponse", "results") else (),
    )


def _check(update: Any, levels: Mapping[str, int], controller: int) -> None:
    """Raises _InvalidUpdate."""
    name, level = update.feature, int(update.max_version_level)
    reason = _reason(name, level, getattr(update, "upgrade_type", _Type.UPGRADE), levels, controller)
    if reason is None:
        return
    if reason in _WHY_NOT.values():
        raise _InvalidUpdate(f"Unsupported {name} downgrade from {levels[name]} to {level}. {reason}")
    raise _InvalidUpdate(f"Invalid update version {level} for feature {name}. {reason}")


def _reason(name: str, level: int, kind: int, levels: Mapping[str, int], controller: int) -> str | None:
    """Why a feature can't have the level."""
    supported, now = SUPPORTED.get(name), levels.get(name, 0)
    if kind not in tuple(_Type):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if supported is None:
        if level == 0:
            return f"Feature {name} not found."
        return f"Local controller {controller} does not support this feature."
    if not supported.least <= level <= supported.most:
        return f"Local controller {controller} only supports versions {supported.least}-{supported.most}"
    if level < now and kind == _Type.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    if level < now and name == METADATA_VERSION:
        return _WHY_NOT[_Type(kind)]
    return "Can't downgrade to a newer version." if level > now and kind != _Type.UPGRADE else None
