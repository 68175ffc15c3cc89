"""How many of the matching requests are logged: a sample, and at most some per second."""

from __future__ import annotations


class Budget:
    """Decides for each matching request. Times are in seconds, by any clock that does not go back."""

    __slots__ = ("_filled_s", "_number", "_per_second", "_sample", "_tokens", "limited", "unsampled")

    def __init__(self, sample: int, per_second: int) -> None:
        """Log the first of `sample` requests, and at most `per_second`."""
        self._sample = sample
        self._per_second = per_second
        self._number = 0
        self._tokens = float(per_second)
        self._filled_s: float | None = None
        self.unsampled = 0
        """Requests that were left out because they are not in the sample."""
        self.limited = 0
        """Requests of the sample that were left out because there were too many."""

    @property
    def left_out(self) -> bool:
        """Whether requests were left out since the last `reset`."""
        return bool(self.unsampled or self.limited)

    def reset(self) -> None:
        """Count from zero again what is left out."""
        self.unsampled = self.limited = 0

    def take(self, now_s: float) -> bool:
        """Whether the next matching request is logged."""
        number, self._number = self._number, (self._number + 1) % self._sample
        if number:
            self.unsampled += 1
            return False
        if self._filled_s is not None:
            returned = max(now_s - self._filled_s, 0.0) * self._per_second
            self._tokens = min(self._tokens + returned, float(self._per_second))
        self._filled_s = now_s
        if self._tokens < 1:
            self.limited += 1
            return False
        self._tokens -= 1
        return True
