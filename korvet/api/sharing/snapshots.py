"""Writes the states of share groups to `__share_group_state` (KIP-932), for readers of that topic.

Every broker collects what changes where it leads partitions, and in the groups that it coordinates. Now and
then it tells the leaders of the partitions of `__share_group_state`. These look at the pending entries as
they are then, and write a snapshot if it differs from the last one, or a tombstone. So each state has one
writer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from korvet.api.sharing.batches import append, encoded, encoded_number, fitting, record_batch
from korvet.api.sharing.leader_mail import LeaderMail
from korvet.api.sharing.sharing import rest_s
from korvet.api.sharing.states import batches_of, delivery_complete_count
from korvet.causes import Causes
from korvet.coordinator.share_changes import ShareChange
from korvet.offsets.share_state import (
    ShareSnapshot,
    ShareStateKey,
    decode_share_value,
    encode_share_key,
    encode_share_value,
    share_state_partition_for,
)
from korvet.offsets.wire import DecodeError
from korvet.redis.errors import StorageError
from korvet.redis.keys import SHARE_STATES_TOPIC
from korvet.redis_groups.share import ShareQueue
from korvet.slices import gathered
from korvet.topics.errors import TopicError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from korvet.cluster.leadership import Leadership
    from korvet.cluster.mailbox import Mailbox
    from korvet.config.live import LiveConfig
    from korvet.coordinator.share_changes import ShareChanges
    from korvet.groups.share.messages import SharePartition
    from korvet.log.partition_log import PartitionLog
    from korvet.offsets.share_state import StateBatch
    from korvet.redis.commands import Commands
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)
causes = Causes(log)

_WRITE: Final = "write share states"
# The bounds of the pause between two snapshots of a state. Writes take long also while a leader is gone.
_LEAST_REST_S, _LONGEST_REST_S = 2.0, 10.0
# How long the last changes may keep a broker from stopping.
_LAST_S: Final = 1.0
# Limits a mail, and what its answer has to wait for.
_STATES_IN_MAIL: Final = 200
_BATCH_BYTES: Final = 1 << 20
# Limits the commands in flight, which clients' commands wait for: a look takes Redis up to some ms.
_LOOKS_AT_ONCE: Final = 8
_CHANGES: Final = msgspec.msgpack.Decoder(list[ShareChange])


class ShareSnapshots:
    """Takes the changes of this broker to the leaders, and writes what is theirs."""

    def __init__(
        self,
        commands: Commands,
        topics: TopicDirectory,
        leadership: Leadership,
        mailbox: Mailbox,
        live: LiveConfig,
        changes: ShareChanges,
    ) -> None:
        self._commands = commands
        self._topics = topics
        self._leadership = leadership
        self._live = live
        self._changes = changes
        self._leaders = LeaderMail(leadership, mailbox, _WRITE, self._write)
        # Each state has its last snapshot read and the next one written by one task.
        self._writing = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Write what changes."""
        clock, took_s = asyncio.get_running_loop().time, 0.0
        while True:
            await asyncio.sleep(rest_s(took_s, _LEAST_REST_S, _LONGEST_REST_S))
            began_s = clock()
            await self.flush()
            took_s = clock() - began_s

    async def close(self) -> None:
        """Write what changed last, if that is possible soon, and stop writing for others."""
        try:
            async with asyncio.timeout(_LAST_S):
                await self.flush()
        except TimeoutError:
            log.info("the last changes of share groups are not written")
        await self._leaders.close()

    async def flush(self) -> None:
        """Let the leaders write all changes. What fails is kept for the next time."""
        changes = self._changes.take()
        if not changes:
            return
        try:
            topic = self._topics.get(SHARE_STATES_TOPIC)
            topic = topic or await self._topics.get_or_create(SHARE_STATES_TOPIC)
        except (StorageError, TopicError) as error:
            self._put_back(changes, error, SHARE_STATES_TOPIC)
            return
        causes.ended(SHARE_STATES_TOPIC)
        by_partition: dict[int, list[ShareChange]] = defaultdict(list)
        for change in changes:
            number = share_state_partition_for(_key_of(change.place), topic.partitions)
            by_partition[number].append(change)
        await gathered(
            (
                self._send(number, some[first : first + _STATES_IN_MAIL])
                for number, some in by_partition.items()
                for first in range(0, len(some), _STATES_IN_MAIL)
            ),
            _LOOKS_AT_ONCE,
        )

    async def _send(self, number: int, changes: list[ShareChange]) -> None:
        try:
            await self._leaders.ask(SHARE_STATES_TOPIC, number, msgspec.msgpack.encode(changes))
        except StorageError as error:
            self._put_back(changes, error, number)
        else:
            causes.ended(number)

    def _put_back(self, changes: list[ShareChange], error: Exception, work: Hashable) -> None:
        self._changes.put_back(changes)
        causes.warn(error, "states of share groups are not written yet: %s", error, work=work)

    # Of partitions of `__share_group_state` that this broker leads

    async def _write(self, topic: str, number: int, body: bytes) -> None:
        led = self._topics.log(topic, number)
        if led is None:
            raise StorageError(f"there is no partition {topic}-{number}")
        async with self._writing:
            now_ms = int(time.time() * 1000)
            looks = (self._record(led, change, now_ms) for change in _CHANGES.decode(body))
            records = [record for record in await gathered(looks, _LOOKS_AT_ONCE) if record is not None]
            for some in fitting(records, lambda record: record, _BATCH_BYTES):
                batch = record_batch(some, now_ms)
                await append(led, batch, self._live.now.offsets_commit_timeout_ms)

    async def _record(self, log: PartitionLog, change: ShareChange, now_ms: int) -> bytes | None:
        """The record that is due, from its key on; None without one."""
        key = encode_share_key(_key_of(change.place))
        is_known, last = await _last(log, key)
        name, value = change.place.topic, None
        # Another broker may have just created it.
        topic = self._topics.get(name) or await self._topics.look_again(name, None)
        if topic is None or topic.topic_id.bytes != change.place.topic_id or change.gone:
            if not is_known:
                return None
        else:
            queue = ShareQueue(self._commands, topic, change.place.partition, change.place.group_id)
            snapshot = await self._snapshot(queue, change, last, now_ms)
            if snapshot is None:
                return None
            value = encode_share_value(snapshot)
        return encoded(key) + encoded(value) + encoded_number(0)

    async def _snapshot(
        self, queue: ShareQueue, change: ShareChange, last: ShareSnapshot | None, now_ms: int
    ) -> ShareSnapshot | None:
        """The state as it is; None if it is the same as in the last snapshot, or Redis has lost it."""
        view = await queue.pending()
        if view is None:
            return None
        place, epoch = change.place, 0
        before: tuple[StateBatch, ...] = ()
        created_ms = now_ms
        if last is not None and change.group_epoch is None:
            before, created_ms, epoch = last.state_batches, last.create_timestamp, last.state_epoch
        elif change.group_epoch is not None:
            epoch = max(change.group_epoch, 0 if last is None else last.state_epoch + 1)
        snapshot = ShareSnapshot(
            snapshot_epoch=0 if last is None else last.snapshot_epoch + 1,
            state_epoch=epoch,
            leader_epoch=self._leader_epoch(place),
            start_offset=view.start,
            create_timestamp=created_ms,
            write_timestamp=now_ms,
            state_batches=batches_of(view, before, change.given_up),
            delivery_complete_count=delivery_complete_count(view),
        )
        return None if last is not None and _is_repeated(snapshot, last) else snapshot

    def _leader_epoch(self, place: SharePartition) -> int:
        return self._leadership.assignment.leader(place.topic, place.partition).epoch


def _key_of(place: SharePartition) -> ShareStateKey:
    return ShareStateKey(place.group_id, place.topic_id, place.partition)


def _is_repeated(snapshot: ShareSnapshot, last: ShareSnapshot) -> bool:
    """Whether a snapshot tells nothing new."""
    same_times = replace(snapshot, snapshot_epoch=last.snapshot_epoch, write_timestamp=last.write_timestamp)
    return last == same_times


async def _last(log: PartitionLog, key: bytes) -> tuple[bool, ShareSnapshot | None]:
    """Whether there is a record with a key, and the snapshot in the newest one; None if it is damaged."""
    name = await log.links.read.call("HGET", log.keys[3], key)
    if name is None:
        return False, None
    entries = await log.links.read.call("XRANGE", log.stream, name, name)
    fields = dict(zip(entries[0][1][::2], entries[0][1][1::2], strict=True)) if entries else {}
    try:
        value = decode_share_value(ShareStateKey("", b"", 0), fields.get(b"value"))
    except DecodeError:
        value = None
    return True, value if isinstance(value, ShareSnapshot) else None
