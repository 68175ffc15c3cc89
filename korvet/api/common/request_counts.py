"""What is counted of requests: for each API their versions, errors and bytes, and where the time goes.

A request takes two readings of the clock: when it is decoded and when it is answered; and a third one if its
handler returns before the answer is there. Requests that wait for nothing are the fast path: they fill one
histogram.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from korvet.metrics.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kio.schema.errors import ErrorCode

    from korvet.protocol.registry import Api


class Timed(Protocol):
    """One request in progress. Times are those of `perf_counter`; 0 is none."""

    held_since_s: float
    """When the whole request was in the buffer, if it could not be taken at once."""
    began_s: float
    """When its decoding began."""
    waits_since_s: float
    """When its handler returned without an answer."""
    answered_s: float
    """When it was answered."""


class ApiCounts:
    """The requests of one API. Durations are in seconds."""

    __slots__ = (
        "direct",
        "errors",
        "held",
        "local",
        "name",
        "received_bytes",
        "remote",
        "sent",
        "sent_bytes",
        "slow",
        "throttled",
        "throttled_s",
        "versions",
    )

    def __init__(self, api: Api) -> None:
        self.name = api.name
        self.versions = [0] * (api.max_version + 1)
        """The requests of each version."""
        self.errors: dict[ErrorCode, int] = {}
        """Errors in the responses, one for each partition, topic or group that has an error."""
        self.received_bytes = 0
        self.sent_bytes = 0
        """Bytes of the responses without their lengths, when they were answered."""
        self.throttled = 0
        """Responses with a throttle time for a quota."""
        self.throttled_s = 0.0
        self.direct = Histogram()
        """The duration of requests that were taken at once and answered before their handler returned."""
        self.slow = Histogram()
        """The duration of all others, from their arrival to the answer."""
        self.held = Histogram()
        """Of `slow`: from the arrival to the decoding; only of requests that were held."""
        self.local = Histogram()
        """Of `slow`: from the decoding to the return of the handler."""
        self.remote = Histogram()
        """Of `slow`: from the return of the handler to the answer, in which it waits for Redis, for other
        members of a group, for records or for memory.
        """
        self.sent = Histogram()
        """From the answer to its write, if it had to wait for earlier answers or shares a write with them."""

    def failed(self, error: ErrorCode) -> None:
        """Count an error in a response."""
        self.errors[error] = self.errors.get(error, 0) + 1

    def answered(self, request: Timed, size_bytes: int) -> None:
        """Count a request that is answered now, with a response of that size."""
        now_s = request.answered_s = perf_counter()
        self.sent_bytes += size_bytes
        if not (request.waits_since_s or request.held_since_s):
            self.direct.observe(now_s - request.began_s)
            return
        returned_s = request.waits_since_s or now_s
        self.slow.observe(now_s - (request.held_since_s or request.began_s))
        self.local.observe(returned_s - request.began_s)
        self.remote.observe(now_s - returned_s)
        if request.held_since_s:
            self.held.observe(request.began_s - request.held_since_s)


class RequestCounts:
    """The counts of all APIs of a broker."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self.by_key = {api.key: ApiCounts(api) for api in apis}

    def __getitem__(self, key: int) -> ApiCounts:
        return self.by_key[key]
