"""What is counted of requests: for each API their versions, errors, bytes and durations.

A request takes two readings of the clock: when it is decoded, and when it is answered. Where the time goes is
measured for a sample only (`Timing`): of frequent APIs each further measurement would take a percent of their
time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.metrics.counted import Counted, counter, histogram
from korvet.metrics.histogram import SECONDS, Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kio.schema.errors import ErrorCode

    from korvet.protocol.registry import Api

SAMPLED: Final = 16
"""Of how many requests of a frequent API one is measured: of an API whose handler responds by a callback. Of
other APIs each request is measured.
"""
_PARTS: Final = (0.0, *SECONDS)


class Timing:
    """The times of one request, by `perf_counter` in seconds."""

    __slots__ = ("answered_s", "arrived_s", "began_s", "counts", "returned_s")

    def __init__(self, counts: ApiCounts, arrived_s: float, began_s: float) -> None:
        """`arrived_s`: when the whole request was in the buffer; `began_s`: when its decoding began."""
        self.counts = counts
        self.arrived_s = arrived_s
        self.began_s = began_s
        self.returned_s = 0.0
        """When its handler returned without an answer; 0 if it has not."""
        self.answered_s = 0.0

    def answered(self, now_s: float) -> None:
        """The request is answered."""
        counts, returned_s = self.counts, self.returned_s or now_s
        self.answered_s = now_s
        counts.held.observe(self.began_s - self.arrived_s)
        counts.local.observe(returned_s - self.began_s)
        counts.remote.observe(now_s - returned_s)

    def sent(self, now_s: float) -> None:
        """The response is written."""
        self.counts.sent.observe(now_s - self.answered_s)


class ApiCounts(Counted):
    """The requests of one API. Durations are in seconds."""

    throttled = counter(
        "korvet_throttled_requests_total",
        "Requests that were answered with a throttle time for a quota.",
        "request",
    )
    throttled_s: float = counter(
        "korvet_throttle_seconds_total", "Sum of these throttle times in seconds.", "request"
    )
    total = histogram(
        "korvet_request_seconds", "Time of requests from their arrival to the answer, in seconds.", "request"
    )

    def __init__(self, api: Api) -> None:
        super().__init__()
        self.name = api.name
        self._period = 1 if api.submit is None else SAMPLED
        # Requests before the next one that is measured.
        self._until_timed = 0
        self.versions = [0] * (api.max_version + 1)
        """The requests of each version."""
        self.errors: dict[ErrorCode, int] = {}
        """Errors in the responses, one for each partition, topic or group that has an error."""
        self.held = Histogram(_PARTS)
        """Of measured requests: from the arrival to the decoding."""
        self.local = Histogram(_PARTS)
        """Of measured requests: from the decoding to the return of the handler."""
        self.remote = Histogram(_PARTS)
        """Of measured requests: from the return of the handler to the answer, in which the request waits for
        Redis, for other members of a group, for records or for memory.
        """
        self.sent = Histogram(_PARTS)
        """Of measured requests: from the answer to its write, which waits for earlier answers of the
        connection.
        """

    def failed(self, error: ErrorCode) -> None:
        """Count an error in a response."""
        self.errors[error] = self.errors.get(error, 0) + 1

    def received(self, version: int, held_since_s: float, began_s: float) -> Timing | None:
        """Count a request. Returns its timing, if it is measured; see Timing. `held_since_s`: 0 if it was
        taken at once.
        """
        self.versions[version] += 1
        if self._until_timed:
            self._until_timed -= 1
            return None
        self._until_timed = self._period - 1
        return Timing(self, held_since_s or began_s, began_s)


class RequestCounts:
    """The counts of all APIs of a broker."""

    def __init__(self, apis: Iterable[Api]) -> None:
        self.by_key = {api.key: ApiCounts(api) for api in apis}

    def __getitem__(self, key: int) -> ApiCounts:
        return self.by_key[key]
