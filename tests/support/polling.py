"""Waiting with a deadline: a test polls until the condition holds, and never sleeps for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")

POLL_INTERVAL_S = 0.02
# Timeouts are written for an idle machine; a busy one gets this multiple of them.
_PATIENCE = 5


class DeadlineMissed(AssertionError):
    """The condition did not become true in time."""


def patient(limit: float) -> float:
    """A limit of a time, written for an idle machine, as this machine gets it."""
    return limit * _PATIENCE


def until(check: Callable[[], T | None], timeout_s: float, what: str | Callable[[], str]) -> T:
    """Call `check` until it returns something true; the failure's message has its last result, and what
    `what` returns then if it is a function.
    """
    deadline = time.monotonic() + patient(timeout_s)
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise DeadlineMissed(f"not within {patient(timeout_s):g} s: {said} (last answer: {answer!r})")
        time.sleep(POLL_INTERVAL_S)


async def until_async(check: Callable[[], Awaitable[T | None] | T | None], timeout_s: float, what: str) -> T:
    """`until` in an event loop, which goes on meanwhile; `check` may be a coroutine function."""
    deadline = time.monotonic() + patient(timeout_s)
    while True:
        answer = check()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise DeadlineMissed(f"not within {patient(timeout_s):g} s: {what} (last answer: {answer!r})")
        await asyncio.sleep(POLL_INTERVAL_S)
