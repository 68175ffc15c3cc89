"""Checkers of histories, by the rules of Jepsen's tests of Kafka. None of them needs offsets without gaps.

Each checker is a function from `Facts` to violations. Its first line is its rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from robustness.checkers import commits, epochs, lost, order, shares, transactions, values
from robustness.checkers.facts import Facts
from robustness.checkers.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from robustness.history import Event

__all__ = ["CHECKERS", "Facts", "Violation", "check"]

CHECKERS: Final[tuple[Callable[[Facts], Iterator[Violation]], ...]] = (
    *lost.CHECKERS,
    *values.CHECKERS,
    *order.CHECKERS,
    *transactions.CHECKERS,
    *commits.CHECKERS,
    *epochs.CHECKERS,
    *shares.CHECKERS,
)


def check(history: Iterable[Event] | Facts) -> list[Violation]:
    """Returns what all checkers find; violations before notes."""
    facts = history if isinstance(history, Facts) else Facts(history)
    found = [violation for checker in CHECKERS for violation in checker(facts)]
    return sorted(found, key=lambda violation: violation.is_note)
