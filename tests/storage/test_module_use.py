"""Where the server module is used: never on a server with a replica that lacks it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any

import pytest

from korvet.cli.doctor import check_modules
from korvet.storage.link import module, module_verdict
from korvet.storage.link.address import parse_url
from korvet.storage.log.values import Appended
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
    from korvet.storage.link.server import Server as LinkedServer
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.store import Store

    NewServer = Callable[..., Server]

WAIT_S = 10


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PERIOD_S", 0.1)
    monkeypatch.setattr(module, "_SPACING_S", 0.01)


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
    await holds(lambda: linked(store).module.replicas is not None, "the module is used")


async def unused(store: Store, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    """Wait until the module is not used for a reason that is in the log."""
    await holds(lambda: reason in caplog.text, f"the log has {reason!r}")
    assert linked(store).module.replicas is None


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "korvet.storage.link.module")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == module.__name__]


async def test_a_server_without_replicas(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    server = start()
    async with open_store(server.url, prefix) as store:
        await used(store)
        assert linked(store).module.replicas == server.client.execute_command("KORVET.REPLICAS")[1]
        # A steady state has one line in the log, and no errors in the server's statistics.
        errors = server.client.info("stats")["total_error_replies"]
        asked = calls(server)
        await holds(lambda: calls(server) > asked + 5, "it is asked again")
        assert server.client.info("stats")["total_error_replies"] == errors
        assert len(lines(log)) == 1


def calls(server: Server) -> int:
    return calls_of(server.client, "korvet.replicas")


async def test_a_server_without_the_module(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    server = start(module=False)
    async with open_store(server.url, prefix) as store:
        await unused(store, log, "is not loaded")
        failed = unknown_commands(server)
        await holds(lambda: unknown_commands(server) > failed + 3, "it is asked again")
        assert len(lines(log)) == 1


def unknown_commands(server: Server) -> int:
    return int(server.client.info("stats")["total_error_replies"])


async def test_replicas_with_the_module(start: NewServer, prefix: str) -> None:
    """One of them is a replica of a replica."""
    primary, replica, chained = start(), start(), start()
    attach(replica, primary)
    attach(chained, replica)
    async with open_store(primary.url, prefix) as store:
        await used(store)
    assert calls(replica) > 0
    assert calls(chained) > 0


@pytest.mark.parametrize("chained", [False, True], ids=["its own replica", "a replica of a replica"])
async def test_a_replica_that_lacks_the_module(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture, chained: bool
) -> None:
    """The module is used again as soon as the replica is gone."""
    primary, plain = start(), start(module=False)
    above = primary
    if chained:
        above = start()
        attach(above, primary)
    async with open_store(primary.url, prefix) as store:
        await used(store)
        attach(plain, above)
        await unused(store, log, f"replica 127.0.0.1:{port_of(plain)}: the server module is not loaded")
        detach(plain)
        await used(store)
        assert len(lines(log)) == 3


async def test_a_replica_that_cannot_be_asked(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    """It announces an address where nothing answers."""
    primary = start()
    nowhere = free_port()
    replica = start("--replica-announce-port", str(nowhere))
    attach(replica, primary)
    async with open_store(primary.url, prefix) as store:
        await unused(
            store, log, f"replica 127.0.0.1:{nowhere}: Redis at 127.0.0.1:{nowhere} cannot be reached"
        )
        detach(replica)
        await used(store)


async def test_a_tool_that_copies_the_data_as_a_replica_does(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    """`redis-cli --rdb` sends SYNC over a connection that has no port to connect to."""
    primary = start()
    async with open_store(primary.url, prefix) as store:
        await used(store)
        tool = primary.client.connection_pool.get_connection()
        tool.send_command("SYNC")
        await unused(store, log, "a tool copies the data")
        tool.disconnect()
        await used(store)
        assert not [each for each in log.records if each.levelname == "WARNING"]


async def test_a_failover(start: NewServer, prefix: str) -> None:
    """The new primary is asked, and the former one's version is dropped at once."""
    old, new = start(), start()
    attach(new, old)
    async with proxied_store(old.socket, prefix) as (proxy, store):
        await used(store)
        before = linked(store).module.replicas
        proxy.socket = new.socket
        detach(new)
        down = linked(store).write.on_down
        seen: list[int | None] = []

        def went_down() -> None:
            assert down is not None
            down()
            seen.append(linked(store).module.replicas)

        linked(store).write.on_down = went_down
        await proxy.cut()
        await holds(lambda: bool(seen), "the connection is lost")
        assert seen == [None]
        await used(store)
        expected = new.client.execute_command("KORVET.REPLICAS")[1]
        assert linked(store).module.replicas == expected != before


