"""The lag of groups, counted in Redis, because the difference of two offsets isn't a number of records.

Record lag is the number of entries at or after the committed offset. Time lag is how long the first of them
has been waiting, by its record timestamp, and 0 if there is none. `korvet report` has the same definitions.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from korvet.cli.redis_address import RedisSource
from korvet.embedded.errors import EmbeddedServerError
from korvet.log.entries import entry_timestamp, first_record
from korvet.log.partition_log import PartitionLog
from korvet.offsets.group_status import OK, status_of_offsets, worst_status
from korvet.offsets.packing import entry_id
from korvet.redis.errors import StorageError
from korvet.redis.keys import Keyspace
from korvet.redis.opening import connect
from korvet.spark.report.times import duration
from korvet.store import Store

# Partitions requested at the same time: enough to hide the round trip, few enough for Redis's other clients.
_AT_ONCE = 64
# Longest wait for all counts. After many deletions by native clients, counting is slow; a hanging Redis never
# ends.
_TIMEOUT_S = 60.0


class LagUnknown(Exception):
    """The lag can't be counted; the message contains the reason."""


class Commit(NamedTuple):
    """A committed offset."""

    topic: str
    partition: int
    offset: int


class Lag(msgspec.Struct, frozen=True):
    """The lag of a commit: the number of unread records, and how long the first of them has been waiting."""

    records: int
    waiting_ms: int
    status: str | None = None
    """One of korvet.offsets.group_status.STATUSES; None if offsets alone don't tell it."""


class Waiting(msgspec.Struct, frozen=True):
    """The time lag of a commit whose number of unread records is unknown."""

    waiting_ms: int
    status: str | None = None


AnyLag = TypeVar("AnyLag", bound=Lag | Waiting)
_T = TypeVar("_T")
NOTHING_UNREAD = Lag(0, 0, OK)

Lags = Mapping[Commit, Lag | Waiting | StorageError]


def measure(
    source: RedisSource, cluster_id: str | None, commits: Iterable[Commit], now_ms: int | None = None
) -> dict[Commit, Lag | StorageError]:
    """Returns the lag of each commit, or the error that prevented the count.

    `cluster_id` is the broker's. Takes no lease, so a running broker isn't affected. Raises LagUnknown if
    there is no Redis, or it isn't the broker's.
    """
    wanted = sorted(set(commits))
    if not wanted:
        return {}
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    return read_store(source, cluster_id, lambda store: _measure(store, wanted, now))


def read_store(
    source: RedisSource, cluster_id: str | None, read: Callable[[Store], Coroutine[Any, Any, _T]]
) -> _T:
    """Returns what `read` finds in Redis. Raises LagUnknown as `measure` does."""
    try:
        url = source.find()
        if url is None:
            raise LagUnknown(f"no embedded server runs on {source.data_dir}")
        return asyncio.run(_read_store(url, Keyspace(source.keyspace), cluster_id, read))
    except TimeoutError as error:
        raise LagUnknown(f"Redis does not answer within {_TIMEOUT_S:.0f} s") from error
    except (StorageError, EmbeddedServerError, ValueError) as error:
        raise LagUnknown(str(error)) from error


async def _read_store(
    url: str, keyspace: Keyspace, cluster_id: str | None, read: Callable[[Store], Coroutine[Any, Any, _T]]
) -> _T:
    async with asyncio.timeout(_TIMEOUT_S):
        await _check_same_cluster(url, keyspace, cluster_id)
        store = await Store.open(url, keyspace)
        try:
            return await read(store)
        finally:
            await store.close()


async def _measure(store: Store, commits: list[Commit], now_ms: int) -> dict[Commit, Lag | StorageError]:
    found: dict[Commit, Lag | StorageError] = {}
    for start in range(0, len(commits), _AT_ONCE):
        page = commits[start : start + _AT_ONCE]
        lags = await asyncio.gather(*(_lag_or_fault(store, commit, now_ms) for commit in page))
        found.update(zip(page, lags, strict=True))
    return found


