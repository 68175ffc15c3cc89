"""The table of APIs that this broker speaks; each module of korvet/api registers its own key and versions.

What ApiVersions advertises and what the server dispatches are read from this one table, so they can't
disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from kio.schema.errors import ErrorCode

# Takes the segments of a response body, or None where nothing is to be answered (Produce with acks=0).
Respond: TypeAlias = Callable[[list[bytes] | None], None]
# (context, request) -> response structure of the request's version, or the segments of the encoded body
Handler: TypeAlias = Callable[[Any, Any], Coroutine[Any, Any, Any]]
# (context, request, respond): runs at once and responds then or later; no task is made for it
SubmitHandler: TypeAlias = Callable[[Any, Any, Respond], None]
# (context, request, error) -> the response in which everything asked for carries the error
Refuse: TypeAlias = Callable[[Any, Any, ErrorCode], Any]


class Api(msgspec.Struct, frozen=True):
    """One API: its versions and how it is handled.

    `waits` marks a coroutine handler that does nothing but wait, possibly long: it ends with its connection.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    advertised_min: int
    refuse: Refuse
    handle: Handler | None = None
    submit: SubmitHandler | None = None
    waits: bool = False


_APIS: Final[dict[int, Api]] = {}

_H = TypeVar("_H", bound=Handler)
_S = TypeVar("_S", bound=SubmitHandler)


def api(
    key: int, name: str, versions: tuple[int, int], *, refuse: Refuse, waits: bool = False
) -> Callable[[_H], _H]:
    """Register a coroutine function as the handler of an API for `versions` (first, last)."""

    def register(handle: _H) -> _H:
        low, high = versions
        _add(Api(key, name, low, high, low, refuse, handle=handle, waits=waits))
        return handle

    return register


def submit_api(
    key: int, name: str, versions: tuple[int, int], *, refuse: Refuse, advertised_min: int | None = None
) -> Callable[[_S], _S]:
    """Register a callback-style handler: for what is requested so often that a task each would show."""

    def register(submit: _S) -> _S:
        low = versions[0] if advertised_min is None else advertised_min
        _add(Api(key, name, versions[0], versions[1], low, refuse, submit=submit))
        return submit

    return register


def find(key: int) -> Api | None:
    """The API of that key, or None."""
    return _APIS.get(key)


def registered() -> list[Api]:
    """All APIs in the order of their keys."""
    return [_APIS[key] for key in sorted(_APIS)]


def _add(entry: Api) -> None:
    if entry.key in _APIS:
        raise ValueError(f"API key {entry.key} is registered twice: {_APIS[entry.key].name}, {entry.name}")
    _APIS[entry.key] = entry
