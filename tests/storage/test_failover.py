"""A primary that is demoted, or cannot write, while its address leads to another server."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from korvet.records.kernel import encode_append_records
from korvet.redis.address import parse_url
from korvet.redis.errors import LinkLost, StorageError
from korvet.redis.keys import Keyspace
from korvet.redis.link import LINKS, RedisLink
from korvet.redis.server import OneServer
from korvet.redis.server import Server as Links
from korvet.store import Store
from tests.storage.proxy import Proxy, proxied_store, until
from tests.support.logs import append_own
from tests.support.polling import until_async
from tests.support.ports import accepts, free_port
from tests.support.proxy import CuttingProxy
from tests.support.running import end_serving
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from korvet.log.partition_log import PartitionLog
    from tests.support.redis_server import Server

    NewServer = Callable[..., Server]

RECOVERY_S = 10
# Half-open connections are noticed within 5 s on an idle machine. The timeout of silent ones is longer.
NOTICED_S = 14
# Longer than the silence after which a connection is checked.
SLOW_S = 5


def record(number: int) -> object:
    return encode_append_records([(b"", b"%d" % number, 5)])


def replicated(new_server: NewServer) -> tuple[Server, Server]:
    """A primary, and a replica that has received all of its data."""
    port = free_port()
    primary, replica = new_server("--port", str(port)), new_server("--repl-diskless-sync-delay", "0")
    replica.follow(port)
    return primary, replica


async def appended(log: PartitionLog, number: int) -> bool:
    """Whether an append is acknowledged; a refused append must be retriable."""
    try:
        await append_own(log, record(number))
    except StorageError:
        return False
    return True


def values(server: Server, log: PartitionLog) -> list[bytes]:
    return [fields[b"value"] for _, fields in server.client.xrange(log.stream)]


@pytest.mark.parametrize("busy", [True, False], ids=["with appends in flight", "idle"])
async def test_a_demoted_primary_is_left_for_the_new_one(
    new_server: NewServer, prefix: str, busy: bool
) -> None:
    old, new = replicated(new_server)
    port = old.client.config_get("port")["port"]
    async with proxied_store(old.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        acknowledged = [number for number in range(10) if await appended(log, number)]
        assert len(acknowledged) == 10
        old.client.set("sent", 1)
        old.client.wait(1, 5000)
        in_flight = [asyncio.ensure_future(appended(log, number)) for number in range(10, 20 if busy else 10)]
        await asyncio.sleep(0)
        proxy.socket = new.socket
        old.client.client_pause(50)
        new.client.replicaof("NO", "ONE")
        old.client.replicaof("127.0.0.1", port)
        done = await asyncio.gather(*in_flight)
        acknowledged += [number for number, good in enumerate(done, 10) if good]
        await until_async(lambda: appended(log, 20), RECOVERY_S, "appends go to the new primary")
        found = values(new, log)
        assert len(found) == len(set(found))
        before = {b"%d" % number for number in acknowledged if number < 10}
        assert {*before, b"20"} <= set(found)


async def test_a_link_does_not_come_back_to_a_replica(new_server: NewServer, prefix: str) -> None:
    """The address leads to the old primary for some time after the failover."""
    old, new = replicated(new_server)
    async with proxied_store(old.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        assert await appended(log, 1)
        old.client.set("sent", 1)
        old.client.wait(1, 5000)
        new.client.replicaof("NO", "ONE")
        old.client.replicaof("127.0.0.1", free_port())
        assert not await appended(log, 2)
        server = next(iter(store.router.servers()))
        before = proxy.connections
        await until_async(lambda: _tried(proxy, before), RECOVERY_S, "it is tried again")
        assert not server.connected
        with pytest.raises(StorageError, match="the server is a replica"):
            await server.write.call("PING")
        proxy.socket = new.socket
        await until_async(lambda: appended(log, 3), RECOVERY_S, "appends go to the new primary")
        assert values(new, log) == [b"1", b"3"]


async def test_a_link_that_is_moved_away_from_a_replica_has_found_none(new_server: NewServer) -> None:
    """At its new address the server is not known yet."""
    server = new_server()
    server.client.replicaof("127.0.0.1", free_port())
    (address,) = parse_url(server.url)
    link = RedisLink.begin(address)
    link.primary_only = True
    await until(lambda: link.found_replica)
    link.move(msgspec.structs.replace(address, port=free_port()), "another server took over")
    assert not link.found_replica
    await link.close()


@pytest.mark.parametrize("name", ["korvet-read", "korvet-write"])
async def test_both_links_go_to_the_same_server(new_server: NewServer, prefix: str, name: str) -> None:
    """One connection breaks after the address began to lead to a new primary; the other one works."""
    old, new = replicated(new_server)
    async with proxied_store(old.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        assert await appended(log, 1)
        old.client.set("sent", 1)
        old.client.wait(1, 5000)
        new.client.replicaof("NO", "ONE")
        proxy.socket = new.socket
        (server,) = store.router.servers()
        (broken,) = [each for each in old.client.client_list() if each["name"] == name]
        old.client.client_kill_filter(_id=broken["id"])

        async def both() -> bool:
            names = [each["name"] for each in new.client.client_list()]
            return {"korvet-read", "korvet-write"} <= set(names) and server.connected

        await until_async(both, RECOVERY_S, "both links lead to the new primary")
        assert await appended(log, 2)
        assert (await log.bounds()).entries == 2


async def test_nothing_is_read_before_the_link_for_writes_knows_the_history(
    new_server: NewServer, prefix: str
) -> None:
    old, new = replicated(new_server)
    async with proxied_store(old.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        assert await appended(log, 1)
        old.client.set("sent", 1)
        old.client.wait(1, 5000)
        new.client.replicaof("NO", "ONE")
        (server,) = store.router.servers()
        moved: list[bool] = []
        store.router.on_moved = lambda has_moved: moved.append(server.read.connected)
        server.write.hold("the test holds it")
        await until(lambda: not server.write.connected)
        proxy.socket = new.socket
        before = proxy.connections
        server.read.reset("the test leads it to the new primary")
        await until_async(lambda: _tried(proxy, before), RECOVERY_S, "it is tried again")
        with pytest.raises(LinkLost, match="the connection for writes comes first"):
            await server.read.call("PING")
        assert not moved
        server.write.move(server.address, "the test goes on")
        await until(lambda: server.connected)
        assert moved == [False]
        assert (await log.bounds()).entries == 1


async def test_an_address_that_leads_to_two_servers_in_turn(
    new_server: NewServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The link for writes is opened again once; from then on the link for reads looks for its server."""
    one, other = new_server(), new_server()
    async with proxied_store(one.socket, prefix) as (proxy, store):
        (server,) = store.router.servers()
        history, lost = server.history.id, LINKS["write"].lost
        went_down = server.write.on_down
        assert went_down is not None

        def lead_back() -> None:
            proxy.socket = one.socket
            went_down()

        server.write.on_down = lead_back
        proxy.socket = other.socket
        server.read.reset("the test leads it to the other server")
        await until(lambda: LINKS["write"].lost > lost and server.connected)
        assert server.history.id == history
        proxy.socket = other.socket
        server.read.reset("the test leads it to the other server")
        before, lost = proxy.connections, LINKS["write"].lost
        await until_async(lambda: _tried(proxy, before), RECOVERY_S, "it is tried again")
        assert LINKS["write"].lost == lost
        lines = [each for each in caplog.messages if "the history of the connection for writes" in each]
        assert len(lines) <= 2
        proxy.socket = one.socket
        await until(lambda: server.connected)
        assert server.history.id == history


