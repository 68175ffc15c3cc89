"""Keeps Redis groups in step with commits: at once where possible, later where Redis refused or a crash came
between.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from korvet.offsets.partition import partition_for
from korvet.storage.errors import StorageError, WrongType
from korvet.storage.projection import GroupCommit, Projection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from korvet.storage.catalogue import Catalogue, Topic

logger = logging.getLogger(__name__)

Place: TypeAlias = tuple[str, str, int]
"""Group, topic, partition."""

FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 60.0
# Commits and partitions looked at in one go after a load: the commits of clients must find room between them.
AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class CommitChange:
    """What the record at `position` of `__consumer_offsets` did to a committed offset; offset None: deleted
    it.

    force: destroy the Redis group even if native consumers use it.
    """

    group: str
    topic: str
    partition: int
    position: int
    offset: int | None
    force: bool = True

    @property
    def place(self) -> Place:
        """What is changed."""
        return self.group, self.topic, self.partition


class Projector:
    """Applies changes to Redis groups, those of one place one after the other.

    A change that fails is kept, the newest of each place, and tried again until it succeeds or its topic is
    gone.
    """

    def __init__(self, projection: Projection, catalogue: Catalogue) -> None:
        self._projection = projection
        self._catalogue = catalogue
        # Places with a change on its way, and the changes that wait behind it. A large one takes several
        # calls, and a deletion between two of them would be undone by the second.
        self._busy: dict[Place, deque[tuple[CommitChange, Callable[[], None]]]] = {}
        # What was loaded and is not compared with Redis yet.
        self._expected: dict[Place, CommitChange] = {}
        self._ends: dict[int, int] = {}
        self._failed: dict[Place, CommitChange] = {}
        self._retrying: asyncio.Task[None] | None = None
        self._closed = False

    def apply(self, changes: Sequence[CommitChange], done: Callable[[], None]) -> None:
        """Apply all; done() when each of them is applied, kept for later, or about a topic that does not
        exist.
        """
        left = len(changes)

        def finished() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                done()

        if not changes:
            done()
        for change in changes:
            self._enqueue(change, finished)

    @property
    def backlog(self) -> int:
        """How many changes failed and wait to be tried again."""
        return len(self._failed)

    async def close(self) -> None:
        """Try nothing again any more. What is missing then is found at the next load."""
        self._closed = True
        if self._retrying is not None:
            self._retrying.cancel()
            await asyncio.gather(self._retrying, return_exceptions=True)

    def expect(self, commits: Mapping[Place, CommitChange], number: int, end: int) -> None:
        """Note what partition `number` of `__consumer_offsets`, read up to offset `end`, says, for
        `reconcile`.

        commits: the newest one of each place that has one.
        """
        self._expected.update(commits)
        self._ends[number] = end

    @property
    def expects(self) -> bool:
        """Whether there is something to reconcile."""
        return bool(self._ends or self._expected)

    async def reconcile(self, partitions: int) -> None:
        """Bring Redis groups up to what is expected; `__consumer_offsets` has `partitions` partitions.

        A commit that is not projected is projected; what is projected but no longer there was deleted just
        before a crash, and goes. Commits of clients go on meanwhile, and make what is expected of their place
        obsolete. Raises StorageError.
        """
        ends, self._ends = self._ends, {}
        try:
            gone = await self._compare(ends, partitions)
        except StorageError:
            self._ends = {**ends, **self._ends}
            raise
        await self._apply_all(gone)
        while self._expected:
            chunk = list(itertools.islice(self._expected.values(), AT_ONCE))
            await self._apply_all(chunk)

    async def _compare(self, ends: Mapping[int, int], partitions: int) -> list[CommitChange]:
        """Strike off what is projected already; returns what is projected and should not be."""
        gone = []
        topics = self._catalogue.topics.values()
        places = [(topic.name, number) for topic in topics for number in range(topic.partitions)]
        for at in range(0, len(places), AT_ONCE):
            found = await asyncio.gather(*(self._projected(*place) for place in places[at : at + AT_ONCE]))
            for commit in (commit for commits in found for commit in commits):
                end = ends.get(partition_for(commit.group, partitions))
                if end is None or commit.position >= end:
                    continue
                place = (commit.group, commit.topic, commit.partition)
                expected = self._expected.get(place)
                if expected is None:
                    gone.append(CommitChange(*place, commit.position, None, force=False))
                elif commit.position >= expected.position:
                    del self._expected[place]
        return gone

    async def _projected(self, topic: str, partition: int) -> list[GroupCommit]:
        try:
            return await self._projection.projected(topic, partition)
        except WrongType as error:
            logger.warning("the Redis groups of %s-%d cannot follow: %s", topic, partition, error)
            return []

    async def _apply_all(self, changes: Sequence[CommitChange]) -> None:
        for at in range(0, len(changes), AT_ONCE):
            settled = asyncio.get_running_loop().create_future()
            self.apply(changes[at : at + AT_ONCE], partial(_settle, settled))
            await settled
            await asyncio.sleep(0)  # changes of topics that do not exist are done at once

    def _enqueue(self, change: CommitChange, finished: Callable[[], None]) -> None:
        if self._expected:
            self._expected.pop(change.place, None)
        waiting = self._busy.get(change.place)
        if waiting is not None:
            waiting.append((change, finished))
            return
        topic = self._catalogue.get(change.topic)
        if topic is None or change.partition >= topic.partitions:
            self._failed.pop(change.place, None)
            finished()
            return
        self._busy[change.place] = deque()
        self._start(topic, change, finished)

    def _start(self, topic: Topic, change: CommitChange, finished: Callable[[], None]) -> None:
        done = partial(self._done, change, finished)
        if change.offset is None:
            self._projection.drop(*change.place, change.position, force=change.force, done=done)
            return
        commit = GroupCommit(*change.place, change.position, change.offset)
        self._projection.project(commit, bias=topic.bias, done=done)

    def _done(self, change: CommitChange, finished: Callable[[], None], error: StorageError | None) -> None:
        place = change.place
        failed = self._failed.get(place)
        if error is None:
            if failed is not None and failed.position <= change.position:
                del self._failed[place]
        elif failed is None or failed.position <= change.position:
            self._keep(change, error, is_new=failed is None)
        # Those that waited go first: `finished` may bring further changes of this place.
        for later, later_finished in self._busy.pop(place):
            if error is None and later.position <= change.position:
                later_finished()  # overtaken: a commit from before a deletion must not bring the group back
            else:
                self._enqueue(later, later_finished)
        finished()

    def _keep(self, change: CommitChange, error: StorageError, *, is_new: bool) -> None:
        if is_new:
            logger.warning(
                "the Redis group %r of %s-%d does not follow yet: %s",
                change.group,
                change.topic,
                change.partition,
                error,
            )
        self._failed[change.place] = change
        if self._retrying is None and not self._closed:
            self._retrying = asyncio.get_running_loop().create_task(self._retry())

    async def _retry(self) -> None:
        """Try what failed again, less and less often, until nothing is left."""
        delay_s = FIRST_RETRY_S
        while self._failed:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_RETRY_S)
            await self._apply_all(list(self._failed.values()))
        self._retrying = None


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
