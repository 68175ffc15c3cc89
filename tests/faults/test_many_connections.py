"""More connections than there is room for, thousands at once, and connections that their clients forget."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
from typing import TYPE_CHECKING

import pytest

from tests.support.polling import until
from tests.support.servers import KorvetServer
from tests.support.wire import ConnectionClosed, RawConnection, api_versions_request

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.faults

AT_ONCE = 1500


def serving(*options: str) -> Iterator[KorvetServer]:
    with KorvetServer(*options) as made:
        yield made
        assert made.stop() == 0


@pytest.fixture(scope="module")
def server() -> Iterator[KorvetServer]:
    yield from serving()


@pytest.fixture
def impatient() -> Iterator[KorvetServer]:
    yield from serving("--set", "connections.max.idle.ms=2000")


def works(server: KorvetServer) -> bool:
    try:
        with RawConnection(server.host, server.port) as connection:
            return connection.works()
    except (ConnectionClosed, OSError):
        return False


def test_thousands_of_clients_connect_at_once(server: KorvetServer) -> None:
    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        request = api_versions_request(5)
        writer.write(struct.pack(">i", len(request)) + request)
        answer = await reader.readexactly(10)
        writer.close()
        await writer.wait_closed()
        return answer[4:]

    async def all_at_once() -> list[bytes]:
        return await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(AT_ONCE))), 90)

    answers = asyncio.run(all_at_once())
    assert answers == [struct.pack(">ih", 5, 0)] * AT_ONCE


def test_a_connection_that_asks_nothing_is_closed_and_one_that_asks_is_not(impatient: KorvetServer) -> None:
    with (
        RawConnection(impatient.host, impatient.port) as forgotten,
        RawConnection(impatient.host, impatient.port) as used,
    ):
        forgotten.socket.setblocking(False)

        def closed() -> bool:
            assert used.works()
            try:
                return forgotten.socket.recv(1) == b""
            except BlockingIOError:
                return False

        until(closed, 20, "the end of the idle connection")
        assert used.works()


@pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="sets the limits of a running process: Linux only"
)
def test_no_more_files_to_open(server: KorvetServer) -> None:
    """The kernel refuses to accept: open connections continue, new ones succeed when there is room again."""
    pid = server.process.pid
    opened = len(os.listdir(f"/proc/{pid}/fd"))
    with RawConnection(server.host, server.port) as bystander:
        assert bystander.works()
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (opened + 10, limits[1]))
        try:
            crowd = [socket.create_connection((server.host, server.port), 10) for _ in range(50)]
            assert bystander.works()
            for one in crowd:
                one.close()
            until(lambda: works(server), 20, "clients can connect again")
            assert bystander.works()
        finally:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
