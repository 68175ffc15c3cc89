"""Housekeeping of compacted topics: which partitions are compacted and when, and the history that
`__consumer_offsets` keeps.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

from korvet.causes import Causes
from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.logs import fields
from korvet.metrics.counted import Counted, counter, gauge
from korvet.redis.errors import FencedEpoch, StorageError, TopicGone
from korvet.topics.configs import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from korvet.cluster.topic import Topic
    from korvet.config.live import LiveConfig
    from korvet.config.settings import Config
    from korvet.log.broker_logs import Logs
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.commands import Commands
    from korvet.topics.directory import TopicDirectory

log = logging.getLogger(__name__)
causes = Causes(log)


class CompactionCounts(Counted):
    """The compactions of a broker since the start."""

    runs = counter("korvet_compactions_total", "Compactions of one partition.")
    removed = counter("korvet_compaction_removed_records_total", "Records that compactions removed.")
    seconds: float = counter("korvet_compaction_seconds_total", "Time of compactions in seconds.")
    failed = counter("korvet_compaction_failures_total", "Compactions that failed.")
    passes = counter(
        "korvet_compaction_passes_total", "Passes over all topics that looked for due compactions."
    )
    left = gauge(
        "korvet_compaction_partitions_left",
        "Partitions at which the pass in progress has yet to look.",
    )

    def ran(self, removed: int, seconds: float) -> None:
        """Count a compaction."""
        self.runs += 1
        self.removed += removed
        self.seconds += seconds


class LogCleaner:
    """Compacts the partitions that this broker leads, of topics with cleanup.policy=compact, one after the
    other.
    """

    def __init__(
        self,
        commands: Commands,
        logs: Logs,
        topics: TopicDirectory,
        live: LiveConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._commands = commands
        self._logs = logs
        self._topics = topics
        self._live = live
        self._now_ms = now_ms
        self._pace = Pace(live.now.log_cleaner_io_max_bytes_per_second)
        live.follow(self._follow)
        # The leader epoch in which the leftovers of a crash were removed from a partition.
        self._tidied: dict[tuple[UUID, int], int] = {}
        self.counts = CompactionCounts()
        """What is counted of the compactions."""

    def _follow(self, config: Config) -> None:
        self._pace.bytes_per_s = config.log_cleaner_io_max_bytes_per_second

    async def run(self) -> NoReturn:
        """Check all partitions at once, and then every log.cleaner.backoff.ms."""
        while True:
            await self.clean()
            await self._live.pause(lambda config: config.log_cleaner_backoff_ms / 1000)

    async def clean(self) -> int:
        """Compact every partition that is due. Returns the number of records removed.

        A failure of one partition is logged and does not stop the others.
        """
        removed = 0
        topics = list(self._topics.all())
        self.counts.left = sum(topic.partitions for topic in topics)
        if len(self._tidied) > self.counts.left:
            existing = {topic.topic_id for topic in topics}
            self._tidied = {place: each for place, each in self._tidied.items() if place[0] in existing}
        for topic in topics:
            removed += await self._clean_topic(topic)
            self.counts.left = max(self.counts.left - topic.partitions, 0)
        self.counts.passes += 1
        return removed

    async def _clean_topic(self, topic: Topic) -> int:
        try:
            shares = await self._history_shares(topic)
        except StorageError as error:
            causes.warn(error, "compaction of %s: %s", topic.name, error, work=topic.name)
            return 0
        except Exception:
            log.exception("compaction of %s", topic.name)
            return 0
        causes.ended(topic.name)
        removed = 0
        for partition in range(topic.partitions):
            found = self._topics.log(topic.name, partition)
            if found is None:
                break
            if found.closed:
                # The partition's leader compacts it.
                continue
            try:
                removed += await self._clean(found, shares)
                causes.ended((topic.name, partition))
            except TopicGone:
                break
            except FencedEpoch:
                continue
            except StorageError as error:
                self.counts.failed += 1
                where = {"topic": topic.name, "partition": partition}
                place = topic.name, partition
                causes.warn(error, "compaction of %s-%d: %s", *place, error, work=place, **where)
            except Exception:
                # A defect must not keep the other partitions from being compacted.
                self.counts.failed += 1
                extra = fields(topic=topic.name, partition=partition)
                log.exception("compaction of %s-%d", topic.name, partition, extra=extra)
        return removed

    async def _clean(self, partition: PartitionLog, shares: list[int] | None) -> int:
        topic = partition.topic
        policy = self._topics.policy(topic)
        enabled = self._live.now.log_cleaner_enable and not self._topics.keeps_all(topic)
        compacts = policy.compacts and enabled
        place = topic.topic_id, partition.partition
        is_tidy = self._tidied.get(place) == partition.leader_epoch
        if is_tidy and not compacts:
            return 0
        map_bytes = self._live.now.log_cleaner_dedupe_buffer_size
        compactor = Compactor(self._commands, partition, self._pace, map_bytes)
        if not is_tidy:
            await compactor.drop_leftovers()
            self._tidied[place] = partition.leader_epoch
        if not compacts:
            return 0
        rules = CompactionRules(
            delete_retention_ms=policy.delete_retention_ms,
            min_lag_ms=policy.min_compaction_lag_ms,
            max_lag_ms=None if policy.max_compaction_lag_ms == INT64_MAX else policy.max_compaction_lag_ms,
            min_dirty_ratio=policy.min_cleanable_dirty_ratio,
            history_ms=self._live.now.offsets_history_retention_ms if topic.keeps_history else None,
            history_bytes=None if shares is None else shares[partition.partition],
        )
        began_s = perf_counter()
        removed = await compactor.compact(rules, self._now_ms())
        if compactor.has_run:
            self.counts.ran(removed, perf_counter() - began_s)
        return removed

    async def _history_shares(self, topic: Topic) -> list[int] | None:
        """Bytes of history that each partition of the internal topic may keep; None if all history may be
        kept.
        """
        most = self._live.now.offsets_history_retention_bytes
        if not topic.keeps_history or most < 0:
            return None
        sizes = await self._logs.payload_bytes(topic)
        total = sum(sizes)
        return None if total <= most else [size * most // total for size in sizes]
