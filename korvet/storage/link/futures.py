"""Awaiting what calls back."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from korvet.storage.errors import StorageError

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")


def settle(future: asyncio.Future[_T], outcome: _T | StorageError) -> None:
    """Give the outcome, raised if it is a StorageError, to whoever awaits it, if anybody still does."""
    if future.done():
        return
    if isinstance(outcome, StorageError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
