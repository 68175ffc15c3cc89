"""What the leader of a partition knows of the records of a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from korvet.redis_groups.share import Acknowledged, Acquired, Limits


class KnownRecords:
    """Whether new records can be read without a look at released ones, and how many. Known are what
    korvet_share_acquire found last, and what was acquired, acknowledged and released since.
    """

    __slots__ = ("_locks", "_reads_new", "_releases", "largest_bytes")

    def __init__(self) -> None:
        self._locks = 0
        self._reads_new = False
        self._releases = 0
        self.largest_bytes = 0
        """The size of the largest entry that was read."""

    def new(self, records: int, limits: Limits) -> int:
        """How many of these records can be new ones; 0 if Redis has to look for released ones first."""
        return max(0, min(records, limits.locks - self._locks)) if self._reads_new else 0

    def is_full(self, limits: Limits) -> bool:
        """Whether members have as many records as they may."""
        return self._locks >= limits.locks

    def asked(self, records: int) -> int:
        """A member asks for records. Returns the number of releases, for `answered`."""
        self._locks += records
        return self._releases

    def answered(self, records: int, releases: int, acquired: Acquired | None) -> None:
        """Redis has answered; None: it has not."""
        self._locks -= records
        if acquired is None:
            self._reads_new = False
            return
        self.largest_bytes = max(self.largest_bytes, acquired.largest_bytes)
        if acquired.found is None:
            self._locks += acquired.records
        else:
            self._locks = acquired.found.locks
            self._reads_new = acquired.found.reads_new and releases == self._releases

    def acknowledged(self, done: Acknowledged) -> None:
        """A member has acknowledged records."""
        self._locks -= done.accepted + done.rejected + done.archived
        if done.released:
            self.released(done.released)

    def released(self, records: int) -> None:
        """Records of members, or of others, were released."""
        self._locks -= records
        self._releases += 1
        self._reads_new = False
