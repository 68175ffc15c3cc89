"""The dataclass of each message by API and version: kio's, or korvet's if kio lacks the version."""

from __future__ import annotations

from typing import Any, Final

import kio.index
from kio.static.constants import EntityType

from korvet.protocol import newer

# (API key, version) -> request, response
_NEWER: Final[dict[tuple[int, int], tuple[Any, Any]]] = {
    (18, 5): (newer.ApiVersionsRequest, newer.ApiVersionsResponse),
    (28, 6): (newer.TxnOffsetCommitRequest, newer.TxnOffsetCommitResponse),
    (42, 3): (newer.DeleteGroupsRequest, newer.DeleteGroupsResponse),
}


def request_class(api_key: int, api_version: int) -> Any:
    """The request's class. Raises KioIndexError for an unknown version."""
    found = _NEWER.get((api_key, api_version))
    return kio.index.load_request_schema(api_key, api_version) if found is None else found[0]


def response_class(api_key: int, api_version: int) -> Any:
    """The response's class. Raises KioIndexError for an unknown version."""
    found = _NEWER.get((api_key, api_version))
    return kio.index.load_response_schema(api_key, api_version) if found is None else found[1]


def response_module(api_key: int, api_version: int) -> Any:
    """The module with the response's structures by name. Raises KioIndexError."""
    if (api_key, api_version) in _NEWER:
        return newer
    return kio.index.load_payload_module(api_key, api_version, EntityType.response)
