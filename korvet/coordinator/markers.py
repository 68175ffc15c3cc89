"""Writes the markers that end a transaction into its partitions, and retries until each partition has its
marker.

Only the leader appends to a log. Markers for `__consumer_offsets` go through the group coordinator, for which
a marker decides which offsets count.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from kio.schema.errors import ErrorCode

from korvet.causes import Causes
from korvet.coordinator.served import RELEASE_TIMEOUT_MS
from korvet.records.control import ControlMarker
from korvet.redis.errors import FencedCoordinator, InvalidProducerEpoch, StorageError, TopicGone
from korvet.redis.futures import awaited
from korvet.redis.keys import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from korvet.cluster.catalogue import Catalogue
    from korvet.coordinator.service import CoordinatorService
    from korvet.log.broker_logs import Logs
    from korvet.transactions.messages import Markers, TopicPartition

logger = logging.getLogger(__name__)
causes = Causes(logger)

_FIRST_RETRY_S: Final = 0.02
_LAST_RETRY_S: Final = 1.0
_LASTING: Final = {
    TopicGone: ErrorCode.unknown_topic_or_partition,
    InvalidProducerEpoch: ErrorCode.invalid_producer_epoch,
    FencedCoordinator: ErrorCode.transaction_coordinator_fenced,
}
# A newer producer has written, which requires that this transaction has ended; or the topic was deleted.
_NEEDED_NO_MORE: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch})


class LocalMarkers:
    """Writes markers into partitions that this broker leads."""

    def __init__(
        self,
        logs: Logs,
        catalogue: Catalogue,
        groups: CoordinatorService,
        release_timeout_ms: int = RELEASE_TIMEOUT_MS,
    ) -> None:
        """`release_timeout_ms`: longest wait for the replicas that a topic asks for."""
        self._release_timeout_ms = release_timeout_ms
        self._logs = logs
        self._catalogue = catalogue
        self._groups = groups

    async def write(self, partition: TopicPartition, marker: ControlMarker) -> ErrorCode:
        """The error of one marker. UNKNOWN_TOPIC_OR_PARTITION, INVALID_PRODUCER_EPOCH and
        TRANSACTION_COORDINATOR_FENCED are final; other errors are retriable.
        """
        name, number = partition
        if not self._exists(partition):
            # Another broker may have created it.
            try:
                await self._catalogue.catch_up()
            except StorageError:
                return ErrorCode.request_timed_out
        topic = self._catalogue.get(name)
        if topic is None or not self._exists(partition):
            return ErrorCode.unknown_topic_or_partition
        if self._logs.leader_epoch_of(name, number) is None:
            return ErrorCode.not_leader_or_follower
        if name == OFFSETS_TOPIC:
            return await self._groups.mark(number, marker)
        log = self._logs.get(topic, number)
        try:
            marked = await awaited(partial(log.mark, marker))
            await awaited(partial(log.await_released, marked.end, self._release_timeout_ms))
        except StorageError as error:
            lasting = _LASTING.get(type(error))
            if lasting is None:
                message = "a marker for %s-%d is not written yet: %s"
                causes.warn(error, message, name, number, error, work=partition)
            return lasting or ErrorCode.request_timed_out
        causes.ended(partition)
        return ErrorCode.none

    def _exists(self, partition: TopicPartition) -> bool:
        topic = self._catalogue.get(partition[0])
        return topic is not None and 0 <= partition[1] < topic.partitions


class MarkerWriter:
    """Writes the markers of one coordinator's transactions by write(partition, marker):
    LocalMarkers.write, or a function that asks another broker.
    """

    def __init__(self, write: Callable[[TopicPartition, ControlMarker], Awaitable[ErrorCode]]) -> None:
        self._write_one = write

    async def write(
        self,
        markers: Markers,
        coordinator_epoch: int,
        written: Callable[[Markers], None],
        is_over: Callable[[], bool],
    ) -> None:
        """Write all markers; written(markers) is called for each partition. Ends early if is_over() is
        true.
        """
        marker = ControlMarker(
            markers.producer_id,
            markers.producer_epoch,
            markers.committed,
            coordinator_epoch,
            markers.decided_ms,
        )

        async def one(partition: TopicPartition) -> None:
            if await self._write(partition, marker, is_over):
                written(msgspec.structs.replace(markers, partitions=frozenset({partition})))

        await asyncio.gather(*(one(partition) for partition in sorted(markers.partitions)))

    async def _write(
        self, partition: TopicPartition, marker: ControlMarker, is_over: Callable[[], bool]
    ) -> bool:
        """Whether a partition has its marker, or does not need one any more."""
        delay_s = _FIRST_RETRY_S
        while not is_over():
            try:
                error = await self._write_one(partition, marker)
            except Exception:
                # The other partitions of the transaction get their markers; this one is retried.
                logger.exception("a marker for %s-%d cannot be written", *partition)
                error = ErrorCode.unknown_server_error
            if error is ErrorCode.none or error in _NEEDED_NO_MORE:
                return True
            if error is ErrorCode.transaction_coordinator_fenced:
                return False
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _LAST_RETRY_S)
        return False
