"""What idle consumers cost: CPU of the broker and of its embedded server while consumers wait for records.

    ./dev bench idle_consumers [--consumers 1000] [--seconds 20] [--client raw|librdkafka]

`raw` consumers are sockets that do what a default consumer does: one Fetch at a time with max_wait
500 ms and min_bytes 1, for one partition each, and a Heartbeat every 3 s. `librdkafka` are real ones,
each in a group of its own; a thousand of them need more memory and CPU than the broker: take fewer.
"""

from __future__ import annotations

import asyncio
import struct
import time
from typing import cast

import click
import uvloop
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.processes import cpu_seconds
from tests.support.servers import KorvetServer

TOPIC = "idle"
FETCH, HEARTBEAT = 1, 12
FETCH_WAIT_MS = 500
HEARTBEAT_INTERVAL_S = 3.0


def request_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """A header of version 1 with a client id as long as a usual one."""
    return struct.pack(">hhih8s", api_key, api_version, correlation_id, 8, b"consumer")


def fetch_request(partition: int, correlation_id: int) -> bytes:
    """Fetch v11 at offset 0 of an empty partition, with the limits of a default Java consumer."""
    body = struct.pack(">iiiibii", -1, FETCH_WAIT_MS, 1, 52_428_800, 0, 0, -1)
    name = TOPIC.encode()
    body += struct.pack(f">ih{len(name)}si", 1, len(name), name, 1)
    body += struct.pack(">iiqqi", partition, -1, 0, -1, 1_048_576)
    body += struct.pack(">ih", 0, 0)
    return request_header(FETCH, 11, correlation_id) + body


def heartbeat_request(correlation_id: int) -> bytes:
    """Heartbeat v0 of a member that the coordinator does not know: it costs it as much as a known one's."""
    strings = struct.pack(">h4sih1s", 4, b"idle", 1, 1, b"m")
    return request_header(HEARTBEAT, 0, correlation_id) + strings


class RawConsumer(asyncio.Protocol):
    """One connection with always one Fetch on its way."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._next_heartbeat = 0.0
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL_S
        self._send(fetch_request(self._partition, FETCH))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._buffer)
            if len(self._buffer) < size + 4:
                return
            del self._buffer[: size + 4]
            if correlation_id == FETCH:
                self._go_on()

    def _go_on(self) -> None:
        self.answers += 1
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_INTERVAL_S
            self._send(heartbeat_request(HEARTBEAT))
        self._send(fetch_request(self._partition, FETCH))

    def _send(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(struct.pack(">i", len(frame)) + frame)


async def run_raw(server: KorvetServer, consumers: int, partitions: int, seconds: float) -> float:
    """Connect all, let them settle, measure; fetch answers per second and consumer."""
    loop = asyncio.get_running_loop()
    made: list[RawConsumer] = []
    for number in range(consumers):
        _, protocol = await loop.create_connection(
            lambda number=number: RawConsumer(number % partitions), server.host, server.port
        )
        made.append(protocol)
    await asyncio.sleep(3)
    before = sum(consumer.answers for consumer in made)
    began = time.monotonic()
    with Meter(server) as meter:
        await asyncio.sleep(seconds)
    rate = (sum(consumer.answers for consumer in made) - before) / (time.monotonic() - began) / consumers
    meter.show(f"{consumers} raw consumers, {rate:.2f} fetches/s each")
    return rate


def run_librdkafka(server: KorvetServer, consumers: int, seconds: float) -> None:
    """Real consumers in groups of their own."""
    made = []
    for number in range(consumers):
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": f"idle-{number}"})
        consumer.subscribe([TOPIC])
        made.append(consumer)
    deadline = time.monotonic() + 60
    while not all(consumer.assignment() for consumer in made):
        if time.monotonic() > deadline:
            raise click.ClickException("not every consumer has partitions after 60 s")
        for consumer in made:
            consumer.poll(0.01)
    time.sleep(3)
    with Meter(server) as meter:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for consumer in made:
                consumer.poll(0)
            time.sleep(0.1)
    meter.show(f"{consumers} librdkafka consumers")
    for consumer in made:
        consumer.close()


class Meter:
    """CPU time of the broker and of its embedded server over a while."""

    def __init__(self, server: KorvetServer) -> None:
        self._pids = {"broker": server.process.pid, "valkey": server.store_pid()}

    def __enter__(self) -> Meter:
        self._began = time.monotonic()
        self._before = {name: cpu_seconds(pid) for name, pid in self._pids.items()}
        return self

    def __exit__(self, *error: object) -> None:
        self._took = time.monotonic() - self._began
        self._used = {name: cpu_seconds(pid) - self._before[name] for name, pid in self._pids.items()}

    def show(self, what: str) -> None:
        shares = ", ".join(f"{name} {100 * used / self._took:.1f} %" for name, used in self._used.items())
        click.echo(f"{what}: {shares} of one core, over {self._took:.0f} s")


@click.command()
@click.option("--consumers", default=1_000, show_default=True)
@click.option("--partitions", default=10, show_default=True)
@click.option("--seconds", default=20.0, show_default=True)
@click.option("--client", type=click.Choice(["raw", "librdkafka"]), default="raw", show_default=True)
def main(consumers: int, partitions: int, seconds: float, client: str) -> None:
    """Measure what idle consumers cost."""
    server = KorvetServer()
    try:
        server.start()
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(TOPIC, partitions, 1)])[TOPIC].result(20)
        if client == "raw":
            uvloop.run(run_raw(server, consumers, partitions, seconds))
        else:
            run_librdkafka(server, consumers, seconds)
    finally:
        server.discard()


if __name__ == "__main__":
    main()
