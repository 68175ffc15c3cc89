"""The table of APIs that this broker serves. Each module of korvet/api registers its own key and versions.

ApiVersions advertises this table and the server dispatches by it, so the two cannot disagree. What the server
does differently for one API (pipelining, backpressure, quotas) is a field of its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from kio.schema.errors import ErrorCode

# Takes the segments of a response body, or None if the request gets no response (Produce with acks=0).
Respond: TypeAlias = Callable[[list[bytes] | None], None]
# (context, request) -> response structure of the request's version, or the segments of the encoded body
Handler: TypeAlias = Callable[[Any, Any], Coroutine[Any, Any, Any]]
# (context, request, respond): runs at once and responds then or later; no task is made for it
SubmitHandler: TypeAlias = Callable[[Any, Any, Respond], None]
# (context, request, error) -> the response in which everything that was requested carries the error
Refuse: TypeAlias = Callable[[Any, Any, ErrorCode], Any]
# (frame, position of the body, version) -> request. Raises MalformedRequest.
Decode: TypeAlias = Callable[[memoryview, int, int], Any]


class ReadQuota(msgspec.Struct, frozen=True):
    """How `consumer_byte_rate` limits the responses of an API that returns records."""

    limit: Callable[[Any, int], Any]
    """(request, bytes) -> the request, asking for at most that many bytes."""
    empty: Callable[[Any, list[bytes]], list[bytes]]
    """(context, body) -> the response body without records, for a client that has to wait (KIP-219). Called
    at once after the handler responded with `body`.
    """


class Api(msgspec.Struct, frozen=True):
    """One API: its versions, its handler, and what the server has to know about its requests."""

    key: int
    name: str
    min_version: int
    max_version: int
    advertised_min: int
    refuse: Refuse
    handle: Handler | None = None
    submit: SubmitHandler | None = None
    waits: bool = False
    """The coroutine handler does nothing but wait, possibly long: it is cancelled when its client leaves."""
    in_flight_max: int = 1
    """Requests of this API that one connection may have in progress at the same time."""
    writes_records: bool = False
    """Requests carry records. Until Redis has them, the bytes of a request count towards backpressure; they
    count towards `producer_byte_rate`, too.
    """
    read_quota: ReadQuota | None = None
    """Set if responses carry records."""
    strict_quota_since: int | None = None
    """The first version whose clients know THROTTLING_QUOTA_EXCEEDED (KIP-599). None for APIs that neither
    create nor delete partitions.
    """
    changes_shared: bool = False
    """Requests change what all brokers share. Their responses leave once replicas have the changes."""
    allowed_wait_ms: Callable[[Any], int] | None = None
    """(request) -> how long the broker may wait before it answers, without being slow. None: not at all."""
    decode: Decode | None = None
    """A decoder written by hand; None for kio's."""
    unsupported: Callable[[], bytes] | None = None
    """The response body for a version that is not served; None for the error code alone."""


_APIS: Final[dict[int, Api]] = {}

_H = TypeVar("_H", bound=Handler)
_S = TypeVar("_S", bound=SubmitHandler)


def api(
    key: int,
    name: str,
    versions: tuple[int, int],
    *,
    refuse: Refuse,
    waits: bool = False,
    allowed_wait_ms: Callable[[Any], int] | None = None,
    strict_quota_since: int | None = None,
    changes_shared: bool = False,
    unsupported: Callable[[], bytes] | None = None,
) -> Callable[[_H], _H]:
    """Register a coroutine function as the handler of an API for `versions` (first, last). See Api."""

    def register(handle: _H) -> _H:
        low, high = versions
        entry = Api(
            key,
            name,
            low,
            high,
            low,
            refuse,
            handle=handle,
            waits=waits,
            allowed_wait_ms=allowed_wait_ms,
            strict_quota_since=strict_quota_since,
            changes_shared=changes_shared,
            unsupported=unsupported,
        )
        _add(entry)
        return handle

    return register


def submit_api(
    key: int,
    name: str,
    versions: tuple[int, int],
    *,
    refuse: Refuse,
    advertised_min: int | None = None,
    in_flight_max: int = 1,
    writes_records: bool = False,
    read_quota: ReadQuota | None = None,
    allowed_wait_ms: Callable[[Any], int] | None = None,
    decode: Decode | None = None,
) -> Callable[[_S], _S]:
    """Register a callback-style handler, for APIs so frequent that a task per request would cost. See Api."""

    def register(submit: _S) -> _S:
        low, high = versions
        entry = Api(
            key,
            name,
            low,
            high,
            low if advertised_min is None else advertised_min,
            refuse,
            submit=submit,
            in_flight_max=in_flight_max,
            writes_records=writes_records,
            read_quota=read_quota,
            allowed_wait_ms=allowed_wait_ms,
            decode=decode,
        )
        _add(entry)
        return submit

    return register


find: Final[Callable[[int], Api | None]] = _APIS.get
"""The API with that key, or None."""


def registered() -> list[Api]:
    """All APIs in the order of their keys."""
    return [_APIS[key] for key in sorted(_APIS)]


def _add(entry: Api) -> None:
    if entry.key in _APIS:
        raise ValueError(f"API key {entry.key} is registered twice: {_APIS[entry.key].name}, {entry.name}")
    _APIS[entry.key] = entry
