"""Commits what Redis applications acknowledge in Redis consumer groups, as records in `__consumer_offsets`.

It works in rounds: a round reads the Redis groups of all topics' partitions and passes those that native
consumers have moved to the coordinator of the Kafka group of that name (korvet.groups.native decides). Each
broker reads all Redis groups and commits for the groups that it coordinates. A round depends on no earlier
one: the next round does what a crash has interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.redis.errors import StorageError
from korvet.redis_groups.moved_groups import NativeGroups

if TYPE_CHECKING:
    from korvet.cluster.catalogue import Catalogue
    from korvet.cluster.topic import Topic
    from korvet.coordinator.service import CoordinatorService
    from korvet.redis.commands import Commands

log = logging.getLogger(__name__)

# Limits the partitions read at once: about 1 ms of Redis's time if each has few groups.
STREAMS_AT_ONCE: Final = 200
# Limits the partitions of a round. If there are more, those whose groups moved lately come first, and the
# others take turns.
MOST_STREAMS: Final = 1_000
LATELY_ROUNDS: Final = 60
# After a round, the exporter rests for this multiple of the round's time: reading takes at most a twentieth
# of Redis's time.
RESTS: Final = 19
# Rests after failed appends.
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 60.0


class NativeExporter:
    """Exports from one keyspace every `interval_ms`, or less often if a round takes long."""

    def __init__(
        self, commands: Commands, catalogue: Catalogue, coordinator: CoordinatorService, interval_ms: int
    ) -> None:
        self._catalogue = catalogue
        self._groups = NativeGroups(commands)
        self._coordinator = coordinator
        self._interval_ms = interval_ms
        # Partitions whose groups have moved, and the number of rounds for which that is remembered.
        self._lately: dict[tuple[str, int], int] = {}
        self._turn = 0
        self._reloads = coordinator.reloads
        self._patience_s = 0.0

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
                # A defect: the commits of clients continue.
                log.exception("a round over the Redis groups failed")
            await asyncio.sleep(self._rest_s(clock() - began))

    def _rest_s(self, took_s: float) -> float:
        """The rest after a round, in seconds. A commit that cannot be appended (Redis is full, for
        example) makes the clients' groups reload; so the rest becomes longer and longer.
        """
        before, self._reloads = self._reloads, self._coordinator.reloads
        patience_s = min(max(2 * self._patience_s, FIRST_RETRY_S), LAST_RETRY_S)
        self._patience_s = patience_s if self._reloads > before else 0.0
        return max(self._interval_ms / 1000 - took_s, RESTS * took_s, self._patience_s)

    async def round(self) -> None:
        """Read the Redis groups of all partitions, or of those whose turn it is, and commit what has
        moved. Raises StorageError.
        """
        self._groups.forget(self._catalogue.topics)
        due = self._due()
        diverged = 0
        for at in range(0, len(due), STREAMS_AT_ONCE):
            with self._coordinator.watch() as watch:
                if watch is None:
                    return
                moved = await self._groups.moved(due[at : at + STREAMS_AT_ONCE])
                for native in moved:
                    self._lately[native.topic, native.partition] = LATELY_ROUNDS
                for behind in self._coordinator.export(moved, watch):
                    diverged += 1
                    await self._coordinator.project_again(behind, watch)
        self._coordinator.counts.diverged_groups = diverged

    def _due(self) -> list[tuple[Topic, int]]:
        """The partitions of this round. Internal topics are left out: a consumer of commits would cause
        further commits.
        """
        self._lately = {key: rounds - 1 for key, rounds in self._lately.items() if rounds > 1}
        streams = [
            (topic, partition)
            for topic in self._catalogue.topics.values()
            if not topic.internal
            for partition in range(topic.partitions)
        ]
        if len(streams) <= MOST_STREAMS:
            return streams
        lately = [stream for stream in streams if (stream[0].name, stream[1]) in self._lately]
        others = [stream for stream in streams if (stream[0].name, stream[1]) not in self._lately]
        count = min(len(others), max(MOST_STREAMS - len(lately), STREAMS_AT_ONCE))
        first = self._turn % max(len(others), 1)
        self._turn = first + count
        return lately + (others[first:] + others[:first])[:count]
