"""The checker of a queue whose workers have accepted everything: was each record taken, and accepted once?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robustness.checkers.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from robustness.queue.journal import Notes


@dataclass(frozen=True, slots=True)
class Deliveries:
    """How often records of a queue were delivered."""

    records: int
    taken: int
    accepted: int
    """Acceptances that workers were told of."""
    lost_with_workers: int
    """Deliveries to workers that were killed before they were told that the record is accepted."""
    other: int
    """Other deliveries without an acceptance: the lock had ended, or the answer was an error."""

    @property
    def repeats(self) -> int:
        """Deliveries beyond the first one of each record."""
        return self.taken - self.records

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.taken} deliveries ({self.repeats} repeats): "
            f"{self.accepted} ended with an acceptance, {self.lost_with_workers} with a kill, "
            f"{self.other} otherwise"
        )


def deliveries(stored: Collection[int], workers: Sequence[Notes]) -> Deliveries:
    """Count what all workers of a queue have noted."""
    taken = sum(each.taken.total() for each in workers)
    accepted = sum(each.accepted.total() for each in workers)
    killed = sum(each.unaccepted.total() for each in workers if each.was_killed)
    return Deliveries(len(stored), taken, accepted, killed, taken - accepted - killed)


def check_deliveries(stored: Collection[int], workers: Sequence[Notes]) -> Iterator[Violation]:
    """Violations in a queue that has nothing left. `stored`: the offsets of all its records."""
    taken: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for each in workers:
        taken.update(each.taken)
        accepted.update(each.accepted)
    for offset in stored:
        if not taken[offset]:
            yield Violation("lost from queue", "Nobody got it, and the queue is empty.", offset=offset)
        elif accepted[offset] > 1:
            yield Violation("accepted again", f"{accepted[offset]} times.", offset=offset)
    for offset in taken.keys() - set(stored):
        yield Violation("taken from nowhere", "The queue has no such record.", offset=offset)
