"""What several tests of faults put between two parties."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.api.asking import Client, connect
from tests.support.proxy import CuttingProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers import KorvetServer


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    """A proxy that leads nowhere yet: set its target_port."""
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
