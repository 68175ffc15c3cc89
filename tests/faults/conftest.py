"""Fixtures of the tests of faults: a proxy, connections, several brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.asking import Client, connect
from tests.faults.brokers import Brokers
from tests.support.proxy import CuttingProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import KorvetServer


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    """A proxy without a target: set its target_port."""
    made = CuttingProxy()
    yield made
    made.close()


@pytest.fixture
def connected() -> Iterator[Callable[[KorvetServer], Client]]:
    """Connections that are closed at the end."""
    made: list[Client] = []

    def make(server: KorvetServer) -> Client:
        made.append(connect(server))
        return made[-1]

    yield make
    for client in made:
        client.raw.socket.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two brokers, shared by the tests of a module."""
    brokers = Brokers(tmp_path_factory.mktemp("redis"), 2)
    yield brokers
    brokers.discard()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Brokers]]:
    """Starts brokers that belong to one test."""
    made: list[Brokers] = []

    def start_some(count: int) -> Brokers:
        made.append(Brokers(tmp_path_factory.mktemp("redis"), count))
        return made[-1]

    yield start_some
    for brokers in made:
        brokers.discard()