async def test_a_restart_without_the_module(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    with_module, without = start(), start(module=False)
    async with proxied_store(with_module.socket, prefix) as (proxy, store):
        await used(store)
        proxy.socket = without.socket
        await proxy.cut()
        await unused(store, log, "is not loaded")


@pytest.mark.parametrize("forbidden", ["korvet.add", "korvet.replicas", "info"])
async def test_a_user_without_permission(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture, forbidden: str
) -> None:
    """The module is used again as soon as the user gets the permission."""
    server = start()
    async with open_store(server.url, prefix) as store:
        await used(store)
        server.client.acl_setuser(
            "default", enabled=True, nopass=True, commands=[f"-{forbidden}"], keys=["*"]
        )
        linked(store).module.refused()
        await unused(store, log, f"'{forbidden}' command (ACL rules: +korvet.add +korvet.replicas +info)")
        server.client.acl_setuser(
            "default", enabled=True, nopass=True, commands=[f"+{forbidden}"], keys=["*"]
        )
        await used(store)


async def test_a_user_who_may_use_some_keys_only(start: NewServer, prefix: str) -> None:
    server = start()
    patterns = f"~{prefix}:*", f"~{{{prefix}*"
    server.client.execute_command("ACL", "SETUSER", "default", "resetkeys", *patterns)
    async with open_store(server.url, prefix) as store:
        await used(store)


async def test_another_version(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = module_verdict.VERSION
    monkeypatch.setattr(module_verdict, "VERSION", version + 1)
    server = start()
    async with open_store(server.url, prefix) as store:
        await unused(store, log, f"module has version {version}, this korvet needs version {version + 1}")


async def test_replicas_are_asked_with_the_same_credentials(start: NewServer, prefix: str) -> None:
    primary, replica = start(), start()
    for server in (primary, replica):
        server.client.config_set("masterauth", "secret")
        server.client.config_set("requirepass", "secret")
    attach(replica, primary)
    async with open_store(f"redis://:secret@127.0.0.1:{port_of(primary)}", prefix) as store:
        await used(store)


async def test_a_wave_of_refusals_costs_the_server_little(
    start: NewServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SPACING_S", 3600)
    server = start()
    async with open_store(server.url, prefix) as store:
        await used(store)
        asked = calls(server)
        for _ in range(100):
            linked(store).module.refused()
            assert linked(store).module.replicas is None
        await linked(store).write.call("PING")
        assert calls(server) == asked


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


def test_doctor_names_a_replica_that_lacks_the_module(start: NewServer) -> None:
    primary, plain = start(), start(module=False)
    attach(plain, primary)
    _, state, text = finding(primary)
    assert state == "warning"
    assert f"replica 127.0.0.1:{port_of(plain)}: the server module is not loaded" in text
    assert "load the same module into every replica" in text


def test_doctor_names_permissions_and_versions(start: NewServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    server.client.execute_command("ACL", "SETUSER", "default", "-korvet.add")
    _, state, text = finding(server)
    assert state == "warning"
    assert "+korvet.add +korvet.replicas" in text
    server.client.execute_command("ACL", "SETUSER", "default", "+korvet.add")
    monkeypatch.setattr(module_verdict, "VERSION", 9)
    _, state, text = finding(server)
    assert state == "warning"
    assert "this korvet needs version 9" in text


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


async def test_a_plain_replica_attaches_under_load(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    """The replica has all that was acknowledged, and appends go on without a break, by XADD."""
    primary, plain = start(), start(module=False)
    async with open_store(primary.url, prefix) as store:
        partition = store.logs.get(await store.catalogue.create("t", 1), 0)
        await used(store)
        load = Load(partition)
        await load.go_on()
        assert calls_of(primary.client, "korvet.add") > 0
        await asyncio.to_thread(attach, plain, primary)
        await unused(store, log, "the server module is not loaded")
        added = calls_of(primary.client, "korvet.add")
        await load.go_on()
        assert calls_of(primary.client, "korvet.add") == added
        await load.stop()
        entries = primary.client.xlen(partition.stream)
        await holds(lambda: plain.client.xlen(partition.stream) == entries, "the replica has all")
        values = [fields[b"value"] for _, fields in plain.client.xrange(partition.stream)]
        assert values[: len(load.acknowledged)] == load.acknowledged
        stream, index, meta = partition.keys[:3]
        assert plain.client.dump(stream) == primary.client.dump(stream)
        assert plain.client.zrange(index, 0, -1) == primary.client.zrange(index, 0, -1)
        assert plain.client.hgetall(meta) == primary.client.hgetall(meta)
        detach(plain)
        await used(store)
        load = Load(partition)
        await load.go_on()
        await load.stop()
        assert calls_of(primary.client, "korvet.add") > added


async def test_a_plain_replica_joins_the_synchronisation_of_another(
    start: NewServer, prefix: str, log: pytest.LogCaptureFixture
) -> None:
    """Both get the same snapshot, and what was appended since it began, so none of that may be KORVET.ADD."""
    primary = start("--repl-diskless-sync", "no", "--rdb-key-save-delay", "20000")
    replica, plain = start(), start(module=False)
    primary.client.mset({f"slow{number}": "x" for number in range(100)})
    async with open_store(primary.url, prefix) as store:
        partition = store.logs.get(await store.catalogue.create("t", 1), 0)
        await used(store)
        load = Load(partition)
        await load.go_on()
        replica.client.replicaof("127.0.0.1", port_of(primary))
        await unused(store, log, "it synchronises")
        added = calls_of(primary.client, "korvet.add")
        await load.go_on()
        assert calls_of(primary.client, "korvet.add") == added
        await asyncio.to_thread(attach, plain, primary)
        await load.go_on()
        await load.stop()
        assert primary.client.info("stats")["sync_full"] == 2
        entries = primary.client.xlen(partition.stream)
        await holds(lambda: plain.client.xlen(partition.stream) == entries, "the replica has all")
        assert plain.client.dump(partition.stream) == primary.client.dump(partition.stream)


async def test_nodes_of_a_cluster_are_asked_one_by_one(tmp_path: Path, prefix: str) -> None:
    """One node lacks the module. A node that joins, and a replica that takes over, are asked, too."""
    valkey = server_programs()[0]
    require_module(valkey)
    cluster = RedisCluster(valkey, tmp_path, replicas=1, plain={1})

    def state(store: Store) -> dict[int, bool]:
        ports = {server.address.port: server for server in store.router.servers()}
        return {
            number: ports[node.port].module.replicas is not None
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
