"""What a producer sends next, and when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from robustness.dice import Dice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from robustness.plan import ProducerPlan

KEYS: Final = 20
RECORDS_OF_TRANSACTION: Final = (1, 20)
# Limits what a producer catches up after it could not send.
MOST_BEHIND_S: Final = 1.0


class Pace:
    """The choices of a producer: the same for a seed, except that their times depend on the run."""

    def __init__(self, plan: ProducerPlan, partitions: Mapping[str, int], seed: int) -> None:
        self._plan, self._partitions = plan, partitions
        self._dice = Dice(seed, plan.name)
        self._due = time.monotonic()

    def next_record(self) -> tuple[str, int, str]:
        """Returns the topic, the partition and the key of the next record."""
        topic = self._dice.one_of(self._plan.topics)
        return topic, self._dice.below(self._partitions[topic]), f"key-{self._dice.below(KEYS)}"

    def take_turn(self) -> None:
        """Set the time of the next record."""
        self._due = max(self._due + 1 / self._plan.rate_per_s, time.monotonic() - MOST_BEHIND_S)

    @property
    def left_s(self) -> float:
        """Time until the next record is due; negative after it."""
        return self._due - time.monotonic()

    def next_transaction(self) -> tuple[int, str]:
        """Returns the number of records of the next transaction, and how it ends."""
        count = self._dice.between(*RECORDS_OF_TRANSACTION)
        return count, "abort" if self._dice.below(100) < self._plan.abort_percent else "commit"
