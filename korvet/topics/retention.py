"""Housekeeping of the logs: retention by time and size, and the expiry of idle producers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

from korvet.causes import Causes
from korvet.logs import fields
from korvet.storage.errors import FencedEpoch, StorageError, TopicGone

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.config.live import LiveConfig
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.topics.configs import TopicPolicy
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)
causes = Causes(log)


async def keep_retention(topics: TopicDirectory, live: LiveConfig, now_ms: Callable[[], int]) -> NoReturn:
    """Apply retention to all partitions, idle ones too, at once and then every
    log.retention.check.interval.ms.
    """
    while True:
        await apply_retention(topics, live, now_ms())
        await asyncio.sleep(live.now.log_retention_check_interval_ms / 1000)


async def apply_retention(topics: TopicDirectory, live: LiveConfig, now_ms: int) -> int:
    """Trim every partition that this broker leads by its topic's policy. Returns the number of entries
    deleted.

    A failure of one partition is logged and does not stop the others.
    """
    producers_from_ms = now_ms - live.now.producer_id_expiration_ms
    deleted = 0
    for topic in topics.all():
        keeps_all = topics.keeps_all(topic)
        for partition in range(topic.partitions):
            try:
                found = topics.log(topic.name, partition)
                if found is None:
                    break
                # Other partitions are trimmed by their leaders.
                if not found.closed:
                    policy = None if keeps_all else topics.policy(topic)
                    deleted += await _apply(policy, found, producers_from_ms, now_ms)
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
    return deleted


async def _apply(
    policy: TopicPolicy | None, partition: PartitionLog, producers_from_ms: int, now_ms: int
) -> int:
    deleted = 0
    # A partition in compaction is trimmed in the next round; otherwise the compaction would never finish.
    if policy is not None and policy.deletes and not partition.compacting:
        deleted = await partition.trimming.trim(policy.retention_ms, policy.retention_bytes, now_ms)
    await partition.trimming.expire_producers(producers_from_ms)
    return deleted
