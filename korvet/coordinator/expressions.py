"""The names that a client's regular expression matches. The search runs in slices, because one expression
may take long with thousands of names. The topics found are kept until the topics change.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from korvet.groups.consumer.automaton import InvalidRegex
from korvet.groups.consumer.regex import compile_regex
from korvet.groups.consumer.topics import Matching
from korvet.slices import sliced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from korvet.cluster.catalogue import Catalogue

Work: TypeAlias = "Callable[[], Coroutine[Any, Any, None]]"

# Limits the names and characters kept for all expressions together.
_MOST_KEPT: Final = 1_000_000
_OVERHEAD: Final = 100
_MOST_REFUSED: Final = 100


async def select(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that an expression matches. Raises InvalidRegex, also if the search takes too long."""
    return [name async for name in sliced(compile_regex(pattern).select(names)) if name is not None]


class TopicExpressions:
    """The topics that expressions match. Use from one event loop."""

    def __init__(self, catalogue: Catalogue, spawn: Callable[[Work], object]) -> None:
        """spawn(work) runs what work() returns."""
        self._catalogue = catalogue
        self._spawn = spawn
        # With the catalogue's `local_change`: after a loss, a version may come again with other topics.
        self._kept: dict[str, tuple[int, Matching]] = {}
        self._size = 0
        # Expressions that took too long, with the same.
        self._refused: dict[str, tuple[int, InvalidRegex]] = {}
        # Serialises searches: a client waits for one slice only, however many clients search.
        self._turn = asyncio.Lock()
        self._awaited: set[str] = set()

    def matching(self, pattern: str) -> Matching | None:
        """The topics that the last search found. If the topics have changed since, a new search begins."""
        if not self._is_current(pattern) and pattern not in self._awaited:
            self._awaited.add(pattern)
            self._spawn(partial(self._find_later, pattern))
        return self._kept[pattern][1] if pattern in self._kept else None

    async def find(self, pattern: str) -> None:
        """Search now, so that `matching` knows the current topics. Raises InvalidRegex, also if the
        search takes too long.
        """
        async with self._turn:
            if self._is_current(pattern):
                return
            change, version = self._catalogue.local_change, self._catalogue.applied_version
            refused_at, refusal = self._refused.get(pattern, (None, None))
            if refusal is not None and refused_at == change:
                raise refusal
            try:
                found = await select(pattern, list(self._catalogue.topics))
            except InvalidRegex as error:
                self._refuse(pattern, change, error)
                raise
            self._keep(pattern, change, Matching(tuple(found), version))

    async def _find_later(self, pattern: str) -> None:
        try:
            # If the expression is refused, the group keeps its topics.
            with contextlib.suppress(InvalidRegex):
                await self.find(pattern)
        finally:
            self._awaited.discard(pattern)

    def _is_current(self, pattern: str) -> bool:
        return pattern in self._kept and self._kept[pattern][0] == self._catalogue.local_change

    def _refuse(self, pattern: str, change: int, error: InvalidRegex) -> None:
        self._refused.pop(pattern, None)
        while len(self._refused) >= _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[pattern] = change, error

    def _keep(self, pattern: str, change: int, found: Matching) -> None:
        """Keep a result, and forget the oldest results if there are too many."""
        self._forget(pattern)
        self._kept[pattern] = change, found
        self._size += _cost(pattern, found)
        while self._size > _MOST_KEPT and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def _forget(self, pattern: str) -> None:
        gone = self._kept.pop(pattern, None)
        self._size -= 0 if gone is None else _cost(pattern, gone[1])


def _cost(pattern: str, found: Matching) -> int:
    return len(found.names) + len(pattern) + _OVERHEAD
