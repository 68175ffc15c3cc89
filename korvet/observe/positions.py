"""What is known of the ends of logs and of committed offsets, and what must be read again. No I/O.

A committed offset is counted again only when it has moved, or when records within its log have gone. For all
others, the lag follows from the ends of their log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.observe.ordinals import Ends, Known, OrdinalPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.observe.ordinals import LogOrdinals
    from korvet.observe.queues import WatchedQueue
    from korvet.redis_groups.backlogs import Backlog


class Progress:
    """A committed offset of a group in one partition."""

    __slots__ = ("_edition", "_seen", "member_text", "offset", "owner", "position", "text")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """The offset that is committed now."""
        self.text = ""
        """Label text; empty until it is needed."""
        self.owner: object = None
        self.member_text = ""
        """Label text with the `owner`, to whom the partition is assigned."""
        self.position: OrdinalPosition | None = None
        """The offset that was counted last; None before the first time."""
        self._edition = -1
        # The ordinal of the log start and the log end at that time.
        self._seen = (-1, -1)

    @property
    def has_moved(self) -> bool:
        """Whether the committed offset is not counted yet."""
        return self.position is None or self.position.offset != self.offset

    def must_be_read(self, ends: Ends) -> bool:
        """Whether Redis must count the offset, in a log with these ends. If not, take over what follows from
        the ends.
        """
        position = self.position
        if self.offset >= ends.log_end:
            self.take(OrdinalPosition(self.offset, ends.end_ordinal, None), ends)
            return False
        if position is None or position.offset != self.offset or self._edition != ends.edition:
            return True
        seen_first, seen_end = self._seen
        if position.next_ms is None:
            # No record followed at that log end.
            return seen_end != ends.log_end
        # The first unread record is deleted.
        return self.offset < ends.log_start and seen_first != ends.start_ordinal

    def near(self, edition: int) -> Known | None:
        """The last position, if the offset can be counted from there."""
        position = self.position
        if position is None or position.offset > self.offset or self._edition != edition:
            return None
        # Beyond the log end of that time, an offset had the ordinal of the end.
        return Known(min(position.offset, self._seen[1]), position.ordinal)

    def take(self, position: OrdinalPosition, ends: Ends) -> None:
        """Take over a position that was found in a log with these ends."""
        self.position = position
        self._edition = ends.edition
        self._seen = ends.start_ordinal, ends.log_end

    def forget(self) -> None:
        """Take over that the log is another one."""
        self.position = None

    @staticmethod
    def ordinal(position: OrdinalPosition, ends: Ends) -> int:
        """The records ever appended before a position, in a log with these ends."""
        return min(max(position.ordinal, ends.start_ordinal), ends.end_ordinal)

    def waiting_s(self, now_ms: float) -> float:
        """How long the first unread record has been waiting, in seconds; 0 if there is none."""
        position = self.position
        if position is None or position.next_ms is None:
            return 0.0
        return max(now_ms - position.next_ms, 0.0) / 1000


class WatchedLog:
    """A partition whose ends are watched, and the committed offsets of the groups in it."""

    __slots__ = (
        "backlogs",
        "changed_in",
        "cluster_text",
        "commits",
        "ends",
        "is_led",
        "ordinals",
        "queues",
        "text",
    )

    def __init__(self, ordinals: LogOrdinals) -> None:
        self.ordinals = ordinals
        self.is_led = False
        """Whether this broker reports the partition."""
        self.ends: Ends | None = None
        """None until they are read for the first time."""
        self.commits: dict[str, Progress] = {}
        """By group."""
        self.backlogs: list[Backlog] = []
        """The Redis groups with consumers or pending entries, as read last."""
        self.queues: list[WatchedQueue] = []
        """The share groups that the broker coordinates, in this partition."""
        self.changed_in = 0
        """The number of the look that found a change."""
        self.text = self.cluster_text = ""
        """Label texts."""

    @property
    def is_needed(self) -> bool:
        """Whether anybody asks for the ends."""
        return self.is_led or bool(self.commits) or bool(self.queues)

    @property
    def is_urgent(self) -> bool:
        """Whether something is not counted yet."""
        return (
            self.ends is None
            or any(progress.has_moved for progress in self.commits.values())
            or any(queue.view is None for queue in self.queues)
        )

    def take(self, ends: Ends, look: int) -> None:
        """Take over the ends, as look number `look` found them."""
        if ends != self.ends:
            self.ends = ends
            self.changed_in = look

    def due_commits(self, ends: Ends) -> list[Progress]:
        """The committed offsets that Redis must count, ascending."""
        due = [progress for progress in list(self.commits.values()) if progress.must_be_read(ends)]
        return sorted(due, key=lambda progress: progress.offset)


class Turns:
    """Chooses what a look reads: what is urgent, what changed lately, and the others in turn."""

    def __init__(self, most: int, lately: int) -> None:
        """`most`: logs of one look, unless more are urgent. `lately`: how many looks a change is remembered
        for.
        """
        self._most = most
        self._lately = lately
        self._turn = 0

    def choose(
        self, logs: Iterable[WatchedLog], has_grown: Callable[[WatchedLog], bool], look: int
    ) -> list[WatchedLog]:
        """The logs of look number `look`. has_grown(log): whether the log is known to have other ends now."""
        everything = list(logs)
        if len(everything) <= self._most:
            return everything
        chosen: list[WatchedLog] = []
        others: list[WatchedLog] = []
        for log in everything:
            is_due = log.is_urgent or look - log.changed_in <= self._lately or has_grown(log)
            (chosen if is_due else others).append(log)
        count = min(len(others), max(self._most - len(chosen), self._most // 5))
        first = self._turn % max(len(others), 1)
        self._turn = first + count
        return chosen + (others[first:] + others[:first])[:count]
