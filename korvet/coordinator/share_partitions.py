"""The states of share groups' partitions outside of `__consumer_offsets`: Redis groups of the same names.

The coordinator of a share group makes the state of a partition before members get it, and removes it with the
group. Members acquire and acknowledge records at the leader of the partition.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from korvet.groups.own_configs import EARLIEST, reset_age_ms
from korvet.redis_groups.projection import entry_id_before
from korvet.redis_groups.share import FROM_END, FROM_START, ShareQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic
    from korvet.groups.share.messages import SharePartition
    from korvet.log.broker_logs import Logs
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.commands import Commands
    from korvet.redis_groups.share import QueueView


class SharePartitions(Protocol):
    """What a coordinator does with the states. All methods may be repeated, and raise StorageError. The topic
    of a partition may be gone.
    """

    async def initialise(self, place: SharePartition, reset: str) -> None:
        """Make the state of a partition, unless it exists. reset: where the group begins, as in
        share.auto.offset.reset.
        """

    async def restart(self, place: SharePartition, offset: int) -> None:
        """Make the state of a partition anew: the group begins with that offset."""

    async def remove(self, place: SharePartition) -> None:
        """Remove the state of a partition, if it exists."""

    async def view(self, place: SharePartition) -> QueueView | None:
        """The state of a partition; None if it does not exist."""


class RedisSharePartitions:
    """SharePartitions in one keyspace."""

    __slots__ = ("_catalogue", "_commands", "_logs")

    def __init__(self, commands: Commands, logs: Logs, catalogue: Catalogue) -> None:
        self._commands = commands
        self._logs = logs
        self._catalogue = catalogue

    async def initialise(self, place: SharePartition, reset: str) -> None:
        """See SharePartitions."""
        topic = self._topic(place)
        if topic is not None:
            queue = ShareQueue(self._commands, topic, place.partition, place.group_id)
            await begin(queue, reset, partial(self._logs.get, topic, place.partition))

    async def restart(self, place: SharePartition, offset: int) -> None:
        """See SharePartitions. Also native consumers lose what they have."""
        topic = self._topic(place)
        if topic is not None:
            queue = ShareQueue(self._commands, topic, place.partition, place.group_id)
            await queue.restart(entry_id_before(offset, topic.bias))

    async def view(self, place: SharePartition) -> QueueView | None:
        """See SharePartitions."""
        topic = self._topic(place)
        if topic is None:
            return None
        return await ShareQueue(self._commands, topic, place.partition, place.group_id).view()

    async def remove(self, place: SharePartition) -> None:
        """See SharePartitions (XGROUP DESTROY)."""
        topic = self._topic(place)
        if topic is not None:
            stream = self._commands.keyspace.stream(topic.name, place.partition)
            if await self._commands.call("EXISTS", stream):
                await self._commands.call("XGROUP", "DESTROY", stream, place.group_id)

    def _topic(self, place: SharePartition) -> Topic | None:
        topic = self._catalogue.get(place.topic)
        return topic if topic is not None and topic.topic_id.bytes == place.topic_id else None


async def begin(queue: ShareQueue, reset: str, log: Callable[[], PartitionLog]) -> None:
    """Make the Redis group of a queue, unless it exists. reset: as in share.auto.offset.reset; `log` is asked
    for the log if the group begins at a time. Raises StorageError.
    """
    age_ms, after = reset_age_ms(reset), FROM_START if reset == EARLIEST else FROM_END
    if age_ms is not None:
        timed = log()
        found = await timed.queries.offset_for_timestamp(timed.links.clock.now_ms() - age_ms)
        after = FROM_END if found is None else entry_id_before(found[0], timed.bias)
    await queue.initialise(after)
