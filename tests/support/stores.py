"""Opens stores for tests, and closes them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from korvet.redis.keys import Keyspace
from korvet.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def open_store(url: str, prefix: str, **options: Any) -> AsyncIterator[Store]:
    """A store whose keys begin with `prefix`; `options`: see Store.open."""
    store = await Store.open(url, Keyspace(prefix), **options)
    try:
        yield store
    finally:
        await store.close()
