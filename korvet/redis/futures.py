"""Awaiting an outcome that is handed to a callback."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from korvet.redis.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def awaited(submit: Callable[[Callable[[_T | StorageError], None]], object]) -> asyncio.Future[_T]:
    """Call `submit(done)`; the future gives the outcome that `done` is called with, and raises an outcome
    that is a StorageError.
    """
    future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
    submit(partial(resolve, future))
    return future


def resolve(future: asyncio.Future[_T], outcome: _T | StorageError) -> None:
    """Give the future its outcome, raised if it is a StorageError. Nothing happens to a future that is done
    or cancelled.
    """
    if future.done():
        return
    if isinstance(outcome, StorageError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
