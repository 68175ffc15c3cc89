"""What is counted of the records of share groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.metrics.counted import Counted, counter, part
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType

if TYPE_CHECKING:
    from korvet.redis_groups.share import Acknowledged, Acquired

_RECORDS: Final = declare(
    "korvet_share_records_total",
    "Records of share groups by event: acquired (for the first time), reacquired, accepted, rejected (also "
    "gaps), released, archived (delivered as often as the delivery count limit says), renewed, and expired "
    "(locks that ended). Native consumers count only with locks that ended, and what is archived then.",
    "event",
    kind=MetricType.COUNTER,
)


class ShareCounts(Counted):
    """What is counted of all partitions of share groups that this broker leads, since its start."""

    acquired = part(_RECORDS, "acquired")
    reacquired = part(_RECORDS, "reacquired")
    accepted = part(_RECORDS, "accepted")
    rejected = part(_RECORDS, "rejected")
    released = part(_RECORDS, "released")
    archived = part(_RECORDS, "archived")
    renewed = part(_RECORDS, "renewed")
    expired = part(_RECORDS, "expired")
    refused = counter(
        "korvet_share_refused_acknowledgements_total",
        "Acknowledgements that were refused because the member had no lock on one of the records, by "
        "partitions in requests.",
    )
    letters = counter(
        "korvet_share_dead_letters_total", "Dead letters of share groups that were written (KIP-1191)."
    )
    failed_letters = counter(
        "korvet_share_dead_letter_failures_total",
        "Attempts to write dead letters of one partition that failed. Each is repeated.",
    )

    def acquire(self, acquired: Acquired) -> None:
        """Count what a call has acquired."""
        for run in acquired.runs:
            size = run.last - run.first + 1
            if run.deliveries > 1:
                self.reacquired += size
            else:
                self.acquired += size
        if acquired.found is not None:
            self.expired += acquired.found.expired
            self.archived += acquired.found.archived

    def acknowledge(self, done: Acknowledged | None) -> None:
        """Count an acknowledgement, or that it was refused."""
        if done is None:
            self.refused += 1
            return
        self.accepted += done.accepted
        self.rejected += done.rejected
        self.archived += done.archived
        self.released += done.released
        self.renewed += done.renewed
