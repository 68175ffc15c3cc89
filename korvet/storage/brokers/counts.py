"""What is counted of a broker's lease and leadership since the start."""

from __future__ import annotations

from korvet.metrics.histogram import Histogram


class LeaseCounts:
    """The events of one broker's lease."""

    __slots__ = ("expired", "failed", "rejoins", "renewals", "versions")

    def __init__(self) -> None:
        self.renewals = Histogram()
        """Successful renewals, with their duration in seconds."""
        self.failed = 0
        """Renewals that failed."""
        self.expired = 0
        """How often the broker led nothing because its lease had expired."""
        self.rejoins = 0
        """How often Redis may have lost writes, after which the broker leads in new leader epochs."""
        self.versions = 0
        """Versions of the assignment that the broker took over."""
