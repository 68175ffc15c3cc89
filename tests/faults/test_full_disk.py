"""A full disk: reads continue, records are refused, and nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.api.asking import Client, connect
from tests.faults.test_redis_refuses import (
    NONE,
    NOT_ENOUGH_REPLICAS,
    TOPIC,
    commit,
    fetch,
    list_offsets,
    produce,
)
from tests.support.admin import create_topic
from tests.support.confluent import read_all
from tests.support.disk import Disk
from tests.support.load import LoadProducer
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.faults, pytest.mark.clients]

MB = 1 << 20
DISK_BYTES, RESERVE_BYTES = 64 * MB, 32 * MB
# Several leases: what lasts only as long as one lease would be over.
LEASE_MS = 1_000
LASTING_S = 4
RECORD_BYTES = 8_000


@pytest.fixture
def korvet() -> Iterator[tuple[KorvetServer, Disk]]:
    """A broker that always reads records from Redis, with its data on a small disk."""
    options = (
        f"disk.reserve.bytes={RESERVE_BYTES}",
        f"broker.session.timeout.ms={LEASE_MS}",
        "tail.cache.bytes=0",
    )
    server = KorvetServer(*(part for option in options for part in ("-s", option)))
    disk = Disk(server.data_dir, DISK_BYTES)
    try:
        server.start()
        create_topic(server.bootstrap, TOPIC, 1)
        yield server, disk
    finally:
        server.drop_redis()
        server.process.terminate()
        disk.unmount()
        server.discard()


@pytest.fixture
def client(korvet: tuple[KorvetServer, Disk]) -> Iterator[Client]:
    made = connect(korvet[0])
    yield made
    made.raw.socket.close()


def lasts(check: Callable[[], bool], rounds: int = 40) -> None:
    """What holds in every round, for several leases."""
    for _ in range(rounds):
        assert check()
        subprocess.run(["sleep", str(LASTING_S / rounds)], check=True)


@pytest.mark.short
def test_another_program_fills_the_disk(korvet: tuple[KorvetServer, Disk], client: Client) -> None:
    """To the last byte, between two checks of the disk."""
    server, disk = korvet
    load = LoadProducer(server.bootstrap, TOPIC, "full", idempotent=True)
    until(lambda: len(load.acknowledged) > 500, 20, "records are taken")
    disk.fill()
    until(lambda: produce(client) == NOT_ENOUGH_REPLICAS, 10, "records are refused")
    until(lambda: fetch(client) == NONE, 20, "records are read")
    lasts(lambda: fetch(client) == list_offsets(client) == NONE and produce(client) == NOT_ENOUGH_REPLICAS)
    assert server.process.running
    before = len(load.acknowledged)
    disk.make_room()
    until(lambda: len(load.acknowledged) > before, 10, "records are taken again")
    load.finish()
    found = {read.offset: read.record.value for read in read_all(server.bootstrap, TOPIC)}
    assert all(found[offset] == load.value(number) for number, offset in load.acknowledged.items())
    assert load.failed == {}
    until(lambda: commit(client) == NONE, 20, "groups commit")


def test_the_server_ends_on_a_full_disk(korvet: tuple[KorvetServer, Disk], client: Client) -> None:
    """As when a write meets the full disk before it is refused; no byte is left for its start."""
    server, disk = korvet
    assert produce(client) == NONE
    disk.fill()
    until(lambda: produce(client) == NOT_ENOUGH_REPLICAS, 10, "records are refused")
    found = read_all(server.bootstrap, TOPIC)
    server.kill_store()
    until(lambda: fetch(client) == NONE, 20, "records are read")
    lasts(lambda: fetch(client) == list_offsets(client) == NONE and produce(client) == NOT_ENOUGH_REPLICAS)
    assert read_all(server.bootstrap, TOPIC) == found != []
    disk.make_room()
    until(lambda: produce(client) == NONE, 10, "records are taken again")
    until(lambda: commit(client) == NONE, 20, "groups commit")


def test_records_fill_the_disk(korvet: tuple[KorvetServer, Disk], client: Client) -> None:
    """Up to the reserve, from which groups continue; with more room everything continues."""
    server, disk = korvet
    load = LoadProducer(server.bootstrap, TOPIC, "x" * RECORD_BYTES, idempotent=True, in_flight=10)
    until(lambda: produce(client) == NOT_ENOUGH_REPLICAS, 60, "records are refused")
    assert disk.free_bytes() > RESERVE_BYTES / 2
    lasts(lambda: fetch(client) == commit(client) == NONE and produce(client) == NOT_ENOUGH_REPLICAS)
    assert disk.free_bytes() > RESERVE_BYTES / 2
    before = len(load.acknowledged)
    disk.grow()
    until(lambda: len(load.acknowledged) > before, 10, "records are taken again")
    load.finish()
    assert load.failed == {}
    assert len(read_all(server.bootstrap, TOPIC)) >= load.sent


def test_a_start_without_room_is_refused(korvet: tuple[KorvetServer, Disk]) -> None:
    server, disk = korvet
    server.stop()
    disk.fill()
    server.spawn()
    until(lambda: not server.process.running, 20, "it ends")
    assert "free some space, or lower disk.reserve.bytes" in server.tail()
    disk.make_room()
    server.restart()
