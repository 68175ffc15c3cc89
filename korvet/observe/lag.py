"""Keeps the ends of partitions, the positions of groups and the queues of share groups up to date, for
metrics.

Every broker looks at the partitions that it leads, and at those in which groups that it coordinates have
committed or take records, also if other brokers lead them. A look reads Redis in small steps, so that
clients' commands find room between them.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.metrics.family import label_text
from korvet.observe.counting import ENDS_AT_ONCE, Counting, pages
from korvet.observe.ordinals import LogOrdinals
from korvet.observe.positions import Progress, Turns, WatchedLog
from korvet.observe.queues import WatchedQueues
from korvet.redis.errors import StorageError
from korvet.redis_groups.backlogs import read_backlogs
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.cluster.leadership import Leadership
    from korvet.cluster.topic import Topic
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.coordinator.service import CoordinatorService
    from korvet.coordinator.term import Term
    from korvet.groups.offset_table import GroupTopicPartition
    from korvet.store import Store

log = logging.getLogger(__name__)

# Limits the logs whose groups are read at once: a stream may have thousands.
_GROUPS_AT_ONCE: Final = 4
# Limits the logs that one look reads, unless more of them are urgent.
_MOST_LOGS: Final = 1_000
# Limits the time that a look holds the event loop at once: clients wait as long.
_SLICE_S: Final = 0.001
# A log that has changed is read in each of this many looks after that.
_LATELY: Final = 6
# After a look, the watch rests for at least this multiple of the time that the look took.
_RESTS: Final = 1
# The name of a group may have several lines.
_FLAGS: Final = re.DOTALL


class WatchedGroup:
    """The committed offsets of one group."""

    __slots__ = ("cluster_text", "group_id", "is_shown", "sum_texts", "topics")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.cluster_text = ""
        """Label text; empty until it is needed."""
        self.sum_texts: dict[str, tuple[str, str]] = {}
        """Label texts by topic."""
        self.topics: dict[str, dict[int, Progress]] = {}
        """By topic and partition."""
        self.is_shown = False
        """Whether its positions are counted: the limits of the settings permit it."""


class _Loaded:
    """The groups of one term of a partition of `__consumer_offsets`."""

    __slots__ = ("groups", "term")

    def __init__(self, term: Term) -> None:
        self.term = term
        self.groups: set[str] = set()


class LagWatch:
    """Looks at the logs and groups of one broker every `metrics.lag.interval.ms`, or less often if that takes
    long.
    """

    def __init__(
        self, live: LiveConfig, store: Store, leadership: Leadership, coordinator: CoordinatorService
    ) -> None:
        self._live = live
        self._store = store
        self._leadership = leadership
        self._coordinator = coordinator
        self._turns = Turns(_MOST_LOGS, _LATELY)
        self._loaded: dict[int, _Loaded] = {}
        # metrics.groups and metrics.topics in the last look.
        self._patterns = ("", "")
        self.logs: dict[tuple[str, int], WatchedLog] = {}
        """By topic and partition."""
        self.groups: dict[str, WatchedGroup] = {}
        """All groups that this broker coordinates and that have committed offsets, as far as the patterns of
        the settings match both groups and topics.
        """
        self.queues = WatchedQueues()
        self.shown_topics: list[Topic] = []
        """The topics of which this broker shows the partitions that it leads."""
        self.topics_left_out = 0
        self.looks = 0
        self.looked_at_s: float | None = None
        """When the last complete look began (time.monotonic)."""
        self.counting = Counting()

    @property
    def _config(self) -> Config:
        return self._live.now

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        self._forget_groups()
        while True:
            began_s = time.monotonic()
            try:
                await self.look()
                self.looked_at_s = began_s
            except StorageError as error:
                log.debug("partitions and groups cannot be looked at: %s", error)
            took_s = time.monotonic() - began_s
            self.counting.look_seconds.observe(took_s)
            await self._live.pause(partial(_rest_s, took_s))

    async def look(self) -> None:
        """Bring everything up to date that has changed, as far as this broker knows. Raises LinkLost if a
        server is lost, after those of the other servers.
        """
        self.looks += 1
        await self._follow_topics()
        await self._follow_terms()
        await self._admit_groups()
        await self._follow_queues()
        for key in [key for key, watched in self.logs.items() if not watched.is_needed]:
            del self.logs[key]
        chosen = self._turns.choose(self.logs.values(), self._has_grown, self.looks)
        counting = self.counting
        counting.lost.clear()
        for some in pages(chosen, ENDS_AT_ONCE):
            await counting.read(counting.reachable(some), self.looks)
            led = [watched for watched in counting.reachable(some) if watched.is_led]
            for logs in pages(led, _GROUPS_AT_ONCE):
                await asyncio.gather(*map(self._read_backlogs, logs))
            shared = [watched for watched in counting.reachable(some) if watched.queues]
            for logs in pages(shared, _GROUPS_AT_ONCE):
                await asyncio.gather(*map(self._read_queues, logs))
        if counting.lost:
            raise next(iter(counting.lost.values()))

    def shows_group(self, group_id: str) -> bool:
        """Whether `metrics.groups` matches a group."""
        return re.fullmatch(self._config.metrics_groups, group_id, _FLAGS) is not None

    # What is watched

    async def _follow_topics(self) -> None:
        """Watch the partitions that this broker leads."""
        config, node_id, assignment = self._config, self._leadership.node_id, self._leadership.assignment
        matches = re.compile(config.metrics_topics).fullmatch
        rows = left_out = 0
        shown = []
        led: set[tuple[str, int]] = set()
        async for topic in sliced(self._store.catalogue.topics.values(), _SLICE_S):
            leaders = assignment.leaders(topic.name, topic.partitions)[: topic.partitions]
            mine = [number for number, leader in enumerate(leaders) if leader.node_id == node_id]
            if not matches(topic.name) or rows + len(mine) > config.metrics_max_rows:
                left_out += bool(mine)
                continue
            rows += len(mine)
            shown.append(topic)
            for number in mine:
                self._log(topic, number)
                led.add((topic.name, number))
        for key, watched in self.logs.items():
            watched.is_led = key in led
            if not watched.is_led:
                watched.backlogs = []
        self.shown_topics, self.topics_left_out = shown, left_out

    def _log(self, topic: Topic, partition: int) -> WatchedLog:
        key = topic.name, partition
        known = self.logs.get(key)
        if known is not None and known.ordinals.topic.topic_id == topic.topic_id:
            return known
        made = self.logs[key] = WatchedLog(LogOrdinals(self._store.commands, topic, partition))
        place = ("topic", topic.name), ("partition", partition)
        made.text = label_text(place)
        made.cluster_text = label_text([("cluster_name", self._store.commands.cluster_id), *place])
        if known is not None:
            # The topic was deleted and created again.
            for group_id, progress in known.commits.items():
                progress.forget()
                made.commits[group_id] = progress
        return made

    async def _follow_terms(self) -> None:
        """Take over the commits since the last look, and all commits of partitions that were loaded since."""
        terms = dict(self._coordinator.terms)
        for number in [each for each, loaded in self._loaded.items() if terms.get(each) is not loaded.term]:
            for group_id in self._loaded.pop(number).groups:
                self._drop_group(group_id)
        patterns = self._config.metrics_groups, self._config.metrics_topics
        if patterns != self._patterns:
            self._forget_groups()
            self._patterns = patterns
        shows_group, shows_topic = (re.compile(pattern, _FLAGS).fullmatch for pattern in patterns)
        for number, term in terms.items():
            loaded = self._loaded.get(number)
            moved = term.shard.take_moved()
            if loaded is None or moved is None:
                loaded, moved = _Loaded(term), None
                self._loaded[number] = loaded
            async for place in sliced(_places(term) if moved is None else moved, _SLICE_S):
                if shows_group(place[0]) and shows_topic(place[1]):
                    self._follow_commit(loaded, place)

    def _forget_groups(self) -> None:
        """Begin with all commits again: the settings have changed, or an exception has ended a look."""
        for group_id in list(self.groups):
            self._drop_group(group_id)
        self._loaded.clear()

    def _follow_commit(self, loaded: _Loaded, place: GroupTopicPartition) -> None:
        group_id, topic, partition = place
        committed = loaded.term.committed(place)
        group = self.groups.get(group_id)
        if committed is None:
            if group is not None and group.topics.get(topic, {}).pop(partition, None) is not None:
                self._unlink(group_id, topic, partition)
                if not group.topics[topic]:
                    del group.topics[topic]
                    group.sum_texts.pop(topic, None)
                if not group.topics:
                    self._drop_group(group_id)
                    loaded.groups.discard(group_id)
            return
        if group is None:
            group = self.groups[group_id] = WatchedGroup(group_id)
            loaded.groups.add(group_id)
        partitions = group.topics.setdefault(topic, {})
        progress = partitions.get(partition)
        if progress is None:
            progress = partitions[partition] = Progress(committed.offset)
        progress.offset = committed.offset

    async def _admit_groups(self) -> None:
        """Count the positions of as many groups as the settings permit, the longest known ones first."""
        catalogue, most = self._store.catalogue, self._config.metrics_max_rows
        rows = 0
        async for group in sliced(list(self.groups.values()), _SLICE_S):
            topics = [found for name in group.topics if (found := catalogue.get(name)) is not None]
            size = sum(len(group.topics[topic.name]) for topic in topics)
            if rows + size > most:
                group.is_shown = False
                self._unlink_group(group)
                continue
            rows += size
            group.is_shown = True
            for topic in topics:
                for partition, progress in group.topics[topic.name].items():
                    if partition < topic.partitions:
                        self._log(topic, partition).commits[group.group_id] = progress

    async def _follow_queues(self) -> None:
        """Watch the logs in which share groups have records."""
        groups = [group for _, term in self._coordinator.terms for group in term.shard.groups.values()]
        await self.queues.follow(groups, self._config)
        for watched in self.logs.values():
            watched.queues = []
        async for queue in sliced(self.queues.by_place.values(), _SLICE_S):
            topic = self._store.catalogue.get(queue.place.topic)
            if topic is not None and topic.topic_id.bytes == queue.place.topic_id:
                self._log(topic, queue.place.partition).queues.append(queue)

    def _drop_group(self, group_id: str) -> None:
        group = self.groups.pop(group_id, None)
        if group is not None:
            self._unlink_group(group)

    def _unlink_group(self, group: WatchedGroup) -> None:
        for topic, partitions in group.topics.items():
            for partition in partitions:
                self._unlink(group.group_id, topic, partition)

    def _unlink(self, group_id: str, topic: str, partition: int) -> None:
        watched = self.logs.get((topic, partition))
        if watched is not None:
            watched.commits.pop(group_id, None)

    def _has_grown(self, watched: WatchedLog) -> bool:
        opened = self._store.logs.opened(watched.ordinals.topic.name, watched.ordinals.partition)
        if opened is None or not opened.state.known.loaded or watched.ends is None:
            return False
        ends, now = watched.ends, opened.ends
        return (now.log_start, now.log_end) != (ends.log_start, ends.log_end)

    async def _read_backlogs(self, watched: WatchedLog) -> None:
        topic = watched.ordinals.topic
        if topic.internal:
            return
        stream = self._store.commands.keyspace.stream(topic.name, watched.ordinals.partition)
        try:
            found = await read_backlogs(self._store.commands, stream)
        except StorageError as error:
            self.counting.failed(watched, error)
            return
        watched.backlogs = [each for each in found if self.shows_group(each.group)]

    async def _read_queues(self, watched: WatchedLog) -> None:
        for queue in watched.queues:
            try:
                view = await self._coordinator.sharing.view(queue.place)
            except StorageError as error:
                self.counting.failed(watched, error)
                return
            if view != queue.view:
                queue.view, watched.changed_in = view, self.looks


def _rest_s(took_s: float, config: Config) -> float:
    """The pause after a look that took so long."""
    return max(config.metrics_lag_interval_ms / 1000 - took_s, _RESTS * took_s)


def _places(term: Term) -> Iterator[GroupTopicPartition]:
    """All committed offsets of a term."""
    for group_id in list(term.shard.groups):
        for topic, partitions in list(term.shard.offsets(group_id).items()):
            for partition in list(partitions):
                yield group_id, topic, partition
