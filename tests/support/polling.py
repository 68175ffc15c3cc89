"""Waiting with a deadline: a test asks again until the answer is there, and never sleeps for a fixed time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

POLL_INTERVAL_S = 0.02
# Timeouts are written for a machine that has nothing else to do; a busy one is given so many times as long.
_PATIENCE = 3


class DeadlineMissed(AssertionError):
    """What was waited for did not happen in time."""


def until(check: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """Call `check` until it gives something true; its last answer is in the failure's message."""
    deadline = time.monotonic() + timeout_s * _PATIENCE
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise DeadlineMissed(f"not within {timeout_s * _PATIENCE:g} s: {what} (last answer: {answer!r})")
        time.sleep(POLL_INTERVAL_S)


async def until_async(check: Callable[[], Awaitable[T | None]], timeout_s: float, what: str) -> T:
    """`until` for a coroutine."""
    deadline = time.monotonic() + timeout_s * _PATIENCE
    while True:
        answer = await check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise DeadlineMissed(f"not within {timeout_s * _PATIENCE:g} s: {what} (last answer: {answer!r})")
        await asyncio.sleep(POLL_INTERVAL_S)
