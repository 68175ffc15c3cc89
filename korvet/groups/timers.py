"""Deadlines in a heap with lazy deletion.

Every heartbeat moves a deadline later. That is one assignment: the heap entry stays, and is pushed back when
it comes up too early. So heartbeats and idle groups cost the heap nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class Deadline:
    """An event. Its times are those of a TimerQueue, without the steps of the clock; at_ms is None while the
    deadline is not armed.
    """

    __slots__ = ("action", "at_ms", "queued_ms")

    def __init__(self, action: Action) -> None:
        self.action = action
        self.at_ms: int | None = None
        self.queued_ms: int | None = None  # the time of its valid heap entry, if any

    @property
    def is_armed(self) -> bool:
        return self.at_ms is not None

    def cancel(self) -> None:
        """Disarm; the heap entry, if any, is dropped when it comes up."""
        self.at_ms = None


class TimerQueue:
    """All deadlines of a shard."""

    __slots__ = ("_heap", "_sequence", "_shifted_ms")

    def __init__(self) -> None:
        # The sum of the clock's steps. Times in the heap and in deadlines don't include them.
        self._shifted_ms = 0
        self._heap: list[tuple[int, int, Deadline]] = []
        self._sequence = 0  # ties fire in the order of their arming; deadlines are never compared

    def arm(self, deadline: Deadline, at_ms: int) -> None:
        """Set the deadline to at_ms, instead of its former time."""
        at_ms -= self._shifted_ms
        deadline.at_ms = at_ms
        if deadline.queued_ms is None or at_ms < deadline.queued_ms:
            self._push(deadline, at_ms)

    def next_ms(self) -> int | None:
        """No deadline is due before this time; None if none is armed.

        It may be the former time of a deadline that was moved: `pop_due` finds that out.
        """
        return self._heap[0][0] + self._shifted_ms if self._heap else None

    def pop_due(self, now_ms: int) -> Deadline | None:
        """Remove the earliest deadline that is due at now_ms, and disarm it; None if none is due."""
        if not self._settle() or self._heap[0][0] + self._shifted_ms > now_ms:
            return None
        deadline = heappop(self._heap)[2]
        deadline.at_ms = deadline.queued_ms = None
        return deadline

    def shift(self, by_ms: int) -> None:
        """Move all deadlines by a step of the clock, forward or back."""
        self._shifted_ms += by_ms

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        deadline.queued_ms = at_ms
        self._sequence += 1
        heappush(self._heap, (at_ms, self._sequence, deadline))

    def _settle(self) -> bool:
        """Bring a valid entry to the top of the heap; False if the heap is empty."""
        heap = self._heap
        while heap:
            queued_ms, _, deadline = heap[0]
            if deadline.queued_ms == queued_ms and deadline.at_ms == queued_ms:
                return True
            heappop(heap)
            if deadline.queued_ms != queued_ms:
                continue  # superseded by an earlier entry
            deadline.queued_ms = None
            if deadline.at_ms is not None:
                self._push(deadline, deadline.at_ms)
        return False


class MemberDeadlines:
    """One deadline for each member of each group."""

    __slots__ = ("_deadlines", "_timers")

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._deadlines: dict[tuple[str, str], Deadline] = {}

    def __contains__(self, member: tuple[str, str]) -> bool:
        """Whether a member, by group and member id, has a deadline."""
        return member in self._deadlines

    def arm(self, group_id: str, member_id: str, at_ms: int, action: Action) -> None:
        """Set the deadline of a member, instead of its former time and action."""
        deadline = self._deadlines.get((group_id, member_id))
        if deadline is None:
            deadline = self._deadlines[group_id, member_id] = Deadline(action)
        deadline.action = action
        self._timers.arm(deadline, at_ms)

    def cancel(self, group_id: str, member_id: str) -> None:
        """Forget the deadline of a member, if it has one."""
        deadline = self._deadlines.pop((group_id, member_id), None)
        if deadline is not None:
            deadline.cancel()
