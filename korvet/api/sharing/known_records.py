"""What the leader of a partition knows of the records of a share group."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from korvet.redis_groups.share import Acknowledged, Acquired, Demand, Limits


class KnownRecords:
    """Tells whether a member can read new records at once, and how many: it can if no record is released.

    The leader learns this from korvet_share_acquire, and follows what is acquired, acknowledged and released
    afterwards.
    """

    __slots__ = ("_locks", "_reads_new", "_releases", "largest_bytes")

    def __init__(self) -> None:
        self._locks = 0
        self._reads_new = False
        self._releases = 0
        self.largest_bytes = 0
        """The size of the largest entry that was read."""

    def new(self, records: int, limits: Limits) -> int:
        """The number of new records to read, at most `records`; 0 if Redis has to look for released ones."""
        return max(0, min(records, limits.locks - self._locks)) if self._reads_new else 0

    def is_full(self, limits: Limits) -> bool:
        """Whether members have as many records as they may."""
        return self._locks >= limits.locks

    def asked(self, demand: Demand) -> int:
        """Note that a member asks for records. Returns the number of releases so far, for `answered`."""
        self._locks += demand.records
        return self._releases

    def answered(self, demand: Demand, releases: int, acquired: Acquired | None) -> None:
        """Note what the member has acquired; None if the call failed."""
        self._locks -= demand.records
        if acquired is None:
            self._reads_new = False
            return
        self.largest_bytes = max(self.largest_bytes, acquired.largest_bytes)
        if acquired.found is None:
            self._locks += acquired.records
        else:
            self._locks = acquired.found.locks
            # A call for records after an offset leaves released ones before the offset.
            has_seen_all = demand.after is None and releases == self._releases
            self._reads_new = acquired.found.reads_new and has_seen_all

    def acknowledged(self, done: Acknowledged) -> None:
        """Note that a member has acknowledged records."""
        self._locks -= done.accepted + done.rejected + done.archived
        if done.released:
            self.released(done.released)

    def released(self, records: int) -> None:
        """Note a release, by which members have lost this number of records."""
        self._locks -= records
        self._releases += 1
        self._reads_new = False


class LockEnds:
    """When the locks that this leader gave end, unless they are acknowledged before; s of the event loop."""

    __slots__ = ("_ends_s",)

    def __init__(self) -> None:
        # A heap: locks that are given later may end earlier, if a group's locks become shorter.
        self._ends_s: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._ends_s)

    @property
    def first_s(self) -> float:
        """The first end; infinite without any."""
        return self._ends_s[0] if self._ends_s else math.inf

    def note(self, end_s: float) -> None:
        """Note an end."""
        heapq.heappush(self._ends_s, end_s)

    def passed(self, now_s: float) -> bool:
        """Forget the ends up to now. Returns whether there were any."""
        some = self.first_s <= now_s
        while self.first_s <= now_s:
            heapq.heappop(self._ends_s)
        return some
