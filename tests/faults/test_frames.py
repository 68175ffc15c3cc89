"""Frames that no client sends: their connection may end, and no other client notices anything."""

from __future__ import annotations

import random
import struct
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.clients.test_confluent import numbered
from tests.clients.test_wire_replay import CLIENTS, captured
from tests.support.bystander import Bystander
from tests.support.confluent import producer, read_all, send
from tests.support.polling import until
from tests.support.records import NOW_MS, Record
from tests.support.wire import RawConnection, advertised, api_versions_request, decode_response, header

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.faults, pytest.mark.clients]

UNSUPPORTED_VERSION = 35
PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18


@pytest.fixture
def bystander(broker) -> Iterator[RawConnection]:
    """Another client's connection; it must still work when the test is over."""
    with RawConnection(broker.host, broker.port) as connection:
        assert connection.works()
        yield connection
        assert connection.works()


@pytest.fixture
def connection(broker) -> Iterator[RawConnection]:
    with RawConnection(broker.host, broker.port) as made:
        yield made


@pytest.mark.parametrize(
    "start",
    [
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 150_000_000),
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 600,
    ],
    ids=["2 GB", "above the limit", "-1", "-2 GB", "HTTP", "TLS"],
)
def test_an_impossible_length_closes_the_connection_at_once(connection, bystander, start):
    connection.socket.sendall(start)
    assert connection.closed_by_server()


SHORT = [b"", b"\x00", b"\x00\x12\x00\x00", b"\x00\x03\x00\x0d\x00\x00\x00\x01\x7f\xff"]


@pytest.mark.parametrize("frame", SHORT)
def test_a_frame_too_short_for_its_header_closes_the_connection(connection, bystander, frame):
    connection.send(frame)
    assert connection.closed_by_server()


def test_one_log_line_per_bad_connection(korvet, broker, bystander):
    """And without a traceback."""
    before = len(korvet.log.read_text())
    with RawConnection(broker.host, broker.port) as bad:
        bad.send(b"\x00\x03\x00\x0c\x00\x00\x00\x01\x00\x04")
        assert bad.closed_by_server()
    logged = until(lambda: korvet.log.read_text()[before:], 20, "a line is logged")
    assert logged.count("\n") == 1
    assert "Traceback" not in logged


@pytest.mark.parametrize("version", [5, 99, 32_767])
def test_api_versions_of_an_unknown_version(broker, connection, bystander, version):
    """Error 35 in a response of version 0, whatever follows the request's header (KIP-511)."""
    if advertised(broker.host, broker.port)[API_VERSIONS][1] >= version:
        pytest.skip(f"this server knows ApiVersions v{version}")
    answer = connection.ask(header(API_VERSIONS, version, 5) + b"\x00\x0aclientname\x08v1.2.3\x00")
    response = decode_response(API_VERSIONS, 0, answer)
    served = {int(api.api_key) for api in response.message.api_keys}
    assert (response.correlation_id, int(response.message.error_code)) == (5, UNSUPPORTED_VERSION)
    assert API_VERSIONS in served
    assert connection.works()


def test_an_unknown_version_of_another_api(korvet, broker, bystander):
    versions = advertised(broker.host, broker.port)
    for api_key, (_, highest) in versions.items():
        if api_key == API_VERSIONS:
            continue
        with RawConnection(broker.host, broker.port) as connection:
            answer = connection.ask(header(api_key, highest + 1, 1_000 + api_key) + b"\x00" * 8)
            assert struct.unpack_from(">i", answer)[0] == 1_000 + api_key
            assert connection.works(), f"API {api_key} v{highest + 1}"


@pytest.mark.parametrize("api_key", [4, 54, 500, 32_767, -1])
def test_an_unknown_api(korvet, broker, bystander, api_key):
    assert api_key not in advertised(broker.host, broker.port)
    with RawConnection(broker.host, broker.port) as connection:
        answer = connection.ask(header(api_key, 0, 9) + b"\x00" * 20)
        assert struct.unpack_from(">ih", answer) == (9, UNSUPPORTED_VERSION)
        assert connection.works()


def test_what_is_advertised_is_handled(korvet, broker, bystander):
    """An empty body for every API and version: closed as malformed or answered, never left alone."""
    for api_key, (lowest, highest) in advertised(broker.host, broker.port).items():
        for version in range(lowest, highest + 1):
            with RawConnection(broker.host, broker.port, timeout_s=5) as connection:
                connection.send(header(api_key, version, 3))
                connection.socket.shutdown(1)  # half-closed: the answer still comes, then the end
                assert connection.closed_by_server(), (api_key, version)


