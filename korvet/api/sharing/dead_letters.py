"""Writes dead letters (KIP-1191): of each record that a share group has given up, one into the group's dead
letter topic. Only after that the record is archived, so a letter may be written twice, and none is lost.

The partition of a letter is the partition of its record, modulo the number of partitions. Brokers that do not
lead it send the batch to its leader.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from korvet.api.sharing.batches import append
from korvet.api.sharing.leader_mail import LeaderMail
from korvet.api.sharing.letters import batches_of, letter_of
from korvet.causes import Causes
from korvet.records.native import native_rule
from korvet.redis.errors import StorageError
from korvet.slices import sliced
from korvet.supervisor import end, once
from korvet.topics.configs import DEAD_LETTER_ENABLE, TIMESTAMP_TYPE
from korvet.topics.errors import TopicError, TopicExists

if TYPE_CHECKING:
    from korvet.api.sharing.configs import ShareConfig
    from korvet.api.sharing.counts import ShareCounts
    from korvet.api.sharing.partition import SharedPartition
    from korvet.cluster.leadership import Leadership
    from korvet.cluster.mailbox import Mailbox
    from korvet.cluster.shared_writes import SharedWrites
    from korvet.cluster.topic import Topic
    from korvet.config.live import LiveConfig
    from korvet.groups.share.messages import SharePartition
    from korvet.topics.directory import TopicDirectory

causes = Causes(logging.getLogger(__name__))

_WRITE: Final = "write dead letters"
# Letters that are read at once, and the bytes of a batch that goes by mail.
_AT_ONCE, _MAIL_BYTES = 1_000, 1 << 20
# Limits the partitions whose letters are in memory at once: those of one have 4 MB, or a larger record.
_PARTITIONS_AT_ONCE: Final = 8
# Rest after a failure.
_RETRY_S: Final = 5.0


class UnusableTopic(Exception):
    """The topic cannot take dead letters, because of its name or its configs."""


class DeadLetters:
    """Writes the dead letters of partitions that this broker leads, and those that other brokers send."""

    def __init__(
        self,
        topics: TopicDirectory,
        leadership: Leadership,
        mailbox: Mailbox,
        live: LiveConfig,
        shared_writes: SharedWrites,
        counts: ShareCounts,
    ) -> None:
        self._topics = topics
        self._leaders = LeaderMail(leadership, mailbox, _WRITE, self._append)
        self._live = live
        self._shared_writes = shared_writes
        self._counts = counts
        # The partitions whose letters are being written, or could not be written a moment ago.
        self._busy: set[SharePartition] = set()
        self._turns = asyncio.Semaphore(_PARTITIONS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def write_soon(self, partition: SharedPartition, config: ShareConfig) -> None:
        """Write the dead letters of a partition, unless that is under way or has just failed."""
        if partition.place not in self._busy:
            self._busy.add(partition.place)
            task = once("dead letters", self._write(partition, config))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop writing."""
        await end(*self._tasks)
        await self._leaders.close()

    async def _write(self, partition: SharedPartition, config: ShareConfig) -> None:
        place, rest_s = partition.place, _RETRY_S
        try:
            while not partition.log.closed and await partition.dead(config, 1, copies=False):
                async with self._turns:
                    await self._write_some(partition, config)
            rest_s = 0.0
            causes.ended(place)
        except (StorageError, UnusableTopic, TopicError) as error:
            self._counts.failed_letters += 1
            of = place.group_id, place.topic, place.partition
            causes.warn(error, "dead letters of group %r in %s-%d wait: %s", *of, error, work=place)
        finally:
            asyncio.get_running_loop().call_later(rest_s, self._busy.discard, place)

    async def _write_some(self, partition: SharedPartition, config: ShareConfig) -> None:
        """Write some of the dead letters that wait, and archive their records."""
        topic = await self._topic(config.dead_letter_topic)
        max_bytes = min(self._topics.policy(topic).max_message_bytes, _MAIL_BYTES)
        native = native_rule(partition.log.topic.native_format)
        dead = await partition.dead(config, _AT_ONCE, copies=config.copies_dead)
        due = [one for one in dead if not one.is_gap]
        letters = [letter_of(partition.place, one, native, max_bytes) async for one in sliced(due)]
        for records, batch in batches_of(letters, int(time.time() * 1000), max_bytes):
            await self._leaders.ask(topic.name, partition.place.partition % topic.partitions, batch)
            await partition.queue.forget_dead(records)
            self._counts.letters += len(records)
        if len(due) < len(dead):
            await partition.queue.forget_dead(one for one in dead if one.is_gap)

    async def _topic(self, name: str) -> Topic:
        """The dead letter topic of that name. Raises UnusableTopic, TopicError and StorageError."""
        prefix = self._live.now.errors_deadletterqueue_topic_name_prefix
        if not name.startswith(prefix):
            raise UnusableTopic(f"the name of the dead letter topic {name} does not begin with {prefix}")
        topic = self._topics.get(name)
        if topic is None:
            topic = await self._create(name)
        if topic.internal or self._topics.is_alias(topic):
            raise UnusableTopic(f"{name} is written by the broker only")
        if topic.configs.get(DEAD_LETTER_ENABLE) != "true":
            raise UnusableTopic(f"the dead letter topic {name} has no {DEAD_LETTER_ENABLE}=true")
        if self._topics.policy(topic).compacts:
            raise UnusableTopic(f"the dead letter topic {name} is compacted, and dead letters may lack a key")
        return topic

    async def _create(self, name: str) -> Topic:
        if not self._live.now.errors_deadletterqueue_auto_create_topics_enable:
            raise UnusableTopic(f"the dead letter topic {name} does not exist")
        before = self._shared_writes.before()
        configs = {DEAD_LETTER_ENABLE: "true", TIMESTAMP_TYPE: "CreateTime"}
        try:
            topic = await self._topics.create(name, self._live.now.num_partitions, configs)
        except TopicExists:
            found = self._topics.get(name)
            if found is None:
                raise
            topic = found
        await self._shared_writes.replicated(before)
        return topic

    async def _append(self, topic: str, index: int, batch: bytes) -> None:
        """Append a batch to a partition that this broker leads. Raises StorageError."""
        log = self._topics.log(topic, index)
        if log is None:
            raise StorageError(f"there is no partition {topic}-{index}")
        await append(log, batch, self._live.now.offsets_commit_timeout_ms)
