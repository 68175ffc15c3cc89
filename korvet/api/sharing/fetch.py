"""A ShareFetch from its arrival to its response: acquires records within limits, and waits for some.

Partitions are asked one after the other, because each uses up a part of the limits. The next fetch asks those
last that returned records. Partitions that cannot have records are not asked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.api.common.errors import Asked, error_code_of
from korvet.api.sharing.partition import NotInitialised
from korvet.api.sharing.requests import Outcome, locate
from korvet.redis.errors import StorageError
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.api.common.context import RequestContext
    from korvet.api.sharing.configs import ShareConfig
    from korvet.api.sharing.partition import SharedPartition
    from korvet.api.sharing.sessions import SharedKey, ShareSession
    from korvet.redis_groups.share import Acquired, Run

# The part of a lock for which records are kept while a fetch waits for min_bytes.
_HELD_PART: Final = 4
# Limits a response, even if the client asks for more: Kafka's broker setting fetch.max.bytes.
_MAX_BYTES: Final = 55 * 1024 * 1024
# Kafka's error, after which clients ask again.
_NOT_INITIALISED: Final = Outcome(
    ErrorCode.unknown_server_error, "The share group has no state in this partition"
)


class FetchedRecords:
    """What a fetch has acquired in one partition."""

    __slots__ = ("data", "runs")

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.runs: list[Run] = []


class ShareFetch:
    """One fetch of a session."""

    def __init__(
        self, context: RequestContext, request: Any, session: ShareSession, config: ShareConfig
    ) -> None:
        self._context = context
        self._session = session
        self._config = config
        self._records_left: int = request.max_records
        self._bytes_left: int = min(request.max_bytes, _MAX_BYTES)
        self._min_bytes: int = max(request.min_bytes, 1)
        self._size_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._ends_s = self._loop.time() + request.max_wait.total_seconds()
        self.found: dict[SharedKey, FetchedRecords] = {}
        """What was acquired, in the order of the offsets."""
        self.errors: dict[SharedKey, Outcome] = {}
        """Partitions that cannot be read."""

    async def run(self) -> None:
        """Acquire records, waiting if there are too few."""
        woken = asyncio.Event()
        while True:
            partitions = await self._located()
            if not self._has_room:
                return
            woken.clear()
            for partition in partitions.values():
                partition.wait(woken.set)
            try:
                for key, partition in partitions.items():
                    await self._acquire(key, partition)
                if self.errors or self._size_bytes >= self._min_bytes or self._loop.time() >= self._ends_s:
                    return
                await self._wait(partitions.values(), woken)
            finally:
                for partition in partitions.values():
                    partition.forget(woken.set)

    async def _located(self) -> dict[SharedKey, SharedPartition]:
        """The partitions that can be read."""
        self.errors.clear()
        partitions: dict[SharedKey, SharedPartition] = {}
        async for key in sliced(list(self._session.partitions)):
            place = locate(self._context, self._session.group, key)
            if isinstance(place, Outcome):
                self.errors[key] = place
            else:
                partitions[key] = place
        return partitions

    async def _acquire(self, key: SharedKey, partition: SharedPartition) -> None:
        """Acquire what there is in one partition, after what this fetch has acquired there before."""
        found = self.found.get(key)
        after = found.runs[-1].last if found is not None else None
        while self._has_room and partition.may_have_records(self._loop.time()):
            try:
                acquired = await partition.acquire(
                    self._session.member, self._config, self._records_left, self._bytes_left, after
                )
            except NotInitialised:
                self.errors[key] = _NOT_INITIALISED
                return
            except StorageError as error:
                self.errors[key] = Outcome(error_code_of(error, Asked.READ), str(error))
                return
            if acquired.runs:
                self._take(key, partition, acquired)
            if acquired.runs or not acquired.has_more:
                return

    def _take(self, key: SharedKey, partition: SharedPartition, acquired: Acquired) -> None:
        found, data = self.found.setdefault(key, FetchedRecords()), acquired.data
        found.runs += acquired.runs
        found.data.append(data)
        self._records_left -= acquired.records
        self._bytes_left -= len(data)
        if not self._size_bytes:
            held_s = self._config.limits.lock_ms / 1000 / _HELD_PART
            self._ends_s = min(self._ends_s, self._loop.time() + held_s)
        self._size_bytes += len(data)
        self._session.move_to_end(key)
        counts = partition.log.counts
        counts.fetched()
        counts.returned(len(data))

    @property
    def _has_room(self) -> bool:
        return self._records_left > 0 and self._bytes_left > 0 and self._session.is_open

    async def _wait(self, partitions: Iterable[SharedPartition], woken: asyncio.Event) -> None:
        """Wait until there may be records, until locks may end, or for the end of the fetch."""
        timer = self._loop.call_at(
            min([self._ends_s, *(partition.due_s for partition in partitions)]), woken.set
        )
        try:
            await woken.wait()
        finally:
            timer.cancel()
