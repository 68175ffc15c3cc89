"""Random choices that are the same for a seed on every machine and in every version of Python."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Dice:
    """Derives every choice from `Random.random`, the only method whose results Python guarantees to keep."""

    def __init__(self, seed: int, purpose: str = "") -> None:
        self._source = random.Random(f"{seed} {purpose}")

    def below(self, end: int) -> int:
        """Returns one of 0 .. end - 1."""
        return int(self._source.random() * end)

    def between(self, first: int, last: int) -> int:
        """Returns one of first .. last."""
        return first + self.below(last - first + 1)

    def chance(self, probability: float) -> bool:
        """Returns true with this probability."""
        return self._source.random() < probability

    def one_of(self, choices: Sequence[T]) -> T:
        """Returns one of the choices."""
        return choices[self.below(len(choices))]
