"""Connections on which the tests of single APIs ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.asking import Client, connect
from tests.support.wire import advertised

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def served(broker) -> dict[int, tuple[int, int]]:
    return advertised(broker.host, broker.port)


@pytest.fixture
def ask(broker) -> Iterator[Client]:
    """One connection to the shared server. It has to answer still when the test is over."""
    client = connect(broker)
    with client.raw:
        yield client
        assert client.raw.works()


@pytest.fixture
def another(broker) -> Iterator[Callable[[], Client]]:
    """Further connections."""
    clients: list[Client] = []

    def make() -> Client:
        clients.append(connect(broker))
        return clients[-1]

    yield make
    for client in clients:
        client.raw.socket.close()


@pytest.fixture
def topic_ids(ask) -> Callable[[str], object]:
    """A topic's id by its name."""

    def find(name: str) -> object:
        (topic,) = ask("Metadata", 12, topics=[{"topic_id": None, "name": name}]).topics
        return topic.topic_id

    return find
