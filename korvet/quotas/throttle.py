"""Usage of client quotas and throttle times. Time is passed in, in ms."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from korvet.quotas.limits import Limit, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from korvet.quotas.entities import Entity

# Kafka's quota.window.size.seconds and quota.window.num.
SAMPLE_MS: Final = 1000
SAMPLES: Final = 11
_WINDOW_MS: Final = SAMPLE_MS * (SAMPLES - 1)
# Number of meters from which those of idle clients are dropped.
_MANY_METERS: Final = 1000
# Limits a throttle time to the int32 of a response.
_LONGEST_MS: Final = 2**31 - 1


class Meter:
    """Usage in the last seconds: Kafka's rate over ten whole samples and the current one."""

    __slots__ = ("_samples", "used")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        """Start (ms), amount and last use (ms) of each sample."""
        self.used = 0.0
        """The amount in all samples, at the last call."""

    def add(self, amount: float, now_ms: float) -> None:
        """Add an amount used now; a negative amount takes it back at once."""
        self.forget(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append([now_ms, 0.0, now_ms])
        newest = samples[-1]
        newest[1] += amount
        newest[2] = now_ms
        self.used += amount

    def wait_ms(self, rate: float, now_ms: float) -> float:
        """Time in ms until the rate falls to `rate` units per second; 0 if it is not above it."""
        self.forget(now_ms)
        if not self._samples:
            return 0.0
        elapsed_ms = now_ms - self._samples[0][0]
        missing = max(SAMPLES - 1 - elapsed_ms // SAMPLE_MS, 0)
        return max(self.used * 1000 / rate - (elapsed_ms + missing * SAMPLE_MS), 0.0)

    def forget(self, now_ms: float) -> None:
        """Drop samples that are too old to count: as in Kafka, by their last use."""
        samples = self._samples
        while samples and now_ms - samples[0][2] >= SAMPLE_MS * SAMPLES:
            self.used -= samples.popleft()[1]
        if not samples:
            self.used = 0.0


class Bucket:
    """A token bucket (KIP-599): permits return at a rate, up to those of one window; it may be overdrawn."""

    __slots__ = ("_filled_ms", "permits")

    def __init__(self) -> None:
        self.permits = 0.0
        self._filled_ms: float | None = None

    def fill(self, rate: float, now_ms: float) -> None:
        """Add the permits that have returned by now; the first call fills the bucket for one window."""
        most = rate * SAMPLES * SAMPLE_MS / 1000
        if self._filled_ms is None:
            self.permits = most
        else:
            self.permits = min(self.permits + (now_ms - self._filled_ms) * rate / 1000, most)
        self._filled_ms = now_ms


class MutationsExceeded(Exception):
    """A client created or deleted more partitions than its quota allows."""


class Mutations:
    """The partitions that one request creates or deletes."""

    __slots__ = ("_bucket", "_clock_ms", "_rate", "_strict", "wait_ms")

    def __init__(self, bucket: Bucket, rate: float, clock_ms: Callable[[], float], *, strict: bool) -> None:
        """strict: refuse partitions that exceed the quota; clients of old versions are only throttled."""
        self._bucket = bucket
        self._rate = rate
        self._clock_ms = clock_ms
        self._strict = strict
        self.wait_ms = 0
        """Throttle time of the request, in ms."""

    def count(self, partitions: int) -> None:
        """Take permits for `partitions` that the request is about to create or delete. Raises
        MutationsExceeded.
        """
        bucket = self._bucket
        bucket.fill(self._rate, self._clock_ms())
        exceeded = bucket.permits < 0
        if not (exceeded and self._strict):
            bucket.permits -= partitions
        if bucket.permits < 0 and (exceeded or not self._strict):
            self.wait_ms = _whole_ms(-bucket.permits * 1000 / self._rate)
        if exceeded and self._strict:
            raise MutationsExceeded("The throttling quota has been exceeded.")


class ClientQuotas:
    """All quotas, and the usage of them on this broker."""

    def __init__(self) -> None:
        self.values: Mapping[tuple[Entity, str], float] = {}
        """All quotas by entity and key."""
        self._limits = Limits({})
        self._meters: dict[tuple[str, ...], Meter] = {}
        # Number of meters from which idle ones are searched for.
        self._few_meters = _MANY_METERS
        self._buckets: dict[tuple[str, ...], Bucket] = {}
        self.active = False
        """Whether any quota is for users or client ids."""

    def replace(self, values: Mapping[tuple[Entity, str], float]) -> None:
        """Replace all quotas; usage is kept."""
        if values == self.values:
            return
        self.values = values
        self._limits = Limits(values)
        self.active = self._limits.are_for_clients

    def of(self, user: str, client_id: str) -> Mapping[str, Limit]:
        """A client's limits by key; empty if the client has no limit."""
        return self._limits.of(user, client_id)

    def produced(self, limit: Limit, size_bytes: int, now_ms: float) -> int:
        """Charge a request of `size_bytes`. Returns the throttle time in ms."""
        meter = self._meter(limit, now_ms)
        meter.add(size_bytes, now_ms)
        return _whole_ms(meter.wait_ms(limit.rate, now_ms))

    def worked(self, limit: Limit, spent_s: float, now_ms: float) -> int:
        """Charge `spent_s` of work for a client. Returns the throttle time in ms, at most one sample as in
        Kafka.
        """
        meter = self._meter(limit, now_ms)
        meter.add(100 * spent_s, now_ms)
        return min(_whole_ms(meter.wait_ms(limit.rate, now_ms)), SAMPLE_MS)

    def consumed(self, limit: Limit, size_bytes: int, now_ms: float) -> tuple[int, bool]:
        """Charge a response of `size_bytes`. Returns (throttle time in ms, send now).

        A response larger than a whole window is sent at once if the client received nothing in the last
        window; otherwise it could never be sent.
        """
        meter = self._meter(limit, now_ms)
        meter.forget(now_ms)
        at_first = meter.used <= 0
        meter.add(size_bytes, now_ms)
        wait_ms = _whole_ms(meter.wait_ms(limit.rate, now_ms))
        passes = wait_ms == 0 or at_first
        if not passes:
            meter.add(-size_bytes, now_ms)
        return wait_ms, passes

    def mutations(self, limit: Limit, clock_ms: Callable[[], float], *, strict: bool) -> Mutations:
        """The permits for one request that creates or deletes partitions."""
        if limit.sharers not in self._buckets:
            if len(self._buckets) >= _MANY_METERS:
                self._buckets.clear()
            self._buckets[limit.sharers] = Bucket()
        return Mutations(self._buckets[limit.sharers], limit.rate, clock_ms, strict=strict)

    def connected(self, address: str, now_ms: float) -> int:
        """Charge a connection from an address. Returns 0 if it is allowed, else the ms after which the
        connection must be closed; at most one sample, as in Kafka.
        """
        limit = self._limits.of_address(address)
        if limit is None:
            return 0
        meter = self._meter(limit, now_ms)
        meter.add(1, now_ms)
        wait_ms = min(_whole_ms(meter.wait_ms(limit.rate, now_ms)), SAMPLE_MS)
        if wait_ms:
            meter.add(-1, now_ms)
        return wait_ms

    def _meter(self, limit: Limit, now_ms: float) -> Meter:
        meter = self._meters.get(limit.sharers)
        if meter is None:
            if len(self._meters) >= self._few_meters:
                self._drop_idle(now_ms)
            meter = self._meters[limit.sharers] = Meter()
        return meter

    def _drop_idle(self, now_ms: float) -> None:
        for meter in self._meters.values():
            meter.forget(now_ms)
        self._meters = {sharers: meter for sharers, meter in self._meters.items() if meter.used > 0}
        self._few_meters = max(2 * len(self._meters), _MANY_METERS)


def most_bytes_of_window(limit: Limit) -> int:
    """Bytes that a client may fetch in one response without a throttle time."""
    return int(min(limit.rate * _WINDOW_MS / 1000, _LONGEST_MS))


def _whole_ms(wait_ms: float) -> int:
    return round(min(wait_ms, _LONGEST_MS))
