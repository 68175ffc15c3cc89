"""The cost of one client's few bytes: the broker's memory stays bounded, and other clients do not wait."""

from __future__ import annotations

import gzip
import struct
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import cramjam
import pytest

from tests.api.asking import connect, frame
from tests.api.batches import GZIP, ZSTD, batch
from tests.api.test_produce import request_of
from tests.support.admin import create_topic
from tests.support.bystander import OtherClient, peak_bytes
from tests.support.polling import until
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.faults, pytest.mark.long]

MEMORY_BYTES = 1 << 30
WAIT_S = 1.0
MIB = 1 << 20
# As large as producers sent them before there was a bound near the message size.
LARGE = {"max.decompressed.message.bytes": str(64 * MIB)}
FETCH = {"max_wait": 100, "min_bytes": 1, "session_epoch": -1, "session_id": 0}


@pytest.fixture
def server() -> Iterator[KorvetServer]:
    with KorvetServer("--set", "embedded.appendfsync=no", "--set", "message.max.bytes=10000000") as made:
        yield made
        assert made.stop() == 0


def zstd(pairs: list[tuple[bytes | None, bytes | None]]) -> bytes:
    return batch(pairs, attributes=ZSTD, compress=lambda plain: bytes(cramjam.zstd.compress(plain)))


def gzipped(pairs: list[tuple[bytes | None, bytes | None]], **options: Any) -> bytes:
    return batch(pairs, attributes=GZIP, compress=partial(gzip.compress, compresslevel=9), **options)


@contextmanager
def nobody_pays(server: KorvetServer) -> Iterator[OtherClient]:
    """The broker's memory and the other client's waits must stay bounded."""
    with OtherClient(server) as other:
        yield other
    peak = peak_bytes(server)
    figures = f"peak {peak / MIB:.0f} MiB, longest wait {other.longest_s:.3f} s in {other.rounds} rounds"
    assert peak < MEMORY_BYTES, figures
    assert other.longest_s < WAIT_S, figures


def pipelined(server: KorvetServer, batches: list[bytes], topic: str) -> list[int]:
    """The error codes of one request per batch, all sent at once."""
    client = connect(server, timeout_s=300)
    with client.raw as raw:
        raw.send_all(
            frame("Produce", 9, number, **request_of([(topic, 0, records)]))
            for number, records in enumerate(batches)
        )
        return [struct.unpack(">h", _partition(raw.receive())[4:6])[0] for _ in batches]


def _partition(answer: bytes) -> bytes:
    """The position of the one partition in a Produce response (v9), after header, counts and the name."""
    name = 4 + 1 + 1
    return answer[name + answer[name] + 1 :]


@pytest.mark.parametrize("shape", ["one record", "many records"])
def test_pipelined_batches_of_much_more_than_they_seem(server: KorvetServer, shape: str) -> None:
    create_topic(server.bootstrap, "bombs", 1)
    pairs: list[tuple[bytes | None, bytes | None]] = [(None, bytes(9 * MIB))]
    times = 60
    if shape == "many records":
        pairs, times = [(None, b"")] * 75_000, 20
    bomb = zstd(pairs)
    assert len(bomb) < 500_000
    with nobody_pays(server):
        assert pipelined(server, [bomb] * times, "bombs") == [0] * times


def test_a_request_of_batches_that_are_refused(server: KorvetServer) -> None:
    create_topic(server.bootstrap, "refused", 1)
    late = gzipped([(b"k", bytes(9 * MIB))], timestamp_ms=2**50)
    with nobody_pays(server), connect(server, timeout_s=300).raw as raw:
        raw.send(frame("Produce", 9, 1, **request_of([("refused", 0, late)] * (6_500_000 // len(late)))))
        raw.receive()


def test_many_connections_with_a_batch_each(server: KorvetServer) -> None:
    create_topic(server.bootstrap, "bombs", 1)
    bomb = frame("Produce", 9, 1, **request_of([("bombs", 0, zstd([(None, bytes(9 * MIB))]))]))
    with nobody_pays(server), ExitStack() as stack:
        clients = [stack.enter_context(connect(server, timeout_s=300).raw) for _ in range(60)]
        for _ in range(2):
            for raw in clients:
                raw.send(bomb)
            for raw in clients:
                raw.receive()


def fill(server: KorvetServer, topic: str, size_bytes: int) -> None:
    """Records that only Redis has."""
    payload = batch([(b"k", bytes([number % 251]) * 9_000) for number in range(100)])
    for done in range(0, size_bytes, 20 * len(payload)):
        del done
        assert pipelined(server, [payload] * 20, topic) == [0] * 20


def test_clients_that_ask_for_cold_data_and_never_read(server: KorvetServer) -> None:
    server.stop()
    server.options += ["--set", "tail.cache.bytes=0"]
    server.start()
    create_topic(server.bootstrap, "cold", 1)
    fill(server, "cold", 60 * MIB)
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100 * MIB}
    asked = dict(FETCH, max_bytes=100 * MIB, topics=[{"topic": "cold", "partitions": [wanted]}])
    with nobody_pays(server) as other, ExitStack() as stack:
        for _ in range(120):
            client = connect(server)
            stack.enter_context(client.raw)
            client.send("Fetch", 11, **asked)
        before = other.rounds
        until(lambda: other.rounds > before + 100, 60, "the other client goes on")
        # A client that asks for as much and reads it gets all of it.
        assert read_through(server, "cold") >= 60 * MIB


def read_through(server: KorvetServer, topic: str) -> int:
    """Bytes of a whole partition."""
    client = connect(server)
    size = offset = 0
    with client.raw:
        while True:
            wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 100 * MIB}
            topics = [{"topic": topic, "partitions": [wanted]}]
            answer = client("Fetch", 11, **FETCH, max_bytes=100 * MIB, topics=topics)
            (part,) = answer.responses[0].partitions
            assert part.error_code == 0
            if not part.records:
                return size
            size += len(part.records)
            offset = _offset_behind(part.records)


def _offset_behind(records: bytes) -> int:
    """The offset after the last of whole record batches."""
    at = behind = 0
    while at < len(records):
        base, length = struct.unpack_from(">qi", records, at)
        behind = base + struct.unpack_from(">i", records, at + 23)[0] + 1
        at += 12 + length
    return behind


def test_old_clients_that_fetch_zstd(server: KorvetServer) -> None:
    """Fetch below version 10 decompresses its batches."""
    create_topic(server.bootstrap, "zstd", 1, {**LARGE, "storage.layout": "batch"})
    assert pipelined(server, [zstd([(None, bytes(50 * MIB))])] * 4, "zstd") == [0] * 4
    wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100 * MIB}
    asked = dict(FETCH, max_bytes=100 * MIB, topics=[{"topic": "zstd", "partitions": [wanted]}])
    with nobody_pays(server), ExitStack() as stack:
        clients = [connect(server, timeout_s=300) for _ in range(12)]
        for client in clients:
            stack.enter_context(client.raw)
            client.send("Fetch", 9, **asked)
        for client in clients:
            (part,) = client.receive("Fetch", 9).responses[0].partitions
            assert part.error_code == 0
