"""An outcome for a future that was cancelled."""

from __future__ import annotations

import asyncio

from korvet.redis.errors import LinkLost
from korvet.redis.futures import resolve


async def test_a_cancelled_future_stays_cancelled() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.cancel()
    resolve(future, 7)
    resolve(future, LinkLost("gone"))
    assert future.cancelled()
