"""Reads the ends of logs, and the positions in them that are not known any more."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from korvet.metrics.counted import Counted, counter, histogram, part
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType
from korvet.redis.errors import LinkLost, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from korvet.observe.ordinals import Ends
    from korvet.observe.positions import WatchedLog
    from korvet.redis.server import Server

_Item = TypeVar("_Item")

log = logging.getLogger(__name__)

# Limits the logs whose ends are read at once: less than 1 ms of Redis's time.
ENDS_AT_ONCE: Final = 32
# Limits the logs whose positions are counted at once, and the positions of one call. A position far from the
# one before costs Redis about 0.1 ms.
_COUNTED_AT_ONCE: Final = 4
_POSITIONS_AT_ONCE: Final = 4
# Limits how often the positions of a log are counted again in one look because records were deleted from it.
_EDITIONS: Final = 3


_LOOK_BOUNDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_READ: Final = declare(
    "korvet_record_counts_read_total",
    "What these looks read from Redis: ends of partitions, and positions of groups that had moved.",
    "what",
    kind=MetricType.COUNTER,
)


class Counting(Counted):
    """Reads logs in small steps, and counts what was read."""

    look_seconds = histogram(
        "korvet_record_counts_round_seconds",
        "Duration of a look at partitions and groups, in seconds; see metrics.lag.interval.ms.",
        bounds=_LOOK_BOUNDS,
    )
    read_ends = part(_READ, "ends")
    read_positions = part(_READ, "positions")
    failures = counter(
        "korvet_record_counts_failures_total",
        "Partitions that could not be read in a look; they keep their last values.",
    )

    def __init__(self) -> None:
        super().__init__()
        self.lost: dict[Server, LinkLost] = {}
        """The servers whose connections broke in this look: their logs are left out."""

    def reachable(self, some: Iterable[WatchedLog]) -> list[WatchedLog]:
        """The logs on other servers than the lost ones."""
        return [watched for watched in some if not self.lost or watched.ordinals.server not in self.lost]

    async def read(self, some: Sequence[WatchedLog], look: int) -> None:
        """Bring logs up to date, at most ENDS_AT_ONCE. `look`: see WatchedLog.changed_in."""
        # Futures, not tasks: there are thousands.
        asked = [watched.ordinals.ask() for watched in some]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        due = []
        for watched, reply in zip(some, replies, strict=True):
            ends = await self._ends(watched, reply)
            if ends is None:
                continue
            if watched.due_commits(ends):
                due.append((watched, ends))
            else:
                watched.take(ends, look)
        for page in pages(due, _COUNTED_AT_ONCE):
            await asyncio.gather(*(self._count(watched, ends, look) for watched, ends in page))

    async def _ends(self, watched: WatchedLog, reply: list[Any] | BaseException) -> Ends | None:
        try:
            if isinstance(reply, BaseException):
                raise reply
            ends = await watched.ordinals.ends_of(reply)
        except StorageError as error:
            self.failed(watched, error)
            return None
        self.read_ends += 1
        return ends

    async def _count(self, watched: WatchedLog, ends: Ends, look: int) -> None:
        """Count the positions of the groups that have moved."""
        try:
            for _ in range(_EDITIONS):
                edition = ends.edition
                for due in pages(watched.due_commits(ends), _POSITIONS_AT_ONCE):
                    # They may move while Redis counts.
                    offsets = [progress.offset for progress in due]
                    asked = [(max(progress.offset, 0), progress.near(edition)) for progress in due]
                    ends, positions = await watched.ordinals.positions(asked, edition)
                    self.read_positions += len(due)
                    for progress, offset, position in zip(due, offsets, positions, strict=True):
                        progress.take(position._replace(offset=offset), ends)
                if ends.edition == edition:
                    break
        except StorageError as error:
            self.failed(watched, error)
        watched.take(ends, look)

    def failed(self, watched: WatchedLog, error: StorageError) -> None:
        """Count a log that cannot be read."""
        if isinstance(error, LinkLost):
            self.lost[watched.ordinals.server] = error
        self.failures += 1
        place = watched.ordinals.topic.name, watched.ordinals.partition
        log.debug("%s-%d cannot be counted: %s", *place, error)


def pages(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """The items in pieces of that size."""
    return (items[at : at + size] for at in range(0, len(items), size))