def mutations(source: random.Random, frame: bytes) -> Iterator[bytes]:
    """A frame cut short, with flipped bytes, with an inflated length inside, with bytes after its end."""
    yield frame[: source.randint(8, len(frame) - 1)]
    for _ in range(3):
        damaged = bytearray(frame)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(8, len(damaged))] = source.randrange(256)
        yield bytes(damaged)
    position = source.randrange(8, len(frame))
    yield frame[:position] + b"\x7f\xff\xff\xff" + frame[position:]
    yield frame + source.randbytes(20)


@pytest.mark.parametrize("client", CLIENTS)
def test_damaged_requests(broker, bystander, client):
    """Every captured request, damaged: each connection is answered or closed, and others continue."""
    source = random.Random(client)
    versions = advertised(broker.host, broker.port)
    for request in captured(client):
        low, high = versions.get(request.api_key, (0, -1))
        # JoinGroup with a damaged session or rebalance timeout may wait for that timeout.
        if not low <= request.api_version <= high or request.api_key in (FETCH, 11, 14):
            continue
        for frame in mutations(source, request.frame):
            with RawConnection(broker.host, broker.port) as connection:
                connection.send(frame)
                connection.socket.shutdown(1)
                assert connection.closed_by_server(), (client, request.api_key, frame.hex())
        assert bystander.works()


def test_half_frames_wait_and_cost_nobody_anything(broker, topic):
    """200 connections that stop in the middle of a frame, and one that continues byte by byte."""
    frame = api_versions_request(7)
    whole = struct.pack(">i", len(frame)) + frame
    halves = [RawConnection(broker.host, broker.port) for _ in range(200)]
    for number, half in enumerate(halves):
        half.socket.sendall(whole[: 1 + number % (len(whole) - 1)])
    records = numbered(200)
    send(producer(broker.bootstrap), topic, 0, records)
    assert [read.record for read in read_all(broker.bootstrap, topic)] == records
    for number, half in enumerate(halves):
        half.socket.sendall(whole[1 + number % (len(whole) - 1) :])
        assert half.receive()[:4] == struct.pack(">i", 7)
        half.socket.close()
    with RawConnection(broker.host, broker.port) as slow:
        for byte in whole:
            slow.socket.sendall(bytes([byte]))
        assert slow.receive()[:4] == struct.pack(">i", 7)


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def fetch_request(topic: str, offset: int, correlation_id: int) -> bytes:
    """Fetch v4 of partition 0: up to 50 MB, at once."""
    name = topic.encode()
    return header(FETCH, 4, correlation_id) + struct.pack(
        f">iiiibih{len(name)}siiqi", -1, 0, 1, 50_000_000, 0, 1, len(name), name, 1, 0, offset, 50_000_000
    )


def test_a_client_that_does_not_read_its_answers(korvet, broker, topic):
    """Responses are not prepared ahead without a limit, and other clients are served as before."""
    value = random.Random(1).randbytes(900_000)
    writer = producer(broker.bootstrap)
    first = send(writer, topic, 0, [Record(None, value, (), NOW_MS)] * 20)[0]
    before = resident_bytes(korvet.process.pid)
    readers = [RawConnection(broker.host, broker.port) for _ in range(3)]
    asking = [
        threading.Thread(target=ask_a_lot, args=(reader, topic, first), daemon=True) for reader in readers
    ]
    for thread in asking:
        thread.start()
    sizes: list[int] = []
    deadline = time.monotonic() + 5

    def is_over() -> bool:
        sizes.append(resident_bytes(korvet.process.pid))
        return time.monotonic() > deadline

    with Bystander(korvet) as other:
        until(is_over, 5, "five seconds")
    assert len(send(writer, topic, 0, numbered(5))) == 5
    for reader in readers:
        reader.socket.close()
    # Three responses of 18 MB may be in preparation at once, each in a few copies; 300 of them would be 5 GB.
    assert max(sizes) - before < 600_000_000
    assert other.longest_s < 2.0


def ask_a_lot(reader: RawConnection, topic: str, offset: int) -> None:
    """100 large fetches on one connection, none of whose responses is read."""
    try:
        for number in range(100):
            reader.send(fetch_request(topic, offset, number))
    except OSError:
        return  # the test is over and has closed the socket
