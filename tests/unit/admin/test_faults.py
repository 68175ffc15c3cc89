"""Pages about faults, before the broker's parts exist."""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

import pytest

from korvet import api
from korvet.admin.faults import FaultPages
from korvet.admin.http import Request
from korvet.admin.service import AdminService
from korvet.config.settings import Config
from korvet.observe.lifecycle import Lifecycle

api.load_all()


class Pages:
    def __init__(self) -> None:
        self._pages = FaultPages()
        self.table = self._pages.faults

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status, and the text or the JSON object."""
        encoded = b"" if body is None else json.dumps(body).encode()
        response = await self._pages.actions[method, path](Request(method, path, body=encoded))
        content = b"".join(response.body)
        is_json = response.content_type == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()


async def test_faults_are_added_listed_and_cleared() -> None:
    pages = Pages()
    fault = {"api": "Produce", "action": "fail", "error": "NOT_ENOUGH_REPLICAS", "topic": "t", "times": 2}
    shown = {"number": 1, **fault, "met": 0, "left": 2}
    del shown["times"]
    assert await pages.ask("POST", "/faults", fault) == (HTTPStatus.CREATED, shown)
    slow = {"api": "Fetch", "action": "delay", "ms": 5, "times": None, "client_id": "c"}
    await pages.ask("POST", "/faults", slow)
    pages.table.meet(1)
    _, listed = await pages.ask("GET", "/faults")
    assert [(each["met"], each["left"]) for each in listed["faults"]] == [(1, 1), (0, None)]
    assert listed["faults"][1]["ms"] == 5
    assert await pages.ask("DELETE", "/faults") == (HTTPStatus.OK, {"faults": []})
    assert await pages.ask("GET", "/faults") == (HTTPStatus.OK, {"faults": []})


@pytest.mark.parametrize("body", [None, [], {"api": "x", "action": "ignore"}, {"api": "Produce"}])
async def test_mistakes_are_explained(body: Any) -> None:
    pages = Pages()
    status, said = await pages.ask("POST", "/faults", body)
    assert status == HTTPStatus.BAD_REQUEST
    assert "api" in said.lower()
    assert list(pages.table) == []


async def test_nothing_happens_while_the_broker_starts() -> None:
    pages = Pages()
    for path in ("move-leader", "move-coordinator", "expire-member", "abort-transaction"):
        assert (await pages.ask("POST", f"/faults/{path}", {}))[0] == HTTPStatus.SERVICE_UNAVAILABLE


@pytest.mark.parametrize("faults", [None, FaultPages()])
async def test_only_brokers_with_faults_have_the_pages(faults: FaultPages | None) -> None:
    service = AdminService(Config(admin_listen="127.0.0.1:0"), Lifecycle(), faults=faults)
    await service.start()
    try:
        address = service.url("").removeprefix("http://")
        host, _, port = address.rpartition(":")
        statuses = []
        for line in (b"GET /faults", b"DELETE /faults", b"POST /faults/move-leader"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(line + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            statuses.append(int((await reader.read()).split()[1]))
            writer.close()
    finally:
        await service.close()
    assert statuses == ([404, 404, 404] if faults is None else [200, 200, 503])
