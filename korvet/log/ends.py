"""The offsets that bound a partition's log, and what a leader knows of them.

Both starts grow by deletions, the log end by appends. The high watermark follows the log end as the records
get the copies that the topic asks for, and the last stable offset follows it as transactions end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.log.values import Ends

if TYPE_CHECKING:
    from korvet.log.transactions import TransactionIndex

UNKNOWN_END: Final = -1
"""The released end before the first answer of the barrier."""
ALL_RELEASED: Final = 1 << 62
"""The released end of a topic that asks for nothing beyond the primary's memory."""


class KnownEnds:
    """The bounds of one log as far as replies of Redis, and of its replicas, prove them. They only grow until
    `forget`.
    """

    __slots__ = ("_transactions", "ends", "loaded", "released")

    def __init__(self, transactions: TransactionIndex) -> None:
        self._transactions = transactions
        self.ends = Ends()
        """All 0 before Redis's first reply. While the high watermark is unknown, it is the log start."""
        self.loaded = False
        """Whether Redis has stated both ends, since another server took over if one did."""
        self.released = ALL_RELEASED
        """The offset before which all records have their copies; UNKNOWN_END before the first answer."""

    @property
    def has_watermark(self) -> bool:
        """Whether the high watermark is more than a lower limit: replicas, or the last leader, have confirmed
        it.
        """
        return self.released != UNKNOWN_END

    @property
    def is_stable_current(self) -> bool:
        """Whether the last stable offset is that of the whole known log; else Redis has to be asked."""
        return self._transactions.proven_end >= self.ends.log_end

    @property
    def stable(self) -> int:
        """The last stable offset if markers need no copies; -1 if it is unknown."""
        return self._transactions.last_stable_offset

    def take(self, start: int, end: int, stable: int = -1) -> None:
        """Take over log start and log end of one reply, and its last stable offset unless that is -1. Replies
        may arrive in another order than they were given.
        """
        before, is_first = self.ends, not self.loaded
        # After a reply that contradicts itself or earlier ones, nothing is known.
        self.loaded = False
        assert 0 <= start <= end, f"the log starts at {start} and ends at {end}"
        assert stable <= end, f"the last stable offset {stable} is after the log end {end}"
        if stable >= 0:
            self._transactions.observe_bounds(stable, end)
        if is_first:
            if self.released != ALL_RELEASED:
                # The server may lack what the last one had. An empty log has nothing to release.
                self.released = min(self.released, end) if end else 0
            self._bound(start, end, min(before.last_stable_offset, self.stable))
        else:
            start, end = max(start, before.log_start), max(end, before.log_end)
            self._bound(start, end, before.last_stable_offset)
            after = self.ends
            assert after.last_stable_offset >= before.last_stable_offset, f"{after} follows {before}"
            assert after.high_watermark >= before.high_watermark, f"{after} follows {before}"
        self.loaded = True

    def grow(self, end: int) -> None:
        """Take over that the log reaches at least to `end`."""
        before = self.ends
        if end > before.log_end:
            self._bound(before.log_start, end, before.last_stable_offset)

    def release(self, end: int, stable: int) -> None:
        """Take over that the records before `end` have their copies. `stable`: the last stable offset when
        that was the log end.
        """
        before = self.ends
        assert self.loaded, "nothing of an unknown log is released"
        assert stable <= end <= before.log_end, f"{stable}, {end} of {before}"
        self.released = max(self.released, end)
        self._bound(before.log_start, before.log_end, max(stable, before.last_stable_offset))

    def await_copies(self, *, waits: bool) -> None:
        """Take over whether records wait for copies from now on. What readers see stays visible."""
        before = self.ends
        is_known = self.loaded and self.has_watermark
        self.released = (before.high_watermark if is_known else UNKNOWN_END) if waits else ALL_RELEASED
        self._bound(before.log_start, before.log_end, before.last_stable_offset)

    def forget(self) -> None:
        """Take over that another server holds the log now, which may lack the last writes."""
        self._transactions.forget()
        self.loaded = False

    def _bound(self, start: int, end: int, stable: int) -> None:
        """Set the bounds. `stable`: a last stable offset by markers with their copies alone."""
        watermark = max(min(self.released, end), start)
        transactions = self._transactions
        if 0 <= transactions.proven_end <= watermark:
            stable = transactions.last_stable_offset
        self.ends = Ends(start, start, max(min(stable, watermark), start), watermark, end)
