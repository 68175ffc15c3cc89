"""Transactions that the broker coordinates, and idempotent producers."""

from __future__ import annotations

from typing import Final

from korvet.metrics.family import Family, Kind

STATES: Final = Family(
    "korvet_transactions",
    Kind.GAUGE,
    "Transactional ids that the broker coordinates, by state.",
    ("state",),
)
OLDEST_SECONDS: Final = Family(
    "korvet_transaction_oldest_open_seconds",
    Kind.GAUGE,
    "Age in seconds of the oldest open transaction that the broker coordinates; 0 if none is open.",
)
BEGUN: Final = Family("korvet_transactions_begun_total", Kind.COUNTER, "Transactions that were begun.")
ENDED: Final = Family(
    "korvet_transactions_ended_total",
    Kind.COUNTER,
    "Transactions by outcome: committed, aborted (by the producer), fenced (a new producer has the "
    "transactional id) or timed_out.",
    ("outcome",),
)
EXPIRED_IDS: Final = Family(
    "korvet_transactional_ids_expired_total",
    Kind.COUNTER,
    "Transactional ids that were forgotten because nobody used them.",
)
DURATION: Final = Family(
    "korvet_transaction_seconds",
    Kind.HISTOGRAM,
    "Time of transactions from the first partition to the decision, in seconds.",
)
MARKING: Final = Family(
    "korvet_transaction_markers_seconds",
    Kind.HISTOGRAM,
    "Time from the decision about a transaction to its last marker, in seconds.",
)
DUPLICATES: Final = Family(
    "korvet_duplicate_batches_total",
    Kind.COUNTER,
    "Batches of idempotent producers that were in the log already, and were not appended again.",
)
MARKERS: Final = Family(
    "korvet_transaction_markers_total", Kind.COUNTER, "Markers that the broker wrote into its logs."
)
