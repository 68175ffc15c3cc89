"""What is counted of the transactions that a broker coordinates, since the start."""

from __future__ import annotations

from korvet.metrics.histogram import Histogram


class TransactionCounts:
    """The transactions of all shards of a broker. Durations are in seconds."""

    __slots__ = ("aborted", "begun", "committed", "duration", "expired_ids", "fenced", "marking", "timed_out")

    def __init__(self) -> None:
        self.begun = 0
        """Transactions that got their first partition."""
        self.committed = 0
        self.aborted = 0
        """Transactions that their producer aborted."""
        self.fenced = 0
        """Transactions that were aborted because a new producer has the transactional id."""
        self.timed_out = 0
        self.expired_ids = 0
        """Transactional ids that were forgotten because nobody used them."""
        self.duration = Histogram()
        """From the first partition to the decision."""
        self.marking = Histogram()
        """From the decision to the last marker."""
