"""The admin endpoint of a broker: before its parts exist, and without an address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from korvet.admin.client import fetch
from korvet.admin.service import AdminService
from korvet.config.settings import Config
from korvet.observe.lifecycle import Lifecycle, Phase
from tests.support.running import run

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20


def test_without_an_address_nothing_runs() -> None:
    async def test() -> None:
        service = AdminService(Config(), Lifecycle())
        await service.start()
        assert len(asyncio.all_tasks()) == 1
        await service.close()

    run(test())


def test_a_broker_without_parts_is_alive_and_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    lifecycle = Lifecycle()

    async def test() -> None:
        service = AdminService(Config(admin_socket=str(path)), lifecycle)
        await service.start()
        try:
            assert (await fetch(path, "/livez", "*/*", DEADLINE_S)).status == 200
            for phase in (Phase.STARTING, Phase.STOPPING):
                lifecycle.phase = phase
                ready = await fetch(path, "/readyz", "*/*", DEADLINE_S)
                assert ready.status == 503
                assert f"lease: the broker is {phase.value}" in ready.text.splitlines()
            metrics = await fetch(path, "/metrics", "*/*", DEADLINE_S)
            assert "\nkorvet_ready 0\n" in metrics.text
            assert '"phase":"stopping"' in (await fetch(path, "/status", "*/*", DEADLINE_S)).text
        finally:
            await service.close()
        assert len(asyncio.all_tasks()) == 1

    run(test())
