"""ApiVersions (key 18), versions 0-5.

Returns the registered APIs. v1 adds the throttle time, v3 client name and version (KIP-511) and flexible
encoding. v4 adds features that begin with version 0: the consumer group protocol (KIP-848), and transactions
of protocol version 2 (KIP-890), which Java producers use if it is finalized. v5 names the expected
cluster and broker; another broker returns REBOOTSTRAP_REQUIRED (KIP-1242). The response header is v0 in every
version. A request in an unknown version receives error 35 in version 0.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.config.features import SUPPORTED
from korvet.protocol import registry
from korvet.protocol.registry import api

if TYPE_CHECKING:
    from korvet.api.common.context import RequestContext
    from korvet.protocol.messages import ResponseSchema

_FEATURES_SINCE: Final = 4
_NAMES_BROKER_SINCE: Final = 5
_ANY_NODE: Final = -1
# Limits the kept responses: one for each version, for some changes of features.
_MOST_KEPT: Final = 32
# Limits what is kept of the name and version of a client that must authenticate.
_MOST_CHARACTERS: Final = 80
# ApiVersionsRequest.json: a letter or digit at both ends, dots and dashes between.
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def refuse(context: RequestContext, request: Any, error: ErrorCode) -> Any:
    """The error with no APIs."""
    del request
    return context.make("ApiVersionsResponse", error_code=error, api_keys=())


def _unsupported() -> bytes:
    """Version 0 of the response with UNSUPPORTED_VERSION and all supported versions (KIP-511)."""
    entries = registry.registered()
    ranges = [struct.pack(">hhh", entry.key, entry.advertised_min, entry.max_version) for entry in entries]
    return struct.pack(">hi", ErrorCode.unsupported_version, len(ranges)) + b"".join(ranges)


@api(18, "ApiVersions", (0, 5), refuse=refuse, unsupported=_unsupported)
async def api_versions(context: RequestContext, request: Any) -> Any:
    """All registered APIs with their versions."""
    if context.api_version >= 3:
        for text in (request.client_software_name, request.client_software_version):
            if _SOFTWARE.fullmatch(text) is None:
                return refuse(context, request, ErrorCode.invalid_request)
        if context.client.session.sasl is not None:
            software = f"{request.client_software_name} {request.client_software_version}"
            context.client.session.sasl.software = software[:_MOST_CHARACTERS]
    if context.api_version >= _NAMES_BROKER_SINCE and (error := _misled(context, request)):
        return refuse(context, request, error)
    features = context.services.security.features
    return [_encoded(context.schema, context.api_version, tuple(features.levels.items()), features.epoch)]


def _misled(context: RequestContext, request: Any) -> ErrorCode:
    """What is wrong with the cluster and the broker that the client means to talk to; none if nothing is."""
    if (request.cluster_id is None) != (request.node_id == _ANY_NODE):
        return ErrorCode.invalid_request
    if request.cluster_id is None:
        return ErrorCode.none
    services = context.services
    if (request.cluster_id, request.node_id) == (services.cluster_id, services.leadership.node_id):
        return ErrorCode.none
    return ErrorCode.rebootstrap_required


@lru_cache(maxsize=_MOST_KEPT)
def _encoded(
    schema: ResponseSchema, api_version: int, levels: tuple[tuple[str, int], ...], epoch: int
) -> bytes:
    """The response body. It is the same for every client, and anybody may ask for it at any rate."""
    keys = tuple(
        schema.make(
            "ApiVersion", api_key=entry.key, min_version=entry.advertised_min, max_version=entry.max_version
        )
        for entry in registry.registered()
    )
    features = _features(schema, levels, epoch) if api_version >= _FEATURES_SINCE else {}
    response = schema.make("ApiVersionsResponse", error_code=ErrorCode.none, api_keys=keys, **features)
    return schema.encode(response)


def _features(schema: ResponseSchema, levels: tuple[tuple[str, int], ...], epoch: int) -> dict[str, Any]:
    return {
        "supported_features": tuple(
            schema.make(
                "SupportedFeatureKey", name=name, min_version=supported.least, max_version=supported.most
            )
            for name, supported in SUPPORTED.items()
        ),
        "finalized_features_epoch": epoch,
        "finalized_features": tuple(
            schema.make("FinalizedFeatureKey", name=name, min_version_level=level, max_version_level=level)
            for name, level in levels
            if level > 0
        ),
    }
