"""Where the server module is used: on each server that has it, whatever its replicas have."""

from __future__ import annotations

import asyncio
import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from korvet.cli.doctor import check_modules
from korvet.log.values import Appended
from korvet.redis import server_module as module
from korvet.redis.address import parse_url
from korvet.redis.server import WRITE_LINK
from tests.storage.batches import produce
from tests.storage.proxy import proxied_store
from tests.support.cluster import RedisCluster
from tests.support.module import UNBUILT, module_built, require_module
from tests.support.polling import until, until_async
from tests.support.ports import free_port
from tests.support.redis_server import Server, calls_of, server_programs
from tests.support.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from korvet.cli.doctor import Finding
    from korvet.log.partition_log import PartitionLog
    from korvet.redis.server import Server as LinkedServer
    from korvet.store import Store

    NewServer = Callable[..., Server]

WAIT_S = 10


@pytest.fixture(scope="module", params=server_programs(), ids=lambda path: path.rpartition("/")[2])
def program(request: pytest.FixtureRequest) -> str:
    if not module_built():
        pytest.skip(UNBUILT)
    return str(request.param)


@pytest.fixture
def start(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewServer]:
    """Starts servers with or without the module."""
    running: list[Server] = []

    def begin(*options: str, module: bool = True) -> Server:
        server = Server(
            program,
            tmp_path_factory.mktemp("redis"),
            *("--port", str(free_port()), "--bind", "127.0.0.1", "--repl-diskless-sync-delay", "0"),
            *options,
            module=module,
        )
        running.append(server)
        return server

    yield begin
    for one in running:
        one.stop()


def port_of(server: Server) -> int:
    return int(server.client.config_get("port")["port"])


def attach(replica: Server, primary: Server) -> None:
    """Make a server a replica, and wait until it has all data."""
    replica.client.replicaof("127.0.0.1", port_of(primary))
    until(lambda: in_step(replica, primary), WAIT_S, "the replica is in step")


def in_step(replica: Server, primary: Server) -> bool:
    """Whether both sides know that the replica has all data."""
    info = primary.client.info("replication")
    states = {info[f"slave{number}"]["state"] for number in range(info["connected_slaves"])}
    return replica.client.info("replication").get("master_link_status") == "up" and states == {"online"}


def detach(replica: Server) -> None:
    replica.client.replicaof("NO", "ONE")


def linked(store: Store) -> LinkedServer:
    (server,) = store.router.servers()
    return server


async def holds(condition: Callable[[], bool], what: str) -> None:
    await until_async(condition, WAIT_S, what)


async def used(store: Store) -> None:
    await holds(lambda: linked(store).module.used, "the module is used")


