"""The admin endpoint of a broker: before its parts exist, and without an address."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from korvet.admin.client import fetch
from korvet.admin.service import AdminService
from korvet.config.settings import Config
from korvet.observe.lifecycle import Lifecycle, Phase
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20


async def test_without_an_address_nothing_runs() -> None:
    service = AdminService(Config(), Lifecycle())
    await service.start()
    assert len(asyncio.all_tasks()) == 1
    await service.close()


async def test_a_broker_without_parts_is_alive_and_not_ready(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    lifecycle = Lifecycle()
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


async def test_the_pages_know_the_certificate_of_the_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    keystore = Authority(tmp_path).issue("admin", "/CN=admin")
    tls = {"admin_listen": "127.0.0.1:0", "admin_ssl_keystore_location": str(keystore)}
    service = AdminService(Config(admin_socket=str(path), **tls), Lifecycle())
    await service.start()
    try:
        metrics = await fetch(path, "/metrics", "*/*", DEADLINE_S)
        status = await fetch(path, "/status", "*/*", DEADLINE_S)
    finally:
        await service.close()
    assert 'expiry_timestamp_seconds{listener="admin",file="keystore",subject="CN=admin"} ' in metrics.text
    (found,) = json.loads(status.text)["certificates"]
    assert (found["listener"], found["subject"], found["validity"]) == ("admin", "CN=admin", "valid")
