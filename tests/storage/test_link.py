"""The link to Redis: order of replies, parsing, errors, and connections that break."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import uvloop

from korvet.records.kernel import pack_command
from korvet.redis import link as redis_link
from korvet.redis.address import SentinelAddress, parse_target, parse_url
from korvet.redis.errors import LinkLost, StorageError, StorageFault, StoreError, WrongType
from korvet.redis.link import RedisLink
from tests.storage.proxy import Proxy, proxied, until
from tests.support.ports import free_port
from tests.support.redis_server import server_programs

if TYPE_CHECKING:
    from tests.support.redis_server import Server

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine on each kind of event loop."""

    def runner(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as one:
            one.run(asyncio.wait_for(work, 30))

    return runner


Run = Callable[[Coroutine[Any, Any, None]], None]


# The timeout in tests with a silent peer: long enough for a reply on a busy machine.
TIMEOUT_MS = 1500


@asynccontextmanager
async def linked(url: str, timeout_ms: int = 15_000) -> AsyncIterator[RedisLink]:
    (address,) = parse_url(url)
    link = await RedisLink.connect(msgspec.structs.replace(address, timeout_ms=timeout_ms))
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def proxied_link(server: Server, timeout_ms: int = 15_000) -> AsyncIterator[tuple[Proxy, RedisLink]]:
    async with proxied(server.socket) as (proxy, url), linked(url, timeout_ms) as link:
        yield proxy, link


@pytest.mark.each_server
def test_replies_come_in_order_and_parsed(server: Server, prefix: str, run: Run) -> None:
    async def work() -> None:
        async with linked(server.url) as link:
            big = b"x" * 3_000_000
            replies = await asyncio.gather(
                link.call("SET", prefix, big),
                link.call("GET", prefix),
                link.call("LRANGE", prefix + "none", 0, -1),
                link.call("INCRBY", prefix + "n", 5),
                link.call("GET", prefix + "none"),
            )
            assert replies == [b"OK", big, [], 5, None]

    run(work())


def test_raw_replies_in_many_pieces(server: Server, prefix: str, run: Run) -> None:
    async def work() -> None:
        async with linked(server.url) as link:
            got: list[bytes | StorageError] = []
            finished = asyncio.get_running_loop().create_future()

            def arrived(reply: memoryview | StorageError) -> None:
                got.append(reply if isinstance(reply, StorageError) else bytes(reply))
                if len(got) == 2000:
                    finished.set_result(None)

            for number in range(2000):
                command = pack_command("ECHO", "y" * number)
                link.send((command[:10], command[10:]), arrived)
            assert not got
            await finished
            assert got == [b"$%d\r\n%b\r\n" % (number, b"y" * number) for number in range(2000)]

    run(work())


@pytest.mark.each_server
def test_error_replies_are_raised_as_domain_errors(server: Server, prefix: str, run: Run) -> None:
    async def work() -> None:
        async with linked(server.url) as link:
            await link.call("SET", prefix, "x")
            with pytest.raises(WrongType, match=r"^WRONGTYPE "):
                await link.call("XLEN", prefix)
            with pytest.raises(StorageFault, match=r"^ERR "):
                await link.call("INCR", prefix)

    run(work())


def test_a_callback_that_raises_does_not_affect_other_callers(
    server: Server, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with linked(server.url) as link:

            def broken(reply: memoryview | StorageError) -> None:
                raise ValueError("not mine")

            link.send(pack_command("PING"), broken)
            assert await link.call("ECHO", "z") == b"z"
        assert "not mine" in vars(caplog.records[0])["traceback"]

    run(work())


def test_a_broken_connection_fails_commands_in_flight_and_is_opened_again(
    server: Server, prefix: str, run: Run
) -> None:
    async def work() -> None:
        async with proxied_link(server) as (proxy, link):
            proxy.hold_replies()
            proxy.refusing = True
            futures = [link.call("INCR", prefix) for _ in range(3)]
            await until(lambda: int(server.client.get(prefix) or 0) == 3)
            await proxy.cut()
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [LinkLost] * 3
            assert not link.connected
            with pytest.raises(LinkLost):
                await link.call("PING")
            proxy.refusing = False
            await link.wait_connected(10_000)
            assert await link.call("GET", prefix) == b"3"

    run(work())


def test_a_callback_that_raises_after_a_reconnect_costs_no_second_connection(
    server: Server, prefix: str, run: Run
) -> None:
    async def work() -> None:
        async with proxied_link(server) as (proxy, link):
            calls = 0

            def came_up() -> None:
                nonlocal calls
                calls += 1
                if calls == 1:
                    raise RuntimeError("a defect")

            link.on_up = came_up
            await proxy.cut()
            await until(lambda: calls == 2)
            assert proxy.connections == 2
            await link.call("SET", prefix, "1")

    run(work())


def test_waiting_for_a_lost_server_is_bounded(server: Server, run: Run) -> None:
    async def work() -> None:
        async with proxied_link(server) as (proxy, link):
            proxy.refusing = True
            await proxy.cut()
            await until(lambda: not link.connected)
            with pytest.raises(LinkLost):
                await link.call("PING")
            with pytest.raises(LinkLost, match="within 50 ms"):
                await link.wait_connected(50)

    run(work())


@pytest.mark.each_server
async def test_password_user_and_database(new_server: Callable[..., Server]) -> None:
    protected = new_server()
    protected.client.execute_command("ACL", "SETUSER", "ada", "on", ">secret", "~*", "&*", "+@all")
    protected.client.execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
    path = protected.socket
    async with linked(f"unix://ada:secret@{path}?db=3") as link:
        assert await link.call("ACL", "WHOAMI") == b"ada"
        assert b"db=3 " in await link.call("CLIENT", "INFO")
    async with linked(f"unix://:other@{path}") as link:
        assert await link.call("ACL", "WHOAMI") == b"default"
    with pytest.raises(StoreError, match="WRONGPASS"):
        await RedisLink.connect(*parse_url(f"unix://ada:wrong@{path}"))
    with pytest.raises(StoreError, match="NOAUTH"):
        await RedisLink.connect(*parse_url(f"unix://{path}"))


@pytest.mark.parametrize(("scheme", "hint"), [("redis", "$"), ("rediss", "; does this port use TLS\\?$")])
def test_a_silent_server_is_reported(monkeypatch: pytest.MonkeyPatch, scheme: str, hint: str) -> None:
    monkeypatch.setattr(redis_link, "_HANDSHAKE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = "{}://{}:{}".format(scheme, *listening.getsockname())
        with pytest.raises(StoreError, match=f"cannot be reached: no answer in time{hint}"):
            asyncio.run(RedisLink.connect(*parse_url(url)))


async def test_an_address_that_answers_nothing_does_not_hide_the_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name stands for several sentinels, and the machine of the first one is gone."""
    monkeypatch.setattr(redis_link, "_HANDSHAKE_TIMEOUT_S", 4.0)
    async with proxied(server.socket) as (_, url):
        (address,) = parse_url(url)
        with socket.socket() as silent, contextlib.ExitStack() as crowd:
            silent.bind(("127.0.0.2", address.port))
            silent.listen(0)
            # The queue is full, and the kernel drops further connections.
            for _ in range(2):
                client = crowd.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.2", address.port))
            found = [
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, address.port))
                for host in ("127.0.0.2", "127.0.0.1")
            ]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            link = await RedisLink.connect(msgspec.structs.replace(address, host="sentinels"))
            monkeypatch.undo()
            assert await link.call("PING") == b"PONG"
            await link.close()


def test_an_unreachable_server_is_reported(tmp_path: Any) -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        asyncio.run(RedisLink.connect(*parse_url(f"unix://{tmp_path}/none")))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://h:7/2", ("h", 7, None, False, None, None, 2)),
        ("rediss://u:p%40@h", ("h", 6379, None, True, "u", "p@", 0)),
        ("unix:///run/r.sock?db=1", ("localhost", 6379, "/run/r.sock", False, None, None, 1)),
        ("redis://:secret@h", ("h", 6379, None, False, None, "secret", 0)),
        ("unix:/run/r.sock\n", ("localhost", 6379, "/run/r.sock", False, None, None, 0)),
    ],
)
def test_urls(url: str, expected: tuple[object, ...]) -> None:
    (address,) = parse_url(url)
    assert expected == (
        address.host,
        address.port,
        address.socket_path,
        address.tls,
        address.username,
        address.password,
        address.database,
    )


def test_several_nodes_share_the_options_of_the_url() -> None:
    found = parse_url("rediss://u:a,b@one:7,two,[::1]:8")
    assert [(address.host, address.port) for address in found] == [("one", 7), ("two", 6379), ("::1", 8)]
    assert {(address.tls, address.username, address.password) for address in found} == {(True, "u", "a,b")}


@pytest.mark.parametrize(
    ("url", "parameter"),
    [
        ("redis://h?ssl_cert_reqs=none", "ssl_cert_reqs"),
        ("redis://h?sentinel_password=secret", "sentinel_password"),
        ("redis+sentinel://h/name?sentinel_pasword=secret", "sentinel_pasword"),
    ],
)
def test_unknown_parameters_of_urls_are_refused(url: str, parameter: str) -> None:
    with pytest.raises(
        StoreError, match=f"unknown parameter '{parameter}'; there are db, password"
    ) as caught:
        parse_target(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "sentinels", "tls", "database"),
    [
        ("redis+sentinel://a:1,b,[::1]:2/main", [("a", 1), ("b", 26379), ("::1", 2)], (False, False), 0),
        ("rediss+sentinel://a/main/3", [("a", 26379)], (True, True), 3),
        ("rediss+sentinel://a/main?sentinel_tls=no&db=4", [("a", 26379)], (True, False), 4),
        ("redis+sentinel://a/main/?sentinel_tls=yes", [("a", 26379)], (False, True), 0),
    ],
)
def test_urls_of_sentinels(
    url: str, sentinels: list[tuple[str, int]], tls: tuple[bool, bool], database: int
) -> None:
    found = parse_target(url)
    assert isinstance(found, SentinelAddress)
    assert found.name == "main"
    assert [(each.host, each.port) for each in found.sentinels] == sentinels
    assert (found.server.tls, {each.tls for each in found.sentinels}) == (tls[0], {tls[1]})
    assert (found.server.database, {each.database for each in found.sentinels}) == (database, {0})


def test_servers_and_sentinels_have_users_of_their_own() -> None:
    found = parse_target("redis+sentinel://ada:p%40@h/a%20b?sentinel_username=bob&sentinel_password=s%26t")
    assert isinstance(found, SentinelAddress)
    assert (found.name, found.server.username, found.server.password) == ("a b", "ada", "p@")
    assert [(each.username, each.password) for each in found.sentinels] == [("bob", "s&t")]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://:secret@h",
        "redis+sentinel://:secret@h/",
        "redis+sentinel://:secret@h/name/x",
        "redis+sentinel://:secret@h:x/name",
        "redis+sentinel://u:secret/secret@h/name",
        "redis+sentinel://h/name?sentinel_tls=maybe&sentinel_password=secret",
        "unix+sentinel://h/name?sentinel_password=secret",
    ],
)
def test_bad_urls_of_sentinels_are_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse_target(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis+sentinel://:secret@h/name",
        "redis://u:secret@h/x",
        "unix://",
        "redis://h:port",
        "redis://:secret@h:70000",
        "redis://:secret@one:7,two:x",
        "redis://:secret@[::1",
        "redis://:secret@one:7,[::1",
        "redis://:secret@a..b:7",
        "redis://u:secret/secret@h:1",
        "redis://:1/secret@h",
        "redis://:secret#secret@h",
        "redis://:secret?secret@h:1",
        "redis://:secret?secret=secret@h",
        "unix://u:1/secret@/run/redis.sock",
        "h:6379",
    ],
)
def test_bad_urls_are_refused_without_showing_the_password(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_connecting_can_be_cancelled_at_any_time(server: Server, run: Run) -> None:
    async def connect() -> None:
        link = await RedisLink.connect(*parse_url(server.url))
        await link.close()

    async def work() -> None:
        for turns in itertools.count():
            connecting = asyncio.create_task(connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            if connecting.done():
                assert turns > 3
                return
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting

    run(work())


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "idle"])
def test_a_silent_peer_is_given_up(server: Server, prefix: str, run: Run, asked: bool) -> None:
    """A half-open connection: the peer vanished without closing it. Idle connections notice it too."""

    async def work() -> None:
        async with proxied_link(server, TIMEOUT_MS) as (proxy, link):
            await link.call("SET", prefix, "there")
            proxy.hold_replies()
            if asked:
                with pytest.raises(LinkLost, match=f"sent no reply for {TIMEOUT_MS} ms"):
                    await link.call("GET", prefix)
            await until(lambda: not link.connected)
            await proxy.cut()
            await link.wait_connected(10_000)
            assert await link.call("GET", prefix) == b"there"

    run(work())


@pytest.mark.parametrize("server", server_programs()[:1], indirect=True, ids=["valkey-server"])
def test_a_subscribed_connection_to_a_silent_peer_is_given_up(server: Server, prefix: str, run: Run) -> None:
    """Nothing is sent on it but messages: it must be tested although none is due."""

    async def work() -> None:
        async with proxied_link(server, TIMEOUT_MS) as (proxy, other):
            heard = asyncio.Event()
            link = RedisLink.begin(other.address, on_push=heard.set)
            try:
                for _ in range(2):
                    await link.wait_connected(10_000)
                    await link.call("SUBSCRIBE", prefix)
                    await asyncio.sleep(2 * TIMEOUT_MS / 1000)
                    assert link.connected
                    heard.clear()
                    server.client.publish(prefix, "message")
                    await asyncio.wait_for(heard.wait(), 10)
                    proxy.hold_replies()
                    await until(lambda: not link.connected)
                    await proxy.cut()
            finally:
                await link.close()

    run(work())


def test_a_slow_peer_is_waited_for(run: Run) -> None:
    """One reply comes late; another one comes in pieces, over a longer time than the timeout."""
    replies: dict[bytes, list[tuple[float, bytes]]] = {
        b"late": [(0.5 * TIMEOUT_MS, b"$1\r\nx\r\n")],
        b"long": [(0, b"$8\r\n"), *[(TIMEOUT_MS / 4, b"y")] * 8, (0, b"\r\n")],
    }

    peers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(asyncio.current_task())
        while line := await reader.readline():
            if line.startswith(b"*"):
                name = (await reader.readline(), await reader.readline())[1].strip()
                for _ in range(2 * (int(line[1:]) - 1)):
                    await reader.readline()
                for pause_ms, piece in replies.get(name, [(0, b"+PONG\r\n")]):
                    await asyncio.sleep(pause_ms / 1000)
                    writer.write(piece)
                    await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def work() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            async with linked(f"redis://127.0.0.1:{port}", TIMEOUT_MS) as link:
                lost = []
                link.on_down = lambda: lost.append(1)
                assert await link.call("late") == b"x"
                assert await link.call("long") == b"y" * 8
                assert not lost
            await asyncio.gather(*filter(None, peers))

    run(work())


def test_the_kernel_gives_up_a_peer_that_acknowledges_nothing(server: Server, run: Run) -> None:
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("this system has no TCP_USER_TIMEOUT")

    async def work() -> None:
        async with proxied_link(server, TIMEOUT_MS) as (_, link):
            assert link._connection is not None
            assert link._connection.transport is not None
            own = link._connection.transport.get_extra_info("socket")
            assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == TIMEOUT_MS

    run(work())


def test_who_closes_a_link_can_be_cancelled(run: Run) -> None:
    async def work() -> None:
        (address,) = parse_url(f"redis://127.0.0.1:{free_port()}")
        link = RedisLink.begin(address)
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(link.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await link.close()

    run(work())
