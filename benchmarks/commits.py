"""What commits cost: OffsetCommits per second over many groups, and loading the records that they left.

    ./dev bench commits [--seconds 5] [--connections 100] [--records 1000000] [--json FILE]

The rate is that of raw OffsetCommit v8 requests, one partition each, pipelined on every connection, and the
Redis groups are checked afterwards: all of them must stand at their newest commit. The load is measured
twice, in a coordinator of this process (with the longest time for which its event loop did nothing else) and
as the start of a whole broker; once where the records supersede one another, once where each has its own key.
"""

from __future__ import annotations

import asyncio
import json
import resource
import struct
import time
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import click
import uvloop
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from korvet.coordinator.service import OFFSETS_TOPIC, CoordinatorService
from korvet.embedded import socket_of
from korvet.groups.config import GroupConfig
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.records.kernel import encode_append_records
from korvet.storage.keys import Keyspace
from korvet.storage.store import Store
from tests.support.processes import cpu_seconds
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

TOPIC: Final = "commits"
KEYSPACE: Final = "korvet"
OFFSET_COMMIT: Final = 8
# Before the rate is counted: connections are made and caches are warm.
WARM_UP_S: Final = 1.0
# After a load Redis groups are compared with it in the background; its blocks count, too.
RECONCILE_S: Final = 3.0
PROBE_S: Final = 0.001
APPEND_RECORDS: Final = 1_000
# The server reads its append-only file first.
START_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Commits answered, and the CPU time that each cost."""

    commits_per_s: float
    broker_us: float
    redis_us: float


@dataclass(frozen=True, slots=True)
class Load:
    """One load of a coordinator, and the start of a broker over the same records."""

    records: int
    keys: int
    coordinator_s: float
    longest_block_ms: float
    bytes_per_key: float
    broker_start_s: float


class CommitClient(asyncio.Protocol):
    """One connection that commits for one group, one partition after the other, some requests ahead."""

    def __init__(self, group: str, partitions: int, window: int) -> None:
        name, topic = group.encode(), TOPIC.encode()
        header = struct.pack(">hhi", OFFSET_COMMIT, 8, 7) + struct.pack(">h5sx", 5, b"bench")
        body = bytes((len(name) + 1,)) + name + struct.pack(">ibb", -1, 1, 0)
        body += bytes((2, len(topic) + 1)) + topic + b"\x02"
        self._head = header + body
        self._size = len(self._head) + struct.calcsize(">iqibbbb")
        self._partitions = partitions
        self._window = window
        self._sent = 0
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.answers = 0
        self.closing = False
        self.idle = asyncio.Event()

    def newest(self) -> Iterator[tuple[int, int]]:
        """Each partition that was committed, and its newest offset."""
        for number in range(max(0, self._sent - self._partitions), self._sent):
            yield number % self._partitions, number + 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        for _ in range(self._window):
            self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (size,) = struct.unpack_from(">i", self._buffer)
            if len(self._buffer) < size + 4:
                return
            # The partition's error stands before the three tag sections at the end.
            (error,) = struct.unpack_from(">h", self._buffer, size + 4 - 5)
            if error:
                raise click.ClickException(f"a commit ended with error {error}")
            del self._buffer[: size + 4]
            self.answers += 1
            if not self.closing:
                self._send()
            elif self.answers == self._sent:
                self.idle.set()

    def _send(self) -> None:
        assert self._transport is not None
        partition = self._sent % self._partitions
        self._sent += 1
        tail = struct.pack(">iqibbbb", partition, self._sent, -1, 1, 0, 0, 0)
        self._transport.write(struct.pack(">i", self._size) + self._head + tail)

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


async def measure_rate(
    server: KorvetServer, groups: int, partitions: int, connections: int, window: int, seconds: float
) -> Rate:
    """Commit from all connections for a while, and check where the Redis groups are then."""
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(connections):
        _, client = await loop.create_connection(
            lambda number=number: CommitClient(f"group-{number % groups}", partitions, window),
            server.host,
            server.port,
        )
        clients.append(client)
    await asyncio.sleep(WARM_UP_S)
    pids = (server.process.pid, server.store_pid())
    began, before = time.monotonic(), sum(client.answers for client in clients)
    used = [cpu_seconds(pid) for pid in pids]
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    answered = sum(client.answers for client in clients) - before
    broker, store = (1e6 * (cpu_seconds(pid) - at) / answered for pid, at in zip(pids, used, strict=True))
    for client in clients:
        client.closing = True
    await asyncio.gather(*(client.idle.wait() for client in clients))
    if connections == groups:
        check_groups(server, clients)
    for client in clients:
        client.close()
    return Rate(answered / took, broker, store)


def check_groups(server: KorvetServer, clients: list[CommitClient]) -> None:
    """Every Redis group must stand at the newest commit of its Kafka group."""
    keys = Keyspace(KEYSPACE)
    for number, client in enumerate(clients):
        for partition, offset in client.newest():
            stored = cast(
                "bytes", server.redis.hget(keys.meta(TOPIC, partition).decode(), f"commit:group-{number}")
            )
            if int(stored.split()[1]) != offset:
                raise click.ClickException(f"group-{number} on {TOPIC}-{partition}: {stored!r}, not {offset}")


def commits(records: int, groups: int, partitions: int) -> Iterator[tuple[str, int, int]]:
    """(group, partition, offset) of as many commits, group after group."""
    places = groups * partitions
    for number in range(records):
        place = number % places
        yield f"group-{place % groups}", place // groups, number // places + 1


async def fill(store: Store, records: int, groups: int, partitions: int) -> None:
    """Write the records of these commits as a coordinator would, and what it notes of their projection."""
    topic = store.catalogue.get(OFFSETS_TOPIC)
    assert topic is not None
    logs = [store.log(topic, number) for number in range(topic.partitions)]
    ends = [(await log.bounds()).log_end for log in logs]
    waiting: list[list[tuple[bytes, bytes, int]]] = [[] for _ in logs]
    projected: dict[int, dict[str, str]] = {}
    now_ms = time.time_ns() // 1_000_000
    for group, partition, offset in commits(records, groups, partitions):
        number = partition_for(group)
        key = encode_key(OffsetCommitKey(group, TOPIC, partition))
        value = encode_value(OffsetCommitValue(offset, commit_timestamp_ms=now_ms))
        batch = waiting[number]
        batch.append((key, value, now_ms))
        projected.setdefault(partition, {})[f"commit:{group}"] = f"{ends[number]} {offset}"
        ends[number] += 1
        if len(batch) == APPEND_RECORDS:
            await logs[number].append_wait(encode_append_records(batch))
            batch.clear()
    left = ((log, batch) for log, batch in zip(logs, waiting, strict=True) if batch)
    await asyncio.gather(*(log.append_wait(encode_append_records(batch)) for log, batch in left))
    for partition, fields in projected.items():
        await store.call("HSET", store.keyspace.meta(TOPIC, partition), *chain.from_iterable(fields.items()))


@asynccontextmanager
async def probed() -> AsyncIterator[list[float]]:
    """The times, in s, by which a timer of PROBE_S came too late."""
    late: list[float] = []

    async def probe() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(PROBE_S)
            late.append(time.perf_counter() - began - PROBE_S)

    task = asyncio.create_task(probe())
    try:
        yield late
    finally:
        task.cancel()


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def measure_load(server: KorvetServer, records: int, groups: int, partitions: int) -> Load:
    """Fill the keyspace, load it here, and start the broker over it."""
    store = await Store.open(f"unix://{socket_of(server.data_dir)}", Keyspace(KEYSPACE))
    await fill(store, records, groups, partitions)
    service = CoordinatorService(store, store.catalogue, GroupConfig())
    keys, memory = min(records, groups * partitions), resident_bytes()
    async with probed() as late:
        began = time.perf_counter()
        await service.start()
        await service.wait_loaded()
        took = time.perf_counter() - began
        await asyncio.sleep(RECONCILE_S)
        block_ms = 1000 * max(late)
    memory = resident_bytes() - memory
    await service.close()
    await store.close()
    server.stop()
    began = time.perf_counter()
    server.spawn()
    server.wait_ready(START_TIMEOUT_S)
    return Load(records, keys, took, block_ms, memory / keys, time.perf_counter() - began)


def new_server(partitions: int) -> KorvetServer:
    """A broker with a topic to commit for."""
    server = KorvetServer().start()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(20)
    return server


def show_rate(rate: Rate) -> None:
    click.echo(
        f"commits: {rate.commits_per_s:,.0f}/s; broker {rate.broker_us:.1f} µs, "
        f"Redis {rate.redis_us:.1f} µs of CPU each"
    )


def show_load(load: Load) -> None:
    click.echo(
        f"load of {load.records:,} records with {load.keys:,} keys: {load.coordinator_s:.1f} s, longest "
        f"block {load.longest_block_ms:.0f} ms, {load.bytes_per_key:.0f} bytes a key; "
        f"start of a broker {load.broker_start_s:.1f} s"
    )


@click.command()
@click.option("--groups", default=100, show_default=True)
@click.option("--partitions", default=10, show_default=True)
@click.option("--connections", default=100, show_default=True)
@click.option("--window", default=4, show_default=True, help="Requests ahead on one connection.")
@click.option("--seconds", default=5.0, show_default=True, help="0 leaves the rate out.")
@click.option("--records", default=1_000_000, show_default=True, help="0 leaves the load out.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(
    groups: int,
    partitions: int,
    connections: int,
    window: int,
    seconds: float,
    records: int,
    json_file: Path | None,
) -> None:
    """Measure the rate of commits and the load of a coordinator."""
    figures: dict[str, object] = {}
    if seconds:
        server = new_server(partitions)
        try:
            rate = uvloop.run(measure_rate(server, groups, partitions, connections, window, seconds))
        finally:
            server.discard()
        show_rate(rate)
        figures["rate"] = asdict(rate)
    for name, load_groups, load_partitions in (("superseded", 100, 100), ("distinct", 1_000, 1_000)):
        if not records:
            break
        server = new_server(load_partitions)
        try:
            load = uvloop.run(measure_load(server, records, load_groups, load_partitions))
        finally:
            server.discard()
        show_load(load)
        figures[name] = asdict(load)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
