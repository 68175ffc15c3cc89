"""Commits what Redis applications do with Redis consumer groups, as records in `__consumer_offsets`.

In rounds: the Redis groups of all topics' partitions are read, and those that native consumers have moved
are handed to the coordinator of the Kafka group of their name (korvet.groups.native decides). Each broker
reads all of them and tells of those that it coordinates. Nothing is kept between two rounds: what a crash
interrupts, the next round does.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.storage.errors import StorageError
from korvet.storage.native import NativeGroups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.coordinator.service import CoordinatorService
    from korvet.storage.catalogue import Topic
    from korvet.storage.store import Store

log = logging.getLogger(__name__)

# Partitions read at once: about a millisecond of Redis where they have few groups.
STREAMS_AT_ONCE: Final = 200
# A round that took long is followed by a rest of so many times as long: reading takes a twentieth of Redis at
# most.
RESTS: Final = 19


class NativeExporter:
    """Exports from one keyspace every `interval_ms`, or less often where a round takes long."""

    def __init__(self, store: Store, coordinator: CoordinatorService, interval_ms: int) -> None:
        self._catalogue = store.catalogue
        self._groups = NativeGroups(store)
        self._coordinator = coordinator
        self._interval_ms = interval_ms

    async def run(self) -> NoReturn:
        """Export until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                await self.round()
            except StorageError as error:
                log.debug("Redis groups cannot be read: %s", error)
            except Exception:
                # A defect of ours: commits of clients go on.
                log.exception("a round over the Redis groups failed")
            took = clock() - began
            await asyncio.sleep(max(self._interval_ms / 1000 - took, RESTS * took))

    async def round(self) -> None:
        """Read the Redis groups of all partitions once, and commit what has moved. Raises StorageError."""
        self._groups.forget(self._catalogue.topics)
        streams = iter([*self._streams()])
        while some := list(islice(streams, STREAMS_AT_ONCE)):
            with self._coordinator.watch() as watch:
                if watch is None:
                    return
                moved = await self._groups.moved(some)
                for behind in self._coordinator.export(moved, watch):
                    await self._coordinator.project_again(behind, watch)

    def _streams(self) -> Iterator[tuple[Topic, int]]:
        """The partitions of all topics but internal ones: whoever reads commits would make more of them."""
        for topic in self._catalogue.topics.values():
            if not topic.internal:
                for partition in range(topic.partitions):
                    yield topic, partition
