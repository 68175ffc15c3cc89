"""Awaiting what calls back."""

from __future__ import annotations

import asyncio

import pytest

from korvet.storage.errors import LinkLost
from korvet.storage.link.futures import settle


def test_a_result_is_returned() -> None:
    async def check() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(settle, future, 7)
        assert await future == 7

    asyncio.run(check())


def test_a_storage_error_is_raised() -> None:
    async def check() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        settle(future, LinkLost("gone"))
        with pytest.raises(LinkLost, match="gone"):
            await future

    asyncio.run(check())


def test_nobody_waits_for_it_any_more() -> None:
    async def check() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.cancel()
        settle(future, 7)
        settle(future, LinkLost("gone"))
        assert future.cancelled()

    asyncio.run(check())
