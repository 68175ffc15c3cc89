"""Housekeeping of the logs: retention by time, size and acceptance, and the expiry of idle producers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from korvet.causes import Causes
from korvet.logs import fields
from korvet.outlook.memory_forecast import Keeping
from korvet.redis.errors import FencedEpoch, StorageError, TopicGone
from korvet.redis.futures import awaited
from korvet.redis_groups.accepted import accepted_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.commands import Commands
    from korvet.topics.configs import TopicPolicy
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)
causes = Causes(log)

# Interval at which changes of topics and settings are noticed. Other brokers learn of them within a second.
_LOOK_S: Final = 0.25


class _Retention(NamedTuple):
    deletes: bool
    retention_ms: int
    retention_bytes: int
    deletes_accepted: bool
    keeps_all: bool


async def keep_retention(
    commands: Commands,
    topics: TopicDirectory,
    catalogue: Catalogue,
    live: LiveConfig,
    now_ms: Callable[[], int],
) -> NoReturn:
    """Apply retention to all partitions, idle ones too, at once and then every
    log.retention.check.interval.ms; to topics whose retention has changed within _LOOK_S.
    """
    clock = asyncio.get_running_loop().time
    due_s = clock()
    seen: tuple[int, Config] | None = None
    policies: Mapping[UUID, _Retention] = {}
    while True:
        now = catalogue.local_change, live.now
        if clock() >= due_s:
            seen, policies = now, _policies(topics)
            await apply_retention(commands, topics, live, topics.all(), now_ms())
            due_s = clock() + live.now.log_retention_check_interval_ms / 1000
        elif seen != now:
            before, seen, policies = policies, now, _policies(topics)
            changed = [
                topic
                for topic in topics.all()
                if before.get(topic.topic_id, policies[topic.topic_id]) != policies[topic.topic_id]
            ]
            await apply_retention(commands, topics, live, changed, now_ms())
        await asyncio.sleep(min(_LOOK_S, max(due_s - clock(), 0)))


def _policies(topics: TopicDirectory) -> dict[UUID, _Retention]:
    """What decides on the records of each topic."""
    found = ((topic, topics.policy(topic)) for topic in topics.all())
    return {
        topic.topic_id: _Retention(
            policy.deletes,
            policy.retention_ms,
            policy.retention_bytes,
            policy.deletes_accepted,
            topics.keeps_all(topic),
        )
        for topic, policy in found
    }


def keeping_of(topic: Topic, policy: TopicPolicy, *, keeps_all: bool = False) -> Keeping:
    """What retention keeps of a topic, for the forecast of memory."""
    if policy.compacts or topic.internal:
        return Keeping(None, None, grows=False)
    if keeps_all or not policy.deletes:
        return Keeping(None, None)
    return Keeping(_limit(policy.retention_ms), _limit(policy.retention_bytes))


def _limit(value: int) -> int | None:
    return None if value < 0 else value


async def apply_retention(
    commands: Commands, topics: TopicDirectory, live: LiveConfig, among: Iterable[Topic], now_ms: int
) -> None:
    """Trim every partition of some topics that this broker leads by its topic's policy.

    A failure of one partition is logged and does not stop the others.
    """
    producers_from_ms = now_ms - live.now.producer_id_expiration_ms
    for topic in among:
        keeps_all = topics.keeps_all(topic)
        for partition in range(topic.partitions):
            try:
                found = topics.log(topic.name, partition)
                if found is None:
                    break
                # Other partitions are trimmed by their leaders.
                if not found.closed:
                    policy = None if keeps_all else topics.policy(topic)
                    await _apply(commands, policy, found, producers_from_ms, now_ms)
                    causes.ended((topic.name, partition))
            except TopicGone:
                break
            except FencedEpoch:
                continue
            except StorageError as error:
                where = {"topic": topic.name, "partition": partition}
                place = topic.name, partition
                causes.warn(error, "retention of %s-%d: %s", *place, error, work=place, **where)
            except Exception:
                # A defect or damaged data must not keep the other partitions from being trimmed.
                extra = fields(topic=topic.name, partition=partition)
                log.exception("retention of %s-%d", topic.name, partition, extra=extra)


async def _apply(
    commands: Commands,
    policy: TopicPolicy | None,
    partition: PartitionLog,
    producers_from_ms: int,
    now_ms: int,
) -> None:
    # A partition in compaction is trimmed in the next round; otherwise the compaction would never finish.
    if policy is not None and policy.deletes and not partition.compacting:
        await partition.trimming.trim(policy.retention_ms, policy.retention_bytes, now_ms)
        if policy.deletes_accepted:
            await _delete_accepted(commands, partition)
    await partition.trimming.expire_producers(producers_from_ms)


async def _delete_accepted(commands: Commands, partition: PartitionLog) -> None:
    """Delete the records that all groups are done with, up to the last stable offset."""
    place = partition.topic.name, partition.partition, partition.bias
    accepted = await accepted_before(commands, *place)
    if accepted is None:
        return
    await awaited(partition.await_watermark)
    before = min(accepted, partition.ends.last_stable_offset)
    if before > partition.ends.local_log_start:
        await partition.trimming.delete_before(before)
