"""Keeps Redis groups in step with commits: at once if possible, later if Redis refused or after a crash.

Changes of one stream (a topic's partition) go to Redis in order, one call at a time; changes that arrive
during a call gather for the next one. Of several waiting commits of one group, only the newest is sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.causes import Causes
from korvet.coordinator.lane import CommitChange, Entry, Lane
from korvet.offsets.partition import partition_for
from korvet.redis.errors import StorageError, WrongType
from korvet.redis.futures import resolve
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic
    from korvet.groups.offset_table import GroupTopicPartition
    from korvet.redis_groups.projection import GroupCommit, Projection

logger = logging.getLogger(__name__)
causes = Causes(logger)


Stream: TypeAlias = tuple[str, int]
"""Topic, partition."""

NewestCommits: TypeAlias = "dict[Stream, dict[str, tuple[int, int]]]"
"""By stream and group: the position of the group's newest commit in `__consumer_offsets`, and the offset."""

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 60.0
# Limits the changes and streams handled in one turn after a load, so that clients' commits find room between
# turns.
AT_ONCE: Final = 256


class Projector:
    """Applies changes to Redis groups; those of one stream one after the other.

    A change that fails is kept (the newest per group and partition) and retried until it succeeds or its
    topic is deleted.
    """

    def __init__(
        self,
        projection: Projection,
        catalogue: Catalogue,
        coordinates: Callable[[str], bool],
        is_shared: Callable[[str], bool],
    ) -> None:
        """coordinates(group): whether this broker coordinates a group now. is_shared(group): whether that is
        a share group, whose Redis groups follow no commits.
        """
        self._projection = projection
        self._catalogue = catalogue
        self._coordinates = coordinates
        self._is_shared = is_shared
        # Streams with a call in flight.
        self._lanes: dict[Stream, Lane] = {}
        # Loaded commits that have not been compared with Redis.
        self._expected: NewestCommits = {}
        # The partitions that these may be of.
        self._expecting: set[int] = set()
        self._ends: dict[int, int] = {}
        # Comparisons in progress: ends of loaded partitions, and the streams that are left. A stream is
        # removed when it has been compared, so that none is compared twice.
        self._rounds: deque[tuple[dict[int, int], deque[Stream]]] = deque()
        self._failed: dict[GroupTopicPartition, CommitChange] = {}
        self._retrying: asyncio.Task[None] | None = None
        self._closed = False
        # While Redis groups are read: see `watch`.
        self._touched: set[GroupTopicPartition] | None = None

    def apply(self, changes: Sequence[CommitChange], done: Callable[[], None]) -> None:
        """Apply all; done() is called when each change is applied, kept for later, or belongs to a topic
        that does not exist.
        """
        left = len(changes)

        def finished() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        if not changes:
            done()
        elif left == 1:
            self._enqueue(changes[0], done)
        else:
            for change in changes:
                self._enqueue(change, finished)

    @property
    def waiting(self) -> int:
        """How many changes wait or are in flight."""
        return sum(len(lane.taken) + len(lane.waiting) for lane in self._lanes.values())

    @property
    def failed(self) -> int:
        """How many changes Redis refused; they are retried."""
        return len(self._failed)

    def watch(self, unprojected: Iterable[GroupTopicPartition]) -> AbstractSet[GroupTopicPartition]:
        """The keys whose commit is not projected, and from now until `unwatch` those whose commit changes.
        `unprojected`: keys with changes that have not arrived here. Changes that are still to be reconciled
        are not included.
        """
        self._touched = {*unprojected, *self._failed}
        for lane in self._lanes.values():
            self._touched.update(entry.change.place for entry in (*lane.taken, *lane.waiting))
        return self._touched

    def unwatch(self) -> None:
        """Changes need not be noted any more."""
        self._touched = None

    def changed(self, places: Iterable[GroupTopicPartition]) -> None:
        """The commits of these keys have changed; `apply` comes later."""
        if self._touched is not None:
            self._touched.update(places)

    async def close(self) -> None:
        """Stop retrying. The next load finds what is missing then."""
        self._closed = True
        await end(self._retrying)

    # After a load

    def expect(self, commits: NewestCommits, number: int, end: int, partitions: int) -> None:
        """Note the commits of partition `number` of `__consumer_offsets`, which has `partitions` partitions,
        read up to offset `end`, for `reconcile`.

        Forgets the commits of an earlier load of that partition, the changes that a failover has lost, and
        all commits that have failed: they are among these, or superseded.
        """

        def is_of_partition(group: str) -> bool:
            return partition_for(group, partitions) == number

        def is_lost(change: CommitChange) -> bool:
            return change.position >= end and is_of_partition(change.group)

        if number in self._expecting:
            for groups in self._expected.values():
                for group in [each for each in groups if is_of_partition(each)]:
                    del groups[group]
        self._expecting.add(number)
        for stream, groups in commits.items():
            self._expected.setdefault(stream, {}).update(groups)
        self._ends[number] = end
        for change in list(self._failed.values()):
            if is_lost(change) or (change.offset is not None and is_of_partition(change.group)):
                del self._failed[change.place]
        for lane in self._lanes.values():
            for entry in lane.lose(is_lost):
                entry.finish()

    @property
    def expects(self) -> bool:
        """Whether there is something to reconcile."""
        return bool(self._ends or self._rounds or self._expected)

    async def reconcile(self, partitions: int, log_end: Callable[[int], int | None]) -> None:
        """Bring Redis groups up to the loaded commits; `__consumer_offsets` has `partitions` partitions, and
        log_end(number) is the log end of one of them now (None: unknown).

        A commit that is not projected is projected. A projection without a commit is removed: the commit was
        deleted just before a crash. A projection of a record that a failover has lost is forgotten: it would
        hide later records with lower positions. Clients commit during this, which supersedes what was loaded
        for the same group and partition. Raises StorageError.
        """
        if self._ends:
            self._rounds.append((self._ends, deque(self._streams())))
            self._ends = {}
        while self._rounds:
            ends, streams = self._rounds[0]
            while streams:
                await self._apply_all(await self._gone(streams[0], ends, partitions, log_end))
                await self._apply_expected(streams.popleft())
            self._rounds.popleft()
        for stream in list(self._expected):
            await self._apply_expected(stream)
        if not self._expected:
            self._expecting.clear()

    def _streams(self) -> Iterator[Stream]:
        for topic in self._catalogue.topics.values():
            for number in range(topic.partitions):
                yield topic.name, number

    async def forget(self, topic: str, partition: int, groups: Sequence[str]) -> None:
        """Forget the projections of records that a failover has lost. Raises StorageError."""
        await self._projection.forget(topic, partition, groups)

    async def _gone(
        self,
        stream: Stream,
        ends: Mapping[int, int],
        partitions: int,
        log_end: Callable[[int], int | None],
    ) -> list[CommitChange]:
        """Remove what is projected already, and forget what the log has lost. Returns what is projected and
        should not be.
        """
        gone, lost = [], []
        try:
            projected = await self._projection.projected(*stream)
        except WrongType as error:
            message = "the Redis groups of %s-%d cannot follow their commits: %s"
            causes.warn(error, message, *stream, error, work=stream)
            return []
        causes.ended(stream)
        expected = self._expected.get(stream, {})
        for group, position in projected.items():
            number = partition_for(group, partitions)
            end, commit = ends.get(number), expected.get(group)
            if end is None:
                continue
            if self._is_shared(group):
                # Of a former group of that name.
                lost.append(group)
            elif commit is not None:
                # A commit after the load would have removed it from the expected ones.
                if position > commit[0]:
                    lost.append(group)
                elif position == commit[0]:
                    del expected[group]
            elif position < end and not self.is_changing(group, stream):
                gone.append(CommitChange(group, *stream, position, None, force=False))
            elif (now := log_end(number)) is not None and position >= now:
                lost.append(group)
        if not expected:
            self._expected.pop(stream, None)
        for at in range(0, len(lost), AT_ONCE):
            await self.forget(*stream, lost[at : at + AT_ONCE])
        return gone

    def is_changing(self, group: str, stream: Stream) -> bool:
        """Whether a change of the group waits, is in flight, or failed."""
        lane = self._lanes.get(stream)
        entries = () if lane is None else (*lane.taken, *lane.waiting)
        return (group, *stream) in self._failed or any(entry.change.group == group for entry in entries)

    async def _apply_expected(self, stream: Stream) -> None:
        if self._topic(stream) is None:
            self._expected.pop(stream, None)
        while groups := self._expected.get(stream):
            chunk = [
                CommitChange(group, *stream, position, offset, restored=True)
                for group, (position, offset) in islice(groups.items(), AT_ONCE)
            ]
            for change in chunk:
                del groups[change.group]
            # Another broker may have deleted what this one does not coordinate any more.
            await self._apply_all(
                [
                    change
                    for change in chunk
                    if self._coordinates(change.group) and not self._is_shared(change.group)
                ]
            )
        self._expected.pop(stream, None)

    async def _apply_all(self, changes: Sequence[CommitChange]) -> None:
        for at in range(0, len(changes), AT_ONCE):
            applied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.apply(changes[at : at + AT_ONCE], partial(resolve, applied, None))
            await applied
            await asyncio.sleep(0)  # changes of topics that do not exist are done at once

    def _forget_expected(self, stream: Stream, change: CommitChange) -> None:
        """Forget the loaded commit that a change supersedes: that commit need not be compared."""
        groups = self._expected.get(stream, {})
        position, _ = groups.get(change.group, (None, None))
        # The retry of a change from before the load leaves the commit: without it, its projection would be
        # taken for one whose commit was deleted.
        if position is not None and change.position > position:
            del groups[change.group]
            if not groups:
                del self._expected[stream]

    # Lanes

    def _topic(self, stream: Stream) -> Topic | None:
        """The topic of a stream that exists."""
        topic = self._catalogue.get(stream[0])
        return topic if topic is not None and stream[1] < topic.partitions else None

    def _enqueue(self, change: CommitChange, finished: Callable[[], None]) -> None:
        stream = change.topic, change.partition
        if self._expected:
            self._forget_expected(stream, change)
        lane = self._lanes.get(stream)
        if lane is not None:
            lane.add(change, finished)
            return
        topic = self._topic(stream)
        if topic is None:
            self._failed.pop(change.place, None)
            finished()
            return
        self._lanes[stream] = lane = Lane()
        lane.add(change, finished)
        # Deferred to the loop's next turn: changes that arrive in this one go along.
        asyncio.get_running_loop().call_soon(self._next, stream, lane)

    def _next(self, stream: Stream, lane: Lane) -> None:
        """Send what waits; a lane without changes is closed."""
        topic = self._topic(stream)
        while lane.waiting:
            taken = lane.take()
            if topic is None:
                for entry in taken:
                    self._failed.pop(entry.change.place, None)
                    entry.finish()
            elif taken[0].is_drop:
                self._drop(topic, lane, taken)
                return
            else:
                commits = [entry.as_commit() for entry in taken]
                done = partial(self._projected, stream, lane, taken)
                self._projection.project(*stream, commits, bias=topic.bias, done=done)
                return
        del self._lanes[stream]

    def _projected(
        self,
        stream: Stream,
        lane: Lane,
        taken: Sequence[Entry],
        result: Sequence[GroupCommit] | StorageError,
    ) -> None:
        left: Sequence[GroupCommit] = ()
        if not isinstance(result, StorageError):
            left = result
        positions = {commit.position for commit in left}
        unfinished = [entry for entry in taken if entry.change.position in positions and not entry.is_lost]
        lane.waiting.extendleft(reversed(unfinished))
        self._next(stream, lane)
        for entry in taken:
            if entry not in unfinished:
                self._finish(entry, result if isinstance(result, StorageError) else None)

    def _drop(self, topic: Topic, lane: Lane, taken: Sequence[Entry]) -> None:
        stream = topic.name, taken[0].change.partition
        left = len(taken)

        def done(entry: Entry, error: StorageError | None) -> None:
            nonlocal left
            left -= 1
            change = entry.change
            overtaken = [] if error else lane.drop_overtaken(change.group, change.position)
            if left == 0:
                self._next(stream, lane)
            for each in (*overtaken, entry):
                self._finish(each, error)

        for entry in taken:
            change = entry.change
            self._projection.drop(
                *change.place,
                change.position,
                bias=topic.bias,
                force=change.force,
                done=partial(done, entry),
            )

    def _finish(self, entry: Entry, error: StorageError | None) -> None:
        change = entry.change
        failed = self._failed.get(change.place) if self._failed else None
        if error is None:
            if failed is not None and failed.position <= change.position:
                del self._failed[change.place]
                causes.ended(change.place)
        elif not entry.is_lost and (failed is None or failed.position <= change.position):
            self._keep(change, error, is_new=failed is None)
        entry.finish()

    def _keep(self, change: CommitChange, error: StorageError, *, is_new: bool) -> None:
        if is_new:
            causes.warn(
                error,
                "the Redis group %r of %s-%d does not follow its commits yet: %s",
                change.group,
                change.topic,
                change.partition,
                error,
                work=change.place,
            )
        self._failed[change.place] = change
        if self._retrying is None and not self._closed:
            self._retrying = keep("Redis groups that did not follow", self._retry)

    async def _retry(self) -> None:
        """Retry what failed, less and less often, until nothing is left. Other brokers have compared the
        commits of the groups that they coordinate now.
        """
        delay_s = FIRST_RETRY_S
        while self._failed:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
            places = [place for place in self._failed if self._coordinates(place[0])]
            self._failed = {place: self._failed[place] for place in places}
            for at in range(0, len(places), AT_ONCE):
                # Newer changes, which may be deletions, replace failed ones meanwhile.
                some = [self._failed[place] for place in places[at : at + AT_ONCE] if place in self._failed]
                await self._apply_all(some)
        self._retrying = None
