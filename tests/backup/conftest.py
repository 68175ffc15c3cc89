"""Servers of both kinds, each for one test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.storage.conftest import Server, server_programs

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
