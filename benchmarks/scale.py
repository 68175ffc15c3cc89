"""What many connections, many partitions and small requests cost the broker.

    ./dev bench scale [--json] [CASE...]

Cases: connections (they send nothing), metadata (partitions in one topic and in many), fetch (all partitions
in one request), produce (requests of one record, pipelined and one at a time), latency (one at a time at a
fixed rate, alone and beside idle consumers).
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import statistics
import struct
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop

from benchmarks.idle_consumers import TOPIC as IDLE_TOPIC
from benchmarks.idle_consumers import RawConsumer
from korvet.records.kernel import crc32c
from tests.api.asking import frame
from tests.support.processes import cpu_seconds
from tests.support.servers import KorvetServer
from tests.support.wire import RawConnection, decode_response

if TYPE_CHECKING:
    from collections.abc import Callable

CREATE, DELETE, LIST_OFFSETS, METADATA, FETCH = 19, 20, 2, 3, 1
METADATA_VERSION, FETCH_VERSION, PRODUCE_VERSION = 12, 11, 9
# A quiet process still has its timers; over this while they average out.
IDLE_S = 5.0
IDLE_SETTLE_S = 4.0
Figures = dict[str, float]


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


class Asker:
    """One connection that asks by schema names and takes the time of each answer."""

    def __init__(self, server: KorvetServer) -> None:
        self.raw = RawConnection(server.host, server.port, 120)
        self.raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def timed(self, request: bytes) -> tuple[float, bytes]:
        """(ms until the answer was here, its bytes)."""
        began = time.perf_counter()
        answer = self.raw.ask(request)
        return (time.perf_counter() - began) * 1000, answer

    def create(self, topics: list[tuple[str, int]]) -> float:
        """Create topics with that many partitions each; ms."""
        made = [
            {"name": name, "num_partitions": count, "replication_factor": 1, "assignments": [], "configs": []}
            for name, count in topics
        ]
        took, answer = self.timed(
            frame("CreateTopics", 7, 1, topics=made, timeout=60_000, validate_only=False)
        )
        message = decode_response(CREATE, 7, answer).message
        if any(topic.error_code for topic in message.topics):
            raise click.ClickException(f"topics were not created: {message.topics[0]}")
        return took

    def delete(self, names: list[str]) -> float:
        """Delete topics; ms."""
        states = [{"name": name, "topic_id": None} for name in names]
        return self.timed(frame("DeleteTopics", 6, 1, topics=states, timeout=60_000))[0]

    def metadata(self, names: list[str] | None) -> float:
        """Metadata of those topics or of all; ms."""
        asked = None if names is None else [{"name": name, "topic_id": None} for name in names]
        return self.timed(frame("Metadata", METADATA_VERSION, 1, topics=asked))[0]


def connections(server: KorvetServer, count: int) -> Figures:
    """Connections that send nothing: memory each, CPU of all, and how long they took to be made."""
    pid = server.process.pid
    with RawConnection(server.host, server.port) as first:
        assert first.works()
    before = rss_bytes(pid)
    began = time.perf_counter()
    opened = [socket.create_connection((server.host, server.port), 30) for _ in range(count)]
    last = RawConnection(server.host, server.port, 30)
    with last:
        assert last.works()
    took = time.perf_counter() - began
    grown = rss_bytes(pid) - before
    cpu, began = cpu_seconds(pid), time.perf_counter()
    time.sleep(IDLE_S)
    share = (cpu_seconds(pid) - cpu) / (time.perf_counter() - began)
    for one in opened:
        one.close()
    return {
        f"{count} connections: memory of each, KB": grown / count / 1024,
        f"{count} connections: CPU of all, % of a core": share * 100,
        f"{count} connections: made in, s": took,
    }


def metadata(server: KorvetServer, count: int) -> Figures:
    """Partitions in one topic, then in a thousand: creation, Metadata and ListOffsets, memory, start."""
    pid = server.process.pid
    before = rss_bytes(pid)
    asker = Asker(server)
    figures = {f"{count} partitions in 1 topic: CreateTopics, ms": asker.create([("one", count)])}
    figures |= _metadata_times(asker, f"{count} partitions in 1 topic", ["one"])
    topics = max(count // 10, 1)
    names = [f"many-{number}" for number in range(topics)]
    figures[f"{topics} topics of 10: CreateTopics, ms"] = asker.create([(name, 10) for name in names])
    figures |= _metadata_times(asker, f"{topics} topics of 10", names)
    figures |= _metadata_times(asker, "all topics", None)
    figures |= _metadata_times(asker, "one topic of 10", names[:1])
    some = min(1000, count)
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in range(some)
    ]
    asked = [{"name": "one", "partitions": partitions}]
    request = frame("ListOffsets", 5, 1, replica_id=-1, isolation_level=0, topics=asked)
    figures[f"ListOffsets of {some} partitions, ms"] = asker.timed(request)[0]
    figures[f"memory for {2 * count} partitions, MB"] = (rss_bytes(pid) - before) / 2**20
    asker.raw.socket.close()
    server.stop()
    began = time.perf_counter()
    server.restart()
    figures[f"start with {2 * count} partitions, s"] = time.perf_counter() - began
    asker = Asker(server)
    figures |= _metadata_times(asker, "all topics after a start", None)
    figures[f"{count} partitions in 1 topic: DeleteTopics, ms"] = asker.delete(["one"])
    figures[f"{topics} topics of 10: DeleteTopics, ms"] = asker.delete(names)
    return figures


def _metadata_times(asker: Asker, what: str, names: list[str] | None) -> Figures:
    first = asker.metadata(names)
    again = statistics.median(asker.metadata(names) for _ in range(5))
    return {f"Metadata, {what}: first, ms": first, f"Metadata, {what}: again, ms": again}


def fetch(server: KorvetServer, count: int) -> Figures:
    """One Fetch over many partitions: at their ends with nothing to wait for, repeated, and with data."""
    pid = server.process.pid
    asker = Asker(server)
    asker.create([("wide", count)])
    figures = {}
    at_end = _fetch_request("wide", count, 1)
    figures[f"Fetch of {count} empty partitions: first, ms"] = asker.timed(at_end)[0]
    figures[f"Fetch of {count} empty partitions: again, ms"] = statistics.median(
        asker.timed(at_end)[0] for _ in range(5)
    )
    waiting = _fetch_request("wide", count, 500)
    cpu = cpu_seconds(pid)
    for _ in range(10):
        asker.timed(waiting)
    figures[f"Fetch of {count} partitions that waits 500 ms: CPU, ms"] = (cpu_seconds(pid) - cpu) * 100
    for index in range(count):
        asker.raw.send(produce_request("wide", index, index))
    for _ in range(count):
        asker.raw.receive()
    took, answer = asker.timed(_fetch_request("wide", count, 500))
    message = decode_response(FETCH, FETCH_VERSION, answer).message
    held = sum(1 for part in message.responses[0].partitions if part.records)
    figures[f"Fetch of {count} partitions with a record each, ms"] = took
    figures["of them answered with records"] = float(held)
    return figures


def _fetch_request(topic: str, count: int, wait_ms: int) -> bytes:
    partitions = [
        {
            "partition": index,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for index in range(count)
    ]
    return frame(
        "Fetch",
        FETCH_VERSION,
        1,
        replica_id=-1,
        max_wait=wait_ms,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": partitions}],
        forgotten_topics_data=[],
        rack_id="",
    )


def record_batch(value: bytes) -> bytes:
    """A batch of one record with a key of 16 bytes (RecordBatch, magic 2)."""
    key = b"k" * 16
    record = b"\x00\x00\x00" + _varint(len(key)) + key + _varint(len(value)) + value + b"\x00"
    now_ms = int(time.time() * 1000)
    tail = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + _varint(len(record)) + record
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c(tail)) + tail


def _varint(value: int) -> bytes:
    """A zigzag varint of a number that is not negative."""
    value <<= 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


def produce_request(topic: str, partition: int, correlation_id: int) -> bytes:
    """Produce with acks=1, one record of 100 bytes."""
    name, batch = topic.encode(), record_batch(b"v" * 100)
    body = struct.pack(">hhih7s", 0, PRODUCE_VERSION, correlation_id, 7, b"scaling") + b"\x00"
    body += b"\x00" + struct.pack(">hi", 1, 30_000) + b"\x02" + bytes([len(name) + 1]) + name + b"\x02"
    body += struct.pack(">i", partition) + _unsigned_varint(len(batch) + 1) + batch
    return body + b"\x00\x00\x00"


def _unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


class PipelinedProducer(asyncio.Protocol):
    """Keeps a number of requests on their way until all are answered."""

    def __init__(self, request: bytes, at_once: int, total: int) -> None:
        self._frame = struct.pack(">i", len(request)) + request
        self._at_once = at_once
        self._left = total
        self._unanswered = 0
        self._held = b""
        self._transport: Any = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._send(self._at_once)

    def data_received(self, data: bytes) -> None:
        held, position, answered = self._held + data, 0, 0
        while len(held) - position >= 4:
            (size,) = struct.unpack_from(">i", held, position)
            if len(held) - position < 4 + size:
                break
            position += 4 + size
            answered += 1
        self._held = held[position:]
        self._unanswered -= answered
        self._send(answered)
        if not self._unanswered and not self.done.done():
            self.done.set_result(None)

    def _send(self, count: int) -> None:
        count = min(count, self._left)
        if count:
            self._left -= count
            self._unanswered += count
            self._transport.write(self._frame * count)


def produce(server: KorvetServer, requests: int) -> Figures:
    """Requests of one record each: rate, and CPU of broker and store for one."""
    asker = Asker(server)
    asker.create([("small", 1)])
    request = produce_request("small", 0, 1)
    asker.timed(request)
    figures = {}
    for at_once, total in ((1, requests // 4), (64, requests), (500, requests)):
        what = "one at a time" if at_once == 1 else f"{at_once} on their way"
        rate, broker, store = _metered(
            server, total, lambda at_once=at_once, total=total: _pipelined(server, request, at_once, total)
        )
        figures[f"Produce of 1 record, {what}: requests/s"] = rate
        figures[f"Produce of 1 record, {what}: broker CPU, us"] = broker
        figures[f"Produce of 1 record, {what}: store CPU, us"] = store
    return figures


def _pipelined(server: KorvetServer, request: bytes, at_once: int, total: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        transport, producer = await loop.create_connection(
            partial(PipelinedProducer, request, at_once, total), server.host, server.port
        )
        await asyncio.wait_for(producer.done, 120)
        transport.close()

    asyncio.run(run())


def _metered(server: KorvetServer, total: int, work: Callable[[], None]) -> tuple[float, float, float]:
    """(per second, broker CPU us, store CPU us) of each of `total`."""
    pids = (server.process.pid, server.store_pid())
    before = [cpu_seconds(pid) for pid in pids]
    began = time.perf_counter()
    work()
    took = time.perf_counter() - began
    broker, store = ((cpu_seconds(pid) - used) / total * 1e6 for pid, used in zip(pids, before, strict=True))
    return total / took, broker, store


def latency(server: KorvetServer, consumers: int, rate: int = 1000, seconds: float = 5.0) -> Figures:
    """Time from sending a request of one record to its answer, at a fixed rate, without and with idle
    consumers.
    """
    asker = Asker(server)
    asker.create([("timed", 1), (IDLE_TOPIC, 10)])
    request = produce_request("timed", 0, 1)
    figures = _percentiles("alone", asker, request, rate, seconds)

    # In a process of their own: what they do must not delay the one that takes the time.
    idle = multiprocessing.get_context("spawn").Process(
        target=_consume_idly, args=(server.host, server.port, consumers), daemon=True
    )
    idle.start()
    try:
        time.sleep(IDLE_SETTLE_S)
        what = f"beside {consumers} idle consumers"
        return figures | _percentiles(what, asker, request, rate, seconds)
    finally:
        idle.kill()
        idle.join()


def _consume_idly(host: str, port: int, consumers: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in range(consumers):
            await loop.create_connection(partial(RawConsumer, number % 10), host, port)
        await loop.create_future()

    uvloop.run(run())


def _percentiles(what: str, asker: Asker, request: bytes, rate: int, seconds: float) -> Figures:
    taken = []
    due = time.perf_counter()
    for _ in range(int(rate * seconds)):
        due += 1 / rate
        time.sleep(max(0.0, due - time.perf_counter()))
        taken.append(asker.timed(request)[0])
    taken.sort()
    return {
        f"Produce at {rate}/s {what}: p{share * 100:g}, ms": taken[int(len(taken) * share)]
        for share in (0.5, 0.99)
    }


@click.command()
@click.argument("cases", nargs=-1)
@click.option("--connections", "connection_count", default=5_000, show_default=True)
@click.option("--partitions", default=10_000, show_default=True)
@click.option("--fetched", default=1_000, show_default=True, help="Partitions in one Fetch.")
@click.option("--requests", default=40_000, show_default=True)
@click.option("--consumers", default=1_000, show_default=True, help="Idle ones, for the latency.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(
    cases: tuple[str, ...],
    connection_count: int,
    partitions: int,
    fetched: int,
    requests: int,
    consumers: int,
    as_json: bool,
) -> None:
    """Measure what many connections, many partitions and small requests cost."""
    known: dict[str, Callable[[KorvetServer], Figures]] = {
        "connections": lambda server: connections(server, connection_count),
        "metadata": lambda server: metadata(server, partitions),
        "fetch": lambda server: fetch(server, fetched),
        "produce": lambda server: produce(server, requests),
        "latency": lambda server: latency(server, consumers),
    }
    figures: Figures = {}
    for case in cases or known:
        if case not in known:
            raise click.UsageError(f"there is no case {case}: {', '.join(known)}")
        server = KorvetServer("--set", "embedded.appendfsync=everysec")
        try:
            found = known[case](server.start())
        finally:
            server.discard()
        figures |= found
        if not as_json:
            for what, figure in found.items():
                click.echo(f"{what:<70} {figure:10.2f}")
    if as_json:
        click.echo(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