async def unused(store: Store, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Wait until the module is not used for a reason that is in the log."""
    await holds(lambda: reason in caplog.text, f"the log has {reason!r}")
    assert not linked(store).module.used


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "korvet.redis.server_module")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == module.__name__]


class Load:
    """Appends batches to a log, one after the other, and keeps what is acknowledged."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._ending = False
        self._task = asyncio.ensure_future(self._run())
        self.acknowledged: list[bytes] = []

    async def _run(self) -> None:
        for number in itertools.count():
            values = [b"%d-%d" % (number, place) for place in range(20)]
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            produce(self._log, [(b"key", value, 5) for value in values], done.set_result)
            outcome = await done
            assert isinstance(outcome, Appended), outcome
            self.acknowledged += values
            if self._ending:
                return

    async def go_on(self) -> None:
        """Wait until some more batches are acknowledged."""
        goal = len(self.acknowledged) + 400
        await holds(lambda: self._task.done() or len(self.acknowledged) > goal, "appends go on")
        assert not self._task.done(), self._task

    async def stop(self) -> None:
        self._ending = True
        await self._task


async def test_a_server_with_the_module(start: NewServer, prefix: str, log: pytest.LogCaptureFixture) -> None:
    """One question, which is no error in the server's statistics."""
    server = start()
    async with open_store(server.url, prefix) as store:
        await used(store)
        assert calls_of(server.client, "korvet.put") == 1
        assert server.client.info("commandstats")["cmdstat_korvet.put"]["failed_calls"] == 0
        assert len(lines(log)) == 1


async def test_a_server_without_the_module(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    server = start(module=False)
    async with open_store(server.url, prefix) as store:
        await unused(store, log, "is not loaded")
        assert len(lines(log)) == 1


@pytest.mark.parametrize("setting", [("maxmemory", "1"), ("min-replicas-to-write", "1")], ids=" ".join)
async def test_a_server_that_refuses_writes_for_now(
    start: NewServer, prefix: str, setting: tuple[str, str]
) -> None:
    server = start()
    async with proxied_store(server.socket, prefix) as (proxy, store):
        await used(store)
        server.client.config_set(*setting)
        linked(store).module.lost()
        await proxy.cut()
        await used(store)


async def test_a_restart_without_the_module(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    with_module, without = start(), start(module=False)
    async with proxied_store(with_module.socket, prefix) as (proxy, store):
        await used(store)
        proxy.socket = without.socket
        await proxy.cut()
        await unused(store, log, "is not loaded")


async def test_a_user_without_permission(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    """A refused transaction shows it. The module is used again after a reconnect."""
    server = start()
    async with proxied_store(server.socket, prefix) as (proxy, store):
        partition = store.logs.get(await store.catalogue.create("t", 1), 0)
        await used(store)
        load = Load(partition)
        await load.go_on()
        server.client.acl_setuser("default", enabled=True, nopass=True, commands=["-korvet.put"], keys=["*"])
        await load.go_on()
        await unused(store, log, "'korvet.put' command (ACL rule: +korvet.put)")
        server.client.acl_setuser("default", enabled=True, nopass=True, commands=["+korvet.put"], keys=["*"])
        await load.stop()
        await proxy.cut()
        await used(store)
        entries = server.client.xrange(partition.stream)
        assert [fields[b"value"] for _, fields in entries] == load.acknowledged


async def test_a_wave_of_refusals_is_one_question(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    """All logs of a server have appends in flight when the user loses the permission."""
    server = start()
    async with open_store(server.url, prefix) as store:
        topic = await store.catalogue.create("t", 8)
        await used(store)
        loads = [Load(store.logs.get(topic, partition)) for partition in range(topic.partitions)]
        for load in loads:
            await load.go_on()
        server.client.acl_setuser("default", enabled=True, nopass=True, commands=["-korvet.put"], keys=["*"])
        await unused(store, log, "'korvet.put' command (ACL rule: +korvet.put)")
        for load in loads:
            await load.go_on()
            await load.stop()
        assert len(lines(log)) == 2


async def test_a_user_who_may_use_some_keys_only(start: NewServer, prefix: str) -> None:
    server = start()
    patterns = f"~{prefix}:*", f"~{{{prefix}*"
    server.client.execute_command("ACL", "SETUSER", "default", "resetkeys", *patterns)
    async with open_store(server.url, prefix) as store:
        await used(store)


def finding(*servers: Server) -> Finding:
    """The one finding of `korvet doctor` about the module."""
    (found,) = check_modules([address for server in servers for address in parse_url(server.url)])
    return found


def test_doctor_shows_where_the_module_is_used(start: NewServer) -> None:
    with_module, without = start(), start(module=False)
    assert finding(with_module) == ("server module", "ok", "used")
    assert finding(with_module, start()) == ("server module", "ok", "used on 2 of 2 servers")
    assert finding(without) == ("server module", "ok", "not loaded: appends take more time (`korvet module`)")
    used_there, lacking = check_modules([*parse_url(with_module.url), *parse_url(without.url)])
    assert used_there.text == "used on 1 of 2 servers"
    assert lacking.text.startswith("not loaded on 1 of 2 servers: ")


def test_doctor_names_permissions(start: NewServer) -> None:
    server = start()
    server.client.execute_command("ACL", "SETUSER", "default", "-korvet.put")
    _, state, text = finding(server)
    assert state == "warning"
    assert "+korvet.put" in text


def is_followed(server: Server) -> bool:
    return any(client["name"] == WRITE_LINK for client in server.client.client_list())


def assert_same(copy: Server, primary: Server, partition: PartitionLog) -> None:
    """A server has all keys of a log as its primary has them."""
    stream, index, meta = partition.keys[:3]
    assert copy.client.dump(stream) == primary.client.dump(stream)
    assert copy.client.zrange(index, 0, -1) == primary.client.zrange(index, 0, -1)
    assert copy.client.hgetall(meta) == primary.client.hgetall(meta)


async def test_replicas_attach_and_return_under_load(start: NewServer, prefix: str) -> None:
    """One has the module, one doesn't, and one follows that. Each misses appends, and gets these."""
    primary, replica, plain, chained = start(), start(), start(module=False), start(module=False)
    async with open_store(primary.url, prefix) as store:
        partition = store.logs.get(await store.catalogue.create("t", 1), 0)
        await used(store)
        load = Load(partition)
        await load.go_on()
        for copy, source in ((replica, primary), (plain, primary), (chained, plain)):
            await asyncio.to_thread(attach, copy, source)
            await load.go_on()
        synchronised = primary.client.info("stats")["sync_full"]
        for _ in range(3):
            primary.client.client_kill_filter(_type="replica", skipme=False)
            await load.go_on()
        await load.stop()
        assert linked(store).module.used
        for copy in (replica, plain, chained):
            await holds(partial(copy.has_all_of, primary), "all is there")
            assert_same(copy, primary, partition)
        assert primary.client.info("stats")["sync_full"] == synchronised
        values = [fields[b"value"] for _, fields in plain.client.xrange(partition.stream)]
        assert values == load.acknowledged


@pytest.mark.parametrize("module", [False, True])
async def test_a_failover_to_a_replica(start: NewServer, prefix: str, module: bool) -> None:
    """The replica, with and without the module, has all; the former primary follows it."""
    old, new = start(), start(module=module)
    attach(new, old)
    async with proxied_store(old.socket, prefix) as (proxy, store):
        partition = store.logs.get(await store.catalogue.create("t", 1), 0)
        await used(store)
        load = Load(partition)
        await load.go_on()
        await load.stop()
        await holds(partial(new.has_all_of, old), "all is there")
        proxy.socket = new.socket
        detach(new)
        await proxy.cut()
        await holds(lambda: is_followed(new) and linked(store).module.used == module, "the broker follows")
        await asyncio.to_thread(attach, old, new)
        after = Load(partition)
        await after.go_on()
        await after.stop()
        await holds(partial(old.has_all_of, new), "all is there")
        assert_same(old, new, partition)
        values = [fields[b"value"] for _, fields in old.client.xrange(partition.stream)]
        assert values == load.acknowledged + after.acknowledged


async def test_a_lost_library_under_load(start: NewServer, prefix: str) -> None:
    """The replica gets no call of a function that it doesn't have."""
    primary, plain = start(), start(module=False)
    attach(plain, primary)
    async with open_store(primary.url, prefix) as store:
        partition = store.logs.get(await store.catalogue.create("t", 1), 0)
        await used(store)
        load = Load(partition)
        for _ in range(5):
            await load.go_on()
            primary.client.function_flush()
        await load.go_on()
        await load.stop()
        await holds(partial(plain.has_all_of, primary), "all is there")
        assert_same(plain, primary, partition)
        values = [fields[b"value"] for _, fields in plain.client.xrange(partition.stream)]
        assert values == load.acknowledged


async def test_nodes_of_a_cluster_are_asked_one_by_one(tmp_path: Path, prefix: str) -> None:
    """One node lacks the module. A node that joins, and a replica that takes over, are asked, too."""
    valkey = server_programs()[0]
    require_module(valkey)
    cluster = RedisCluster(valkey, tmp_path, replicas=1, plain={1})

    def state(store: Store) -> dict[int, bool]:
        ports = {server.address.port: server for server in store.router.servers()}
        return {
            number: ports[node.port].module.used
            for number, node in enumerate(cluster.nodes)
            if node.port in ports
        }

    try:
        async with open_store(cluster.url, prefix) as store:
            await holds(lambda: state(store) == {0: True, 1: False, 2: True}, "two of three nodes use it")
            stream = f"{prefix}:t:0".encode()
            joined = await asyncio.to_thread(cluster.add_primary)
            await asyncio.to_thread(cluster.move, stream, joined)
            await holds(lambda: state(store).get(4) is True, "the new node uses it")
            cluster.nodes[0].kill()
            await holds(lambda: state(store).get(3) is True, "the new primary uses it")
            assert state(store)[1] is False
    finally:
        cluster.stop()
