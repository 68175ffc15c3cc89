"""Loading a million commits: by a coordinator in this process, and by a starting broker.

One run has records that supersede each other, one has records with different keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import uvloop

from benchmarks.rig.measuring import KORVET, Row, Sample, interleaved
from korvet.broker import freeze_long_lived_objects
from korvet.coordinator.service import OFFSETS_TOPIC, CoordinatorService
from korvet.embedded.sockets import socket_of
from korvet.groups.config import GroupConfig
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.records.kernel import encode_append_records
from korvet.redis.keys import Keyspace
from korvet.store import Store
from tests.support.admin import create_topic
from tests.support.logs import append_own
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from benchmarks.rig.rig import Rig

RECORDS = 1_000_000
TOPIC = "commits"
KEYSPACE = "korvet"
APPEND_RECORDS = 1_000
# After a load, a background task compares the Redis groups with the commits. Its blocks count, too.
RECONCILE_S = 3.0
PROBE_S = 0.001
# The embedded server reads its append-only file first.
START_TIMEOUT_S = 300.0
UNITS = {"coordinator loaded": "s", "broker started": "s", "longest block of the event loop": "ms"}


@dataclass(frozen=True, slots=True)
class Commits:
    """Yields this number of commits, cycling through all partitions of all groups."""

    records: int
    groups: int
    partitions: int

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """A commit: group, partition, offset."""
        for number in range(self.records):
            turn, place = divmod(number, self.groups * self.partitions)
            partition, group = divmod(place, self.groups)
            yield f"group-{group}", partition, turn + 1


def measure(rig: Rig) -> Iterator[Row]:
    """Measure one round of each case: writing the records takes longer than loading them."""
    records = rig.scaled(RECORDS)
    forms = {
        "superseding": Commits(records, 100, max(1, records // 10_000)),
        "distinct": Commits(records, 1_000, -(-records // 1_000)),
    }
    for what, commits in forms.items():
        sides = {KORVET: functools.partial(loaded, commits)}
        yield from interleaved(f"load of {records:,} {what} commits", sides, 1, UNITS)


def loaded(commits: Commits) -> Sample:
    """Write the commits, load them in this process, and start a broker over them."""
    server = KorvetServer()
    try:
        create_topic(server.start().bootstrap, TOPIC, commits.partitions)
        took_s, block_ms = uvloop.run(load(server, commits))
        server.stop()
        began = time.perf_counter()
        server.spawn()
        server.wait_ready(START_TIMEOUT_S)
        values = (took_s, time.perf_counter() - began, block_ms)
    finally:
        server.discard()
    return Sample(dict(zip(UNITS, values, strict=True)))


async def load(server: KorvetServer, commits: Commits) -> tuple[float, float]:
    """Fill the keyspace and load it. Returns the seconds, and the longest block in ms."""
    store = await Store.open(f"unix://{socket_of(server.data_dir)}", Keyspace(KEYSPACE))
    await fill(store, commits)
    service = CoordinatorService(store.commands, store.logs, store.catalogue, GroupConfig())
    freeze_long_lived_objects()
    async with probed() as late_s:
        began = time.perf_counter()
        await service.start()
        await service.wait_loaded()
        took_s = time.perf_counter() - began
        await asyncio.sleep(RECONCILE_S)
    await service.close()
    await store.close()
    return took_s, 1000 * max(late_s)


async def fill(store: Store, commits: Commits) -> None:
    """Write the records of these commits, and the state of their projection, like a coordinator."""
    topic = store.catalogue.get(OFFSETS_TOPIC)
    assert topic is not None
    logs = [store.logs.get(topic, number) for number in range(topic.partitions)]
    ends = [(await log.bounds()).log_end for log in logs]
    waiting: list[list[tuple[bytes, bytes, int]]] = [[] for _ in logs]
    projected: dict[int, dict[str, str]] = {}
    now_ms = time.time_ns() // 1_000_000
    for group, partition, offset in commits:
        number = partition_for(group)
        key = encode_key(OffsetCommitKey(group, TOPIC, partition))
        value = encode_value(OffsetCommitValue(offset, commit_timestamp_ms=now_ms))
        batch = waiting[number]
        batch.append((key, value, now_ms))
        projected.setdefault(partition, {})[f"commit:{group}"] = f"{ends[number]} {offset}"
        ends[number] += 1
        if len(batch) == APPEND_RECORDS:
            await append_own(logs[number], encode_append_records(batch))
            batch.clear()
    left = ((log, batch) for log, batch in zip(logs, waiting, strict=True) if batch)
    await asyncio.gather(*(append_own(log, encode_append_records(batch)) for log, batch in left))
    for partition, fields in projected.items():
        await store.commands.call(
            "HSET", store.commands.keyspace.meta(TOPIC, partition), *chain.from_iterable(fields.items())
        )


@contextlib.asynccontextmanager
async def probed() -> AsyncIterator[list[float]]:
    """Records the delays, in s, of a timer of PROBE_S."""
    late_s: list[float] = []

    async def probe() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(PROBE_S)
            late_s.append(time.perf_counter() - began - PROBE_S)

    task = asyncio.create_task(probe())
    try:
        yield late_s
    finally:
        task.cancel()
