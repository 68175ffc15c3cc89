"""The listening sockets: which addresses they are bound to, and what happens if none can be accepted."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING, Any

import pytest

from korvet.server import acceptor
from korvet.server.acceptor import Acceptor, bind
from korvet.server.connection import Connection
from korvet.server.connections import ConnectionLimits, Connections
from tests.support.polling import until_async
from tests.support.ports import has_ipv6
from tests.support.running import run
from tests.unit.server.transports import MAX_REQUEST_BYTES, Held, framed, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 20
HAS_IPV6 = has_ipv6()


def close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "", "::", "0:0::0"])
def test_every_address_of_a_host_has_the_same_port(host: str) -> None:
    bound = run(bind(host, 0))
    try:
        assert len({each.getsockname()[1] for each in bound}) == 1
        assert socket.AF_INET in {each.family for each in bound}
    finally:
        close(bound)


@pytest.mark.skipif(not HAS_IPV6, reason="this machine has no IPv6")
@pytest.mark.parametrize(("host", "families"), [("::", {4, 6}), ("", {4, 6}), ("0.0.0.0", {4}), ("::1", {6})])
def test_the_families_of_an_address(host: str, families: set[int]) -> None:
    """:: serves both, as in Java."""
    bound = run(bind(host, 0))
    try:
        assert {6 if each.family == socket.AF_INET6 else 4 for each in bound} == families
    finally:
        close(bound)


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port}: ") as caught:
            run(bind("127.0.0.1", port))
        assert caught.value.errno == errno.EADDRINUSE


def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(OSError, match=r"no-host\.invalid:9092: ") as caught:
        run(bind("no-host.invalid", 9092))
    assert caught.value.errno == errno.EADDRNOTAVAIL


class Failing(socket.socket):
    """A listening socket whose first accepts fail."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            number = self.errors.pop(0)
            raise OSError(number, errno.errorcode[number])
        return super().accept()


async def arrived(held: Held) -> bool:
    return bool(held.answers)


async def gone(connections: Connections) -> bool:
    return not len(connections)


@pytest.fixture
def listening() -> Iterator[Failing]:
    with Failing() as made:
        made.setblocking(False)
        made.bind(("127.0.0.1", 0))
        yield made


@pytest.mark.parametrize(
    "error", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EPROTO, errno.ECONNABORTED]
)
async def test_clients_wait_while_none_can_be_accepted(
    error: int, listening: Failing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.01)
    listening.errors = [error, error]
    connections, held = Connections(ConnectionLimits(10, 10)), Held()
    accepting = Acceptor("A", [listening], connections, None, 1.0)

    def connect(leave: Callable[[], None]) -> Connection:
        connection = Connection(held, MAX_REQUEST_BYTES, connections)
        connection.on_disconnect(leave)
        return connection

    accepting.start(connect)
    reader, writer = await asyncio.open_connection("127.0.0.1", accepting.port)
    writer.write(framed(request(1)))
    await until_async(lambda: arrived(held), DEADLINE_S, "the request has arrived")
    held.answers[0]([b"answer"])
    assert (await reader.readexactly(10))[4:] == b"answer"
    writer.close()
    await writer.wait_closed()
    await until_async(lambda: gone(connections), DEADLINE_S, "the connection has ended")
    assert connections.admit("A", "/127.0.0.1") is not None
    accepting.close()
    of_the_process = error in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS}
    assert ("no connection can be accepted" in caplog.text) == of_the_process
    assert not listening.errors