async def _check_same_cluster(url: str, keyspace: Keyspace, cluster_id: str | None) -> None:
    """Raise LagUnknown if the keyspace has another cluster ID: opening a store would create a cluster."""
    router = await connect(url)
    try:
        links = router.links(keyspace.cluster)
        found = await links.read.call("HGET", keyspace.cluster, "id")
    finally:
        await router.close()
    if found is None or found.decode() != cluster_id:
        raise LagUnknown(
            f"keyspace {keyspace.prefix!r} of Redis at {links.server.address} is not that of this broker"
        )


async def _lag_or_fault(store: Store, commit: Commit, now_ms: int) -> Lag | StorageError:
    try:
        return await _lag(store, commit, now_ms)
    except StorageError as error:
        return error


async def _lag(store: Store, commit: Commit, now_ms: int) -> Lag:
    topic = store.catalogue.get(commit.topic)
    if topic is None or commit.partition >= topic.partitions:
        return NOTHING_UNREAD
    log = store.logs.get(topic, commit.partition)
    bounds = await log.bounds()
    lag = await _unread(store, log, max(commit.offset, bounds.log_start), bounds.log_end, now_ms)
    known_from = 0
    if commit.offset < bounds.log_start and not log.bias:
        known_from = await _first_offset(store, log, bounds.log_start)
    return judged(lag, commit, (bounds.log_start, bounds.log_end), known_from)


def judged(lag: AnyLag, commit: Commit, ends: tuple[int, int], known_from: int | None) -> AnyLag:
    """Returns a lag with the status of its commit.

    ends: log start and log end. known_from: as for status_of_offsets.
    """
    is_read = isinstance(lag, Lag) and not lag.records
    return msgspec.structs.replace(
        lag, status=status_of_offsets(commit.offset, *ends, known_from, is_read=is_read)
    )


async def _first_offset(store: Store, log: PartitionLog, log_start: int) -> int:
    """Returns the offset of the first record in the stream. It is before the log start if DeleteRecords has
    deleted only the beginning of a batch.
    """
    entries = await store.commands.call("XRANGE", log.stream, "-", "+", "COUNT", 1)
    if not entries:
        return log_start
    ((first_id, fields),) = entries
    first = first_record(first_id, fields, log.bias)
    return log_start if first is None else min(first[0], log_start)


async def _unread(store: Store, log: PartitionLog, offset: int, log_end: int, now_ms: int) -> Lag:
    if offset >= log_end:
        return NOTHING_UNREAD
    first = await store.commands.call("XRANGE", log.stream, entry_id(offset, log.bias), "+", "COUNT", 1)
    records = await log.queries.count(offset, log_end)
    if not first or not records:
        return NOTHING_UNREAD
    ((first_id, fields),) = first
    unread = first_record(first_id, fields, log.bias, offset=offset)
    timestamp_ms = entry_timestamp(first_id, fields) if unread is None else unread[1]
    return Lag(records, max(0, now_ms - timestamp_ms))


def total(commits: Iterable[Commit], lags: Lags) -> Lag | Waiting | None:
    """Returns a group's unread records, its longest wait and its worst status; None if unknown or without
    commits.
    """
    found = [lags.get(commit) for commit in commits]
    known = [lag for lag in found if isinstance(lag, Lag | Waiting)]
    if not found or len(known) < len(found):
        return None
    longest_ms = max(lag.waiting_ms for lag in known)
    counted = [lag.records for lag in known if isinstance(lag, Lag)]
    status = worst_status([lag.status for lag in known])
    if len(counted) < len(known):
        return Waiting(longest_ms, status)
    return Lag(sum(counted), longest_ms, status)


def fields(lag: Lag | Waiting | StorageError | None) -> dict[str, Any]:
    """Returns `status`, `record_lag` (records) and `lag_ms` for programs; null if unknown."""
    status = lag.status if isinstance(lag, Lag | Waiting) else None
    return {
        "status": None if status is None else status.lower(),
        "record_lag": lag.records if isinstance(lag, Lag) else None,
        "lag_ms": lag.waiting_ms if isinstance(lag, Lag | Waiting) else None,
    }


def waiting(lag_ms: int | None) -> str | None:
    """Returns a time lag for people; None if unknown."""
    if lag_ms is None:
        return None
    return duration(lag_ms) if lag_ms else "0"
