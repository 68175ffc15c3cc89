"""How much clients have used of their quotas, and how long they have to wait. Time is passed in, in ms."""

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
# Meters above which those of clients that have gone are dropped.
_MANY_METERS: Final = 1000
# What a response can tell is an int32.
_LONGEST_MS: Final = 2**31 - 1


class Meter:
    """What was used in the last seconds: Kafka's rate over ten whole samples and the one that is filling."""

    __slots__ = ("_samples", "used")

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque()
        """Start and amount of each."""
        self.used = 0.0
        """The amount in all samples, as of the last call."""

    def add(self, amount: float, now_ms: float) -> None:
        """So much was used now; negative to take it back at once."""
        self.forget(now_ms)
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= SAMPLE_MS:
            samples.append([now_ms, 0.0])
        samples[-1][1] += amount
        self.used += amount

    def wait_ms(self, rate: float, now_ms: float) -> float:
        """Time until so much is used at `rate` units per second; 0 where it is not more than that."""
        self.forget(now_ms)
        if not self._samples:
            return 0.0
        elapsed_ms = now_ms - self._samples[0][0]
        missing = max(SAMPLES - 1 - elapsed_ms // SAMPLE_MS, 0)
        return max(self.used * 1000 / rate - (elapsed_ms + missing * SAMPLE_MS), 0.0)

    def forget(self, now_ms: float) -> None:
        """Drop samples that are too old to count."""
        samples = self._samples
        while samples and now_ms - samples[0][0] >= SAMPLE_MS * SAMPLES:
            self.used -= samples.popleft()[1]
        if not samples:
            self.used = 0.0


class Bucket:
    """Permits that come back at a rate, up to those of a window; some may be owed (KIP-599)."""

    __slots__ = ("_filled_ms", "permits")

    def __init__(self) -> None:
        self.permits = 0.0
        self._filled_ms: float | None = None

    def fill(self, rate: float, now_ms: float) -> None:
        """What has come back by now; at first there are those of a window."""
        most = rate * SAMPLES * SAMPLE_MS / 1000
        if self._filled_ms is None:
            self.permits = most
        else:
            self.permits = min(self.permits + (now_ms - self._filled_ms) * rate / 1000, most)
        self._filled_ms = now_ms


class MutationsExceeded(Exception):
    """A client has made or deleted more partitions than its quota allows."""


class Mutations:
    """What one request makes or deletes, counted in partitions."""

    __slots__ = ("_bucket", "_clock_ms", "_rate", "_strict", "wait_ms")

    def __init__(self, bucket: Bucket, rate: float, clock_ms: Callable[[], float], *, strict: bool) -> None:
        """strict: refuse what exceeds the quota; clients of old versions only wait."""
        self._bucket = bucket
        self._rate = rate
        self._clock_ms = clock_ms
        self._strict = strict
        self.wait_ms = 0
        """How long the client has to wait then."""

    def count(self, partitions: int) -> None:
        """So many are about to be made or deleted. Raises MutationsExceeded."""
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
    """All quotas, and what clients have used of them on this broker."""

    def __init__(self) -> None:
        self.values: Mapping[tuple[Entity, str], float] = {}
        """All quotas by entity and key."""
        self.on_change: Callable[[], None] = lambda: None
        self._limits = Limits({})
        self._meters: dict[tuple[str, ...], Meter] = {}
        # So many meters are not worth looking for idle ones.
        self._few_meters = _MANY_METERS
        self._buckets: dict[tuple[str, ...], Bucket] = {}
        self.active = False
        """Whether there is any quota of clients."""

    def replace(self, values: Mapping[tuple[Entity, str], float]) -> None:
        """Put other quotas in force; what was used stays used."""
        if values == self.values:
            return
        self.values = values
        self._limits = Limits(values)
        self.active = self._limits.are_for_clients
        self.on_change()

    def of(self, user: str, client_id: str) -> Mapping[str, Limit]:
        """A client's limits by key; empty where it may use what it likes."""
        return self._limits.of(user, client_id)

    def produced(self, limit: Limit, size_bytes: int, now_ms: float) -> int:
        """A client has sent so much; the ms that it has to wait."""
        meter = self._meter(limit, now_ms)
        meter.add(size_bytes, now_ms)
        return _whole_ms(meter.wait_ms(limit.rate, now_ms))

    def worked(self, limit: Limit, spent_s: float, now_ms: float) -> int:
        """The broker has worked for a client; the ms that it has to wait, at most one sample as in Kafka."""
        meter = self._meter(limit, now_ms)
        meter.add(100 * spent_s, now_ms)
        return min(_whole_ms(meter.wait_ms(limit.rate, now_ms)), SAMPLE_MS)

    def consumed(self, limit: Limit, size_bytes: int, now_ms: float) -> tuple[int, bool]:
        """A client is to get so much: the ms that it has to wait, and whether it gets it before that.

        It does where it has got nothing for a whole window: what exceeds a window has to pass some time.
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
        """For one request that makes or deletes partitions."""
        if limit.sharers not in self._buckets:
            if len(self._buckets) >= _MANY_METERS:
                self._buckets.clear()
            self._buckets[limit.sharers] = Bucket()
        return Mutations(self._buckets[limit.sharers], limit.rate, clock_ms, strict=strict)

    def connected(self, address: str, now_ms: float) -> int:
        """An address has connected: 0 where it may, else the ms after which the connection is to be closed;
        at most one sample, as in Kafka.
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
    """What can be got in one go without having to wait."""
    return int(min(limit.rate * _WINDOW_MS / 1000, _LONGEST_MS))


def _whole_ms(wait_ms: float) -> int:
    return int(min(round(wait_ms), _LONGEST_MS))
