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


class ClientQuotas:
    """All quotas, and what clients have used of them on this broker."""

    def __init__(self) -> None:
        self.values: Mapping[tuple[Entity, str], float] = {}
        """All quotas by entity and key."""
        self.on_change: Callable[[], None] = lambda: None
        self._limits = Limits({})
        self._meters: dict[tuple[str, str, str], Meter] = {}
        self.active = False
        """Whether there is any quota that is enforced."""

    def replace(self, values: Mapping[tuple[Entity, str], float]) -> None:
        """Put other quotas in force; what was used stays used."""
        if values == self.values:
            return
        self.values = values
        self._limits = Limits(values)
        self.active = len(self._limits) > 0
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

    def _meter(self, limit: Limit, now_ms: float) -> Meter:
        meter = self._meters.get(limit.sharers)
        if meter is None:
            if len(self._meters) >= _MANY_METERS:
                self._drop_idle(now_ms)
            meter = self._meters[limit.sharers] = Meter()
        return meter

    def _drop_idle(self, now_ms: float) -> None:
        for meter in self._meters.values():
            meter.forget(now_ms)
        self._meters = {sharers: meter for sharers, meter in self._meters.items() if meter.used > 0}


def most_bytes_of_window(limit: Limit) -> int:
    """What can be got in one go without having to wait."""
    return int(min(limit.rate * _WINDOW_MS / 1000, _LONGEST_MS))


def _whole_ms(wait_ms: float) -> int:
    return int(min(round(wait_ms), _LONGEST_MS))
