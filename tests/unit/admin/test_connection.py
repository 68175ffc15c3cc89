"""HTTP connections on real sockets: order, limits of size and time, clients that leave or don't read."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from korvet.admin import connection
from korvet.admin.connection import HttpConnection
from korvet.admin.http import MOST_HEAD_BYTES, Request, Response, text_response

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"


class Client:
    """The other end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.ended = asyncio.Event()

    async def response(self, *, body: bool = True) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        size = int(head.partition("Content-Length: ")[2].partition("\r\n")[0])
        return int(head.split(" ")[1]), await self.reader.readexactly(size) if body else b""

    async def end(self) -> bytes:
        """What still comes before the connection ends."""
        return await self.reader.read()


async def echo(request: Request) -> Response:
    await asyncio.sleep(0)
    return text_response(HTTPStatus.OK, request.path)


@asynccontextmanager
async def connected(
    answer: Callable[[Request], Any] = echo, most_body_bytes: int = 0
) -> AsyncIterator[Client]:
    ours, theirs = socket.socketpair()
    client = Client(*await asyncio.open_connection(sock=theirs))
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: HttpConnection(answer, client.ended.set, most_body_bytes), ours
    )
    try:
        yield client
    finally:
        client.writer.close()
        await client.ended.wait()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with connected() as client:
        client.writer.write(b"".join(GET % b"%d" % number for number in range(1000)))
        for number in range(1000):
            assert await client.response() == (200, b"/%d\n" % number)


@pytest.mark.parametrize(
    "request_bytes", [b"", GET % b"last", GET % b"first" + GET % b"last", (GET % b"cut")[:-1]]
)
async def test_a_client_that_sends_no_more_is_answered(request_bytes: bytes) -> None:
    async with connected() as client:
        client.writer.write(request_bytes)
        client.writer.write_eof()
        for page in (b"first", b"last"):
            if page in request_bytes:
                assert await client.response() == (200, b"/%b\n" % page)
        assert await client.end() == b""


async def test_the_head_of_a_page_has_its_size() -> None:
    async with connected() as client:
        client.writer.write(b"HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n" + GET % b"next")
        assert await client.response(body=False) == (200, b"")
        assert await client.response() == (200, b"/next\n")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * MOST_HEAD_BYTES, 431),
    ],
)
async def test_a_bad_request_ends_the_connection(request_bytes: bytes, status: int) -> None:
    async with connected() as client:
        client.writer.write(request_bytes)
        assert (await client.response())[0] == status
        assert await client.end() == b""


async def test_bodies_arrive_whole() -> None:
    async def size(request: Request) -> Response:
        return text_response(HTTPStatus.OK, f"{request.method} {len(request.body)}")

    most = 64 * 1024
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % most
    async with connected(size, most) as client:
        client.writer.write((post + b"x" * most) * 20 + GET % b"next")
        for _ in range(20):
            assert await client.response() == (200, b"POST %d\n" % most)
        assert await client.response() == (200, b"GET 0\n")


async def test_a_client_may_ask_for_the_end() -> None:
    async with connected() as client:
        client.writer.write(b"GET /x HTTP/1.0\r\n\r\n" + GET % b"ignored")
        assert await client.response() == (200, b"/x\n")
        assert await client.end() == b""


async def test_a_page_that_fails_is_logged_and_the_connection_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: Request) -> Response:
        if request.path == "/bad":
            raise RuntimeError("broken page")
        return await echo(request)

    async with connected(answer) as client:
        client.writer.write(GET % b"bad" + GET % b"good")
        assert (await client.response())[0] == 500
        assert await client.response() == (200, b"/good\n")
    assert "broken page" in caplog.text


@pytest.mark.parametrize("limit", ["_REQUEST_S", "_IDLE_S", "_ANSWER_S"])
async def test_slow_clients_and_pages_end(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, limit, 0.05)

    async def forever(request: Request) -> Response:
        await asyncio.Event().wait()
        return await echo(request)

    async with connected(forever if limit == "_ANSWER_S" else echo) as client:
        if limit == "_REQUEST_S":
            # Each byte arrives in time, but the request does not.
            try:
                while not client.ended.is_set():
                    client.writer.write(b"G")
                    await client.writer.drain()
                    await asyncio.sleep(0.01)
            except ConnectionError:
                pass
        else:
            client.writer.write(GET % b"")
            if limit == "_IDLE_S":
                assert (await client.response())[0] == 200
        await client.ended.wait()


async def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_ANSWER_S", 0.2)

    async def large(request: Request) -> Response:
        del request
        return Response(HTTPStatus.OK, [b"x" * 65_536] * 1_000)

    async with connected(large) as client:
        client.writer.write(GET % b"")
        await client.ended.wait()


async def test_a_large_page_arrives_whole() -> None:
    async def large(request: Request) -> Response:
        del request
        return Response(HTTPStatus.OK, [b"%08d" % number for number in range(500_000)])

    async with connected(large) as client:
        client.writer.write(GET % b"")
        _, body = await client.response()
        assert body == b"".join(b"%08d" % number for number in range(500_000))


async def test_requests_that_wait_are_bounded() -> None:
    go_on = asyncio.Event()

    async def slow(request: Request) -> Response:
        await go_on.wait()
        return await echo(request)

    async with connected(slow) as client:
        client.writer.write(GET % b"x" * 100_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.writer.drain()
        go_on.set()
        for _ in range(100_000):
            assert await client.response() == (200, b"/x\n")


async def test_an_end_ends_the_answer_too() -> None:
    """Also if the transport does not report its end, as one whose accept was cancelled."""
    ended = asyncio.Event()

    async def forever(request: Request) -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return await echo(request)

    made = HttpConnection(forever, lambda: None)
    made.connection_made(mock.Mock(spec=asyncio.Transport))
    made.data_received(GET % b"")
    await asyncio.sleep(0)
    made.end()
    await ended.wait()
    late = HttpConnection(forever, lambda: None)
    late.end()
    transport = mock.Mock(spec=asyncio.Transport)
    late.connection_made(transport)
    transport.abort.assert_called_once_with()