async def _tried(proxy: Proxy, before: int) -> bool:
    return proxy.connections >= before + 4


async def test_a_server_that_cannot_write_is_read_from_until_its_address_leads_elsewhere(
    new_server: NewServer, prefix: str, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    failing = new_server("--save", "3600 1000000", "--dir", str(folder))
    other = new_server()
    async with proxied_store(failing.socket, prefix) as (proxy, store):
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        assert await appended(log, 1)
        shutil.rmtree(folder)
        failing.client.bgsave()

        async def refused() -> bool:
            return not await appended(log, 2)

        await until_async(refused, RECOVERY_S, "the server refuses writes")
        connections = proxy.connections
        assert (await log.bounds()).entries >= 1
        # New connections accept reads too.
        await proxy.cut()

        async def read_again() -> bool:
            try:
                return proxy.connections >= connections + 2 and (await log.bounds()).entries >= 1
            except StorageError:
                return False

        await until_async(read_again, RECOVERY_S, "it is read from")
        proxy.socket = other.socket

        async def led_elsewhere() -> bool:
            await appended(log, 3)
            return bool(other.client.exists(log.stream))

        await until_async(led_elsewhere, RECOVERY_S, "appends go where the address leads to")


@pytest.mark.parametrize("busy", [True, False], ids=["with an append in flight", "idle"])
def test_half_open_connections_are_left_soon(new_server: NewServer, prefix: str, busy: bool) -> None:
    """New connections reach the server, the old ones do not."""
    server = new_server("--port", str(port := free_port()))
    proxy = CuttingProxy(port)

    async def work() -> None:
        async with open_store(f"redis://{proxy.address}", prefix) as store:
            log = store.logs.get(await store.catalogue.create("t", 1), 0)
            assert await appended(log, 1)
            proxy.freeze()
            lost = LINKS["write"].lost
            async with asyncio.timeout(NOTICED_S):
                if busy:
                    # The append got no further than the proxy, and is sent again.
                    assert await appended(log, 2)
                else:
                    # Idle connections are tested.
                    await until(lambda: LINKS["write"].lost > lost)
                await until_async(lambda: appended(log, 3), RECOVERY_S, "appends go to the server again")
            assert values(server, log) == ([b"1", b"2", b"3"] if busy else [b"1", b"3"])

    try:
        asyncio.run(work())
    finally:
        proxy.close()


async def test_a_server_that_is_slow_on_all_connections_is_waited_for(
    new_server: NewServer, prefix: str
) -> None:
    server = new_server("--port", str(port := free_port()), "--enable-debug-command", "yes")
    async with open_store(f"redis://127.0.0.1:{port}", prefix) as store:
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        assert await appended(log, 1)
        (links,) = store.router.servers()
        lost = LINKS["write"].lost, LINKS["read"].lost
        sleeping = asyncio.create_task(
            asyncio.to_thread(server.client.execute_command, "DEBUG", "SLEEP", SLOW_S)
        )
        await until_async(lambda: _is_silent(links), RECOVERY_S, "the server is silent")
        assert await appended(log, 2)
        await sleeping
        assert (LINKS["write"].lost, LINKS["read"].lost) == lost


async def test_a_move_ends_a_hold_that_waits_for_the_former_server(
    new_server: NewServer, prefix: str
) -> None:
    """The sentinels name the new primary before the former one has reported how far it got."""
    old, new = replicated(new_server)
    async with open_store(old.url, prefix) as store:
        log = store.logs.get(await store.catalogue.create("t", 1), 0)
        assert await appended(log, 1)
        old.client.set("sent", 1)
        old.client.wait(1, 5000)
        new.client.replicaof("NO", "ONE")
        (links,) = store.router.servers()
        links.hold("a failover begins")
        links.move(*parse_url(new.url), "it is no longer the primary")
        await until_async(lambda: appended(log, 2), RECOVERY_S, "appends go to the new primary")
        assert values(new, log) == [b"1", b"2"]


async def _is_silent(server: Links) -> bool:
    return server.silent


def test_a_server_that_still_loads_its_files_is_waited_for(
    new_server: NewServer, prefix: str, tmp_path: Path
) -> None:
    """For example when broker and server start at the same time."""
    port = str(free_port())
    files = "--dir", str(tmp_path), "--appendonly", "yes", "--aof-use-rdb-preamble", "no", "--port", port
    first = new_server(*files)
    with first.client.pipeline(transaction=False) as pipeline:
        for number in range(20_000):
            pipeline.set(f"{prefix}{number}", b"x" * 100)
        pipeline.execute()
    first.client.shutdown(nosave=True)
    first.process.wait()
    slowly = "--key-load-delay", "50", "--loading-process-events-interval-bytes", "1024"
    starting = threading.Thread(target=new_server, args=(*files, *slowly))
    starting.start()

    async def work() -> None:
        await until_async(lambda: accepts("127.0.0.1", int(port)), RECOVERY_S, "the server listens")
        store = await Store.open(f"redis://127.0.0.1:{port}", Keyspace(prefix))
        await store.close()

    try:
        asyncio.run(work())
    finally:
        starting.join()


async def answer_together(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that answers in one piece what arrived in one piece; its offset is always the same."""
    text = f"role:master\r\nmaster_replid:{'a' * 40}\r\nmaster_repl_offset:100\r\n".encode()
    replies = {b"INFO": b"$%d\r\n%b\r\n" % (len(text), text), b"INCR": b":1\r\n", b"KORVET.PUT": b"-ERR\r\n"}
    replies |= dict.fromkeys((b"PING", b"CLIENT"), b"+OK\r\n")
    with contextlib.closing(writer), contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(b"".join(replies.get(word, b"") for word in data.split(b"\r\n")))


async def test_no_write_after_the_reported_end_is_acknowledged() -> None:
    """The offset decides whether a failover may have lost what the broker has acknowledged."""
    listening = await asyncio.start_server(answer_together, "127.0.0.1", 0)
    (address,) = parse_url(f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    router = OneServer(await RedisLink.connect(address), await RedisLink.connect(address))
    (links,) = router.servers()
    # A reply is due, so that the next commands reach the server together.
    earlier = links.write.call("INCR", "x")
    links.hold("the sentinels fail over")
    later = links.write.call("INCR", "x")
    await earlier
    with pytest.raises(LinkLost):
        await later
    await links.close()
    await end_serving(listening)
