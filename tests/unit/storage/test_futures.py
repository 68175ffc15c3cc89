"""Awaiting an outcome that is handed to a callback."""

from __future__ import annotations

import asyncio

import pytest

from korvet.storage.errors import LinkLost
from korvet.storage.link.futures import awaited, resolve


def test_a_result_is_returned() -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        assert await awaited(lambda done: loop.call_soon(done, 7)) == 7

    asyncio.run(check())


def test_a_storage_error_is_raised() -> None:
    async def check() -> None:
        with pytest.raises(LinkLost, match="gone"):
            await awaited(lambda done: done(LinkLost("gone")))

    asyncio.run(check())


def test_a_cancelled_future_stays_cancelled() -> None:
    async def check() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.cancel()
        resolve(future, 7)
        resolve(future, LinkLost("gone"))
        assert future.cancelled()

    asyncio.run(check())
