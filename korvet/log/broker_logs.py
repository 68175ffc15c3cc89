"""The open logs of this process, and in which leader epoch it leads each of them."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet import supervisor
from korvet.cluster.assignment import NO_NODE
from korvet.cluster.claims import end_at_claim, packed_claim
from korvet.log.partition_log import PartitionLog
from korvet.metrics.counted import Counted, counter
from korvet.redis.errors import (
    PASSING,
    FencedEpoch,
    StorageError,
    TopicGone,
    WritesRefused,
    domain_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.cluster.membership import Membership
    from korvet.cluster.topic import Topic
    from korvet.log.resources import LogResources
    from korvet.redis.barrier import Level

# Interval of looks whether the logs are claimed in another history of the server's data.
_COMPARISON_S: Final = 0.5
# Limits the partitions that a line names.
_MOST_NAMED: Final = 10

log = logging.getLogger(__name__)


class LossCounts(Counted):
    """What was lost since the start: records with a server of Redis, leadership to other brokers."""

    shortened = counter(
        "korvet_shortened_logs_total",
        "Partitions of which records that clients could read were lost by such an election.",
    )
    fenced = counter(
        "korvet_fenced_appends_total",
        "Appends and claims that Redis refused because another broker leads the partition.",
    )


class Logs:
    """Opens the log of a partition on its first use, and closes it after its topic or its leadership is
    gone. A `ChangeListener`. Use from one event loop only.

    A log that is closed or configured answers those who wait for it. Their clients' next requests may open
    other logs, or close some, before the call returns.
    """

    def __init__(self, resources: LogResources) -> None:
        self.membership: Membership | None = None
        """None for tools: they are no brokers, and nobody fences them."""
        self.counts = LossCounts()
        self._resources = resources
        resources.on_fenced = self.fenced
        # By topic and partition.
        self._logs: dict[str, dict[int, PartitionLog]] = {}
        # The ends that readers knew before another history began, of logs that are not claimed in it yet.
        self._before: dict[tuple[str, int], int] = {}
        self._comparing: asyncio.Task[None] | None = None

    def follow(self, membership: Membership) -> None:
        """From now on use only the logs of partitions that `membership` assigns to this process."""
        self.membership = membership
        membership.changes.attach(self)

    def get(self, topic: Topic, partition: int) -> PartitionLog:
        """The one PartitionLog of a partition, opened on the first call."""
        logs = self._logs.get(topic.name)
        if logs is None:
            logs = self._logs[topic.name] = {}
        found = logs.get(partition)
        if found is None:
            found = logs[partition] = self._open(topic, partition)
        elif found.topic is not topic and found.topic.topic_id != topic.topic_id:
            replaced, found = found, self._open(topic, partition)
            logs[partition] = found
            replaced.close(TopicGone(f"topic {topic.name} was deleted and created again"))
        return found

    def opened(self, topic: str, partition: int) -> PartitionLog | None:
        """The PartitionLog of a partition, if it is open already."""
        return self._logs.get(topic, {}).get(partition)

    def leader_epoch_of(self, topic: str, partition: int) -> int | None:
        """The leader epoch in which this process leads a partition; None if it does not lead the partition,
        0 without a membership.
        """
        return 0 if self.membership is None else self.membership.leadership.leader_epoch_of(topic, partition)

    def is_led_by_another(self, topic: str, partition: int) -> bool:
        """Whether another broker leads a partition now, as far as is known. While a lease has expired, nobody
        leads the partitions of its broker.
        """
        member = self.membership
        if member is None:
            return False
        return member.leadership.assignment.leader(topic, partition).node_id not in (
            NO_NODE,
            member.leadership.node_id,
        )

    def fenced(self, refusal: FencedEpoch) -> None:
        """Look for the new assignment after an append was refused because another broker leads its
        partition.
        """
        self.counts.fenced += 1
        if self.membership is not None:
            self.membership.refresh_soon(refusal)

    async def payload_bytes(self, topic: Topic, partitions: Sequence[int] | None = None) -> list[int]:
        """The size of all fields and values in each of these partitions of a topic, or in all, with any
        leader. Raises StorageError. Function korvet_bounds.
        """
        commands = self._resources.commands
        numbers = range(topic.partitions) if partitions is None else partitions
        keys = (commands.keyspace.partition_keys(topic.name, number)[:3] for number in numbers)
        calls = (commands.fcall("korvet_bounds", one, topic.bias, read=True) for one in keys)
        return [int(reply[3]) for reply in await asyncio.gather(*calls)]

    # Changes

    def update(self, topic: Topic) -> None:
        """Give a topic's logs its new configuration."""
        for found in list(self._logs.get(topic.name, {}).values()):
            found.topic = topic

    def set_level(self, level: Level) -> None:
        """Change what the records of topics without configs of their own need."""
        if level == self._resources.level:
            return
        self._resources.level = level
        for found in [each for logs in self._logs.values() for each in logs.values()]:
            found.topic = found.topic

    def close_topic(self, name: str) -> None:
        """Refuse further use of a topic's logs, before the topic's keys are deleted."""
        gone = TopicGone(f"topic {name} is deleted")
        for found in self._logs.pop(name, {}).values():
            found.close(gone)
        self._before = {place: end for place, end in self._before.items() if place[0] != name}
        self._resources.counts.forget(name)
        if self.membership is not None:
            self.membership.leadership.assignment.forget(name)

    def follow_assignment(self) -> None:
        """Close the logs of partitions whose leader or leader epoch has changed. A partition that this
        process leads in a new epoch gets a new log on its next use.
        """
        if self.membership is not None and not self.membership.leadership.rejoins:
            self._resources.stale = None
        opened = [(name, logs, partition) for name, logs in self._logs.items() for partition in logs]
        for name, logs, partition in opened:
            found, epoch = logs.get(partition), self.leader_epoch_of(name, partition)
            if found is not None and epoch != found.epoch:
                former = found.epoch
                assert epoch is None or former is None or epoch > former, f"epoch {epoch} follows {former}"
                del logs[partition]
                found.close(self._not_led(name, partition))
        # The partitions are claimed next.
        self._resources.watermarks.note_lost()

    async def complete_changes(self) -> None:
        """See ChangeListener: `follow_assignment` has completed them."""

    def follow_servers(self, has_moved: Callable[[bytes], bool]) -> None:
        """Another history of the keys for which `has_moved(key)` is true begins, which may lack the newest
        writes. A broker leads all its partitions in new epochs after that, with
        new logs.
        """
        if self.membership is not None:
            log.warning("Redis was restarted or another server took over: its newest writes may be lost")
            self._compare_soon(has_moved)
            self._resources.stale = WritesRefused("Redis may have lost writes: new leader epochs are due")
            self.membership.rejoin()
            return
        for logs in self._logs.values():
            for found in logs.values():
                if has_moved(found.stream):
                    found.moved()

    def _compare_soon(self, has_moved: Callable[[bytes], bool]) -> None:
        """Find out what was lost, as soon as the logs are claimed in the new history."""
        for name, logs in self._logs.items():
            for partition, found in logs.items():
                if found.state.known.loaded and has_moved(found.stream):
                    place = name, partition
                    self._before[place] = max(self._before.get(place, 0), found.ends.high_watermark)
        if self._before and (self._comparing is None or self._comparing.done()):
            self._comparing = supervisor.once("comparison of logs", self._compare())

    async def _compare(self) -> None:
        count, lost = len(self._before), []
        while self._before:
            await asyncio.sleep(_COMPARISON_S)
            assert self.membership is not None
            if self.membership.leadership.rejoins:
                continue
            for place, before in list(self._before.items()):
                found = await self._lost_offsets(*place, before)
                if found is not None:
                    self._before.pop(place, None)
                if found:
                    lost.append(f"{place[0]}-{place[1]} (offsets {found.start} to {found.stop - 1})")
        if not lost:
            log.warning("nothing that clients could read before is lost: %d logs are compared", count)
            return
        self.counts.shortened += len(lost)
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        log.error("records that clients could read are lost: %s%s", ", ".join(lost[:_MOST_NAMED]), more)

    async def _lost_offsets(self, topic: str, partition: int, before: int) -> range | None:
        """The offsets below `before` that the log has lost; None if it is not claimed yet."""
        epoch = self.leader_epoch_of(topic, partition)
        if epoch is None:
            # Its new leader does not know where it ended.
            return range(0)
        try:
            end = await end_at_claim(self._resources.commands, topic, partition, epoch)
        except StorageError:
            return None
        return None if end is None else range(min(end, before), before)

    def follow_reconnection(self) -> None:
        """A connection to Redis was lost and is back: what Redis holds may have changed."""
        self._resources.tails.clear()
        self._resources.readaheads.clear()
        if self.membership is not None:
            self.membership.refresh_soon()

    async def close(self) -> None:
        """Refuse further use of all logs."""
        await supervisor.end(self._comparing)
        await self._resources.watcher.close()
        for name in list(self._logs):
            self.close_topic(name)
        await self._resources.watermarks.close()

    def _open(self, topic: Topic, partition: int) -> PartitionLog:
        if self.membership is None:
            return PartitionLog(self._resources, topic, partition)
        epoch = self.membership.leadership.leader_epoch_of(topic.name, partition)
        opened = PartitionLog(self._resources, topic, partition, epoch)
        if epoch is None:
            opened.close(self._not_led(topic.name, partition))
        else:
            opened.hold_reads()
            self._claim(opened)
        return opened

    def _claim(self, opened: PartitionLog) -> None:
        """Claim a log's partition: before its first append, so that Redis refuses appends of earlier leaders
        from then on.
        """
        self._resources.watermarks.note_former(opened.stream)
        keyspace, history = self._resources.commands.keyspace, opened.links.server.history.id
        claim = packed_claim(keyspace, opened.topic, opened.partition, opened.leader_epoch, history)
        opened.links.write_functions.send(claim, partial(self._claimed, opened))

    def _claimed(self, opened: PartitionLog, reply: memoryview | StorageError) -> None:
        refusal = domain_error(reply) if isinstance(reply, StorageError) else None
        if isinstance(refusal, FencedEpoch):
            opened.close(refusal)
            self.fenced(refusal)
        elif isinstance(refusal, PASSING) and not isinstance(refusal, WritesRefused):
            # The partition is claimed again on its next use.
            opened.close(refusal)
            logs = self._logs.get(opened.topic.name, {})
            if logs.get(opened.partition) is opened:
                del logs[opened.partition]
        elif refusal is not None:
            # Readers are served nevertheless.
            opened.await_claim(refusal, partial(self._claim, opened))
            opened.release_reads()
        else:
            opened.claimed()
            opened.release_reads()

    def _not_led(self, topic: str, partition: int) -> StorageError:
        lost = None if self.membership is None else self.membership.leadership.lost
        return lost or FencedEpoch(f"this broker does not lead {topic}-{partition}")
