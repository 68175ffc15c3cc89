"""Deletes the oldest records of a server, over all topics, while much of its maxmemory is used
(log.retention.memory.ratio).

The controller moves one cutoff per server, a record time, and notes it in Redis; the leaders of the server's
partitions delete older spans. So all topics keep records of the same age, and no sizes are summed up.

| state | used memory | cutoff |
|---|---|---|
| none | up to the ratio | none |
| none | above the ratio | after the oldest record by a step; none if that is of the future |
| a cutoff | above the ratio less 2 % | on by a step |
| a cutoff | up to that | none |
| a cutoff | any, and the clock was set back before the cutoff | none |
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from korvet.causes import Causes
from korvet.redis.errors import FencedEpoch, StorageError, TopicGone
from korvet.redis.info import parse_info, used_memory
from korvet.topics.retention import keeping_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.cluster.leadership import Leadership
    from korvet.cluster.topic import Topic
    from korvet.config.live import LiveConfig
    from korvet.redis.commands import Commands
    from korvet.redis.server import Router, Server
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)
causes = Causes(log)

_PERIOD_S: Final = 1.0
# So far below the ratio the deletion stops, so that it does not begin again at once.
_HYSTERESIS: Final = 0.02
# A step is this share of the age range, so that a server gets room, whether it holds hours or weeks.
_SHARE: Final = 0.002
# At least this multiple of the time since the last step: records may come in at a higher rate than the
# oldest ones did. At maxmemory it is the second number.
_LEAST_PACE: Final = 2.0
_LARGEST_PACE: Final = 12.0
# At most this share of the age range: a step must not empty a server that holds seconds.
_LARGEST_SHARE: Final = 0.3
_WORK: Final = "log.retention.memory.ratio"
# Partitions whose oldest record is asked for at once.
_AT_ONCE: Final = 50


def next_cutoff(
    cutoff_ms: int | None, used: float, ratio: float, oldest_ms: int | None, elapsed_ms: int, now_ms: int
) -> int | None:
    """The cutoff after `elapsed_ms`; see the table above. `used`: the used share of maxmemory. `oldest_ms`:
    the time of the oldest record that may go, needed without a cutoff.
    """
    stops_at = ratio if cutoff_ms is None else ratio - _HYSTERESIS
    if used <= stops_at:
        return None
    begin_ms = oldest_ms if cutoff_ms is None else cutoff_ms
    # After a cutoff in the future, the leaders would delete all records of the present.
    if begin_ms is None or begin_ms > now_ms:
        return None
    range_ms = now_ms - begin_ms
    urgency = min(max(used - ratio, 0.0) / (1 - ratio), 1.0)
    pace = _LEAST_PACE + urgency * (_LARGEST_PACE - _LEAST_PACE)
    step_ms = min(max(_SHARE * range_ms, pace * elapsed_ms), _LARGEST_SHARE * range_ms)
    return begin_ms + int(step_ms)


class MemoryLimit:
    """One broker's part: the controller moves the cutoffs, each leader trims its partitions."""

    def __init__(
        self,
        commands: Commands,
        router: Router,
        leadership: Leadership,
        topics: TopicDirectory,
        live: LiveConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._commands = commands
        self._router = router
        self._leadership = leadership
        self._topics = topics
        self._live = live
        self._now_ms = now_ms
        self._looked_ms = 0

    async def run(self) -> NoReturn:
        """Keep the servers below the ratio until cancelled."""
        while True:
            if self._live.now.log_retention_memory_ratio > 0:
                try:
                    await self.look()
                    causes.ended(_WORK)
                except StorageError as error:
                    causes.warn(error, "log.retention.memory.ratio cannot be applied: %s", error, work=_WORK)
            await self._live.pause(lambda _: _PERIOD_S)

    async def look(self) -> None:
        """Move the cutoffs, and trim by them. Raises StorageError."""
        noted = await self._commands.call("HGET", self._commands.keyspace.cluster, "cutoffs")
        cutoffs: dict[str, int] = msgspec.json.decode(noted, type=dict[str, int]) if noted else {}
        if self._leadership.is_controller:
            before, cutoffs = cutoffs, await self._moved(cutoffs)
            if cutoffs != before:
                text = msgspec.json.encode(cutoffs) if cutoffs else b""
                await self._commands.fcall("korvet_note_cutoffs", [self._commands.keyspace.cluster], text)
        for topic, number, server in self._partitions() if cutoffs else ():
            if server in cutoffs:
                await self._trim(topic, number, cutoffs[server])

    async def _moved(self, cutoffs: dict[str, int]) -> dict[str, int]:
        now_ms = self._now_ms()
        elapsed_ms = min(now_ms - self._looked_ms, int(2000 * _PERIOD_S))
        self._looked_ms = now_ms
        found = {}
        for server in self._router.servers():
            name, ratio = str(server.address), self._live.now.log_retention_memory_ratio
            cutoff_ms = cutoffs.get(name)
            try:
                used = await _used(server)
                oldest_ms = await self._oldest(name) if cutoff_ms is None and used > ratio else None
            except StorageError as error:
                # The other servers must not wait for it.
                causes.warn(error, "Redis at %s does not report its memory: %s", name, error, work=name)
                if cutoff_ms is not None:
                    found[name] = cutoff_ms
                continue
            causes.ended(name)
            moved_ms = next_cutoff(cutoff_ms, used, ratio, oldest_ms, elapsed_ms, now_ms)
            if moved_ms is not None:
                found[name] = moved_ms
            if (moved_ms is None) is not (cutoff_ms is None):
                what = "keeps all records again" if moved_ms is None else "deletes its oldest records"
                log.info("Redis at %s %s: %.0f %% of maxmemory are used", name, what, 100 * used)
            elif used > ratio and moved_ms is None:
                causes.warn(
                    name, "Redis at %s is above log.retention.memory.ratio, and no record may go", name
                )
        return found

    async def _oldest(self, server: str) -> int | None:
        """The time of the oldest record of a server that may go."""
        partitions = [(topic, number) for topic, number, where in self._partitions() if where == server]
        found: list[int] = []
        for start in range(0, len(partitions), _AT_ONCE):
            some = partitions[start : start + _AT_ONCE]
            replies = await asyncio.gather(*(self._rate(*each) for each in some))
            found += [reply[3] for reply in replies if reply[3] >= 0]
        return min(found, default=None)

    async def _rate(self, topic: Topic, number: int) -> Any:
        keys = self._commands.keyspace.partition_keys(topic.name, number)[:3]
        return await self._commands.fcall("korvet_rate", keys, topic.bias, self._now_ms(), read=True)

    def _partitions(self) -> Iterator[tuple[Topic, int, str]]:
        """The partitions whose records may go, with the addresses of their servers: those with a retention.ms
        that are not compacted.
        """
        keyspace, topics = self._commands.keyspace, self._topics
        for topic in topics.all():
            keeping = keeping_of(topic, topics.policy(topic), keeps_all=topics.keeps_all(topic))
            if keeping.retention_ms is not None:
                for number in range(topic.partitions):
                    stream = keyspace.partition_keys(topic.name, number)[0]
                    yield topic, number, str(self._commands.links(stream).server.address)

    async def _trim(self, topic: Topic, number: int, cutoff_ms: int) -> None:
        """Trim a partition, if this broker leads it."""
        try:
            found = self._topics.log(topic.name, number)
            # A partition in compaction is trimmed later; otherwise the compaction would never finish.
            if found is not None and not found.closed and not found.compacting:
                now_ms = self._now_ms()
                await found.trimming.trim(max(now_ms - cutoff_ms, 0), None, now_ms)
        except (TopicGone, FencedEpoch):
            # The topic is deleted, or another broker leads the partition now.
            return
        except StorageError as error:
            # The other partitions free memory, too.
            causes.warn(error, "retention of %s-%d by memory: %s", topic.name, number, error)


async def _used(server: Server) -> float:
    """The used share of maxmemory; 0 without maxmemory."""
    info = parse_info(await server.read.call("INFO", "memory"))
    limit_bytes = int(info.get("maxmemory", "0"))
    return used_memory(info) / limit_bytes if limit_bytes else 0.0
