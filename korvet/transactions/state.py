"""The states of a transactional id and the transitions between them.

    Empty ──first partition──► Ongoing ──EndTxn──► PrepareCommit ──all markers──► CompleteCommit
      ▲                         ▲   └─EndTxn, time-out, new producer─► PrepareAbort ──► CompleteAbort
      └──────InitProducerId─────┴──────────first partition of the next one───────────────┘

A client of protocol version 2 may abort a transaction that it has not begun: then PrepareAbort follows
Empty and the Complete states. Dead is the state of a forgotten id. The numbers are those of
`__transaction_state`; Kafka's PrepareEpochFence (7) is never written and has no state here: fencing and
PrepareAbort are one step.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class TransactionState(IntEnum):
    """A state; the value is its number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def title(self) -> str:
        """The name that DescribeTransactions and ListTransactions show."""
        return self.name.title().replace("_", "")


_BETWEEN: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided, and markers are being written."""
PREDECESSORS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: _BETWEEN,
    TransactionState.ONGOING: _BETWEEN | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: _BETWEEN | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: _BETWEEN,
}
TITLES: Final = frozenset({"PrepareEpochFence", *(state.title for state in TransactionState)})
"""The states that clients may list transactions by. None is ever in Kafka's PrepareEpochFence."""


class IllegalTransition(Exception):
    """An illegal change of a transactional id's state: a defect of korvet."""
