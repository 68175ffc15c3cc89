"""What the request log notes of a request in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from kio.schema.errors import ErrorCode


class Timed(Protocol):
    """The times of a request, by `perf_counter`; 0 is none."""

    held_since_s: float
    """When the whole request was in the buffer, if it could not be taken at once."""
    began_s: float
    """When its decoding began."""
    answered_s: float
    """When it was answered."""


class Trace(msgspec.Struct, eq=False):
    """One request. `answered` is called once, and `failed` for each error in the response before that."""

    log: Callable[[Trace, Timed, int], None]
    """Called when the request is answered, with the size of the response."""
    api: Any
    version: int
    client_id: str
    client: Any
    correlation_id: int
    size_bytes: int
    """The size of the request without its length."""
    request: Any
    selected: bool
    """Whether it is logged for its client."""
    errors: dict[ErrorCode, None] | None = None
    failed_topics: dict[str | UUID, None] | None = None
    """The topics that the errors belong to, as far as they are known."""

    def failed(self, error: ErrorCode, topic: str | UUID | None) -> None:
        """Note an error in the response."""
        if self.errors is None:
            self.errors, self.failed_topics = {}, {}
        assert self.failed_topics is not None
        self.errors[error] = None
        if topic is not None:
            self.failed_topics[topic] = None

    def answered(self, times: Timed, size_bytes: int) -> None:
        """The request is answered, with a response of that size; 0 for none."""
        self.log(self, times, size_bytes)
        # A handler's state may keep the trace until the next request.
        self.request = None


def topics_of(request: Any) -> dict[str | UUID, None]:
    """The topics that a request names, in its order, by name or ID."""
    found: dict[str | UUID, None] = {}
    for holder in (request, *_items(request, "groups"), *_items(request, "transactions")):
        for each in (*_items(holder, "topics"), *_items(holder, "topic_names")):
            topic = each if isinstance(each, str) else _key(each)
            if topic:
                found[topic] = None
    return found


def _items(holder: Any, field: str) -> tuple[Any, ...]:
    items = getattr(holder, field, None)
    return tuple(items) if isinstance(items, tuple | list) else ()


def _key(topic: Any) -> str | UUID | None:
    for field in ("name", "topic", "key", "topic_id"):
        found: str | UUID | None = getattr(topic, field, None)
        if found:
            return found
    return None
