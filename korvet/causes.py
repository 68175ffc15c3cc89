"""Warnings that one cause may repeat thousands of times: the first is logged, the others are counted.

While the cause lasts, one line per period reports the count.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from korvet.logs import fields

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

# One line per minute: the log of an hour's outage fits one screen.
PERIOD_S: Final = 60.0
# Limits the known causes, and so the memory; further causes count as one.
_MOST_CAUSES: Final = 1_000
_OTHERS: Final = ""
_NUMBERS: Final = re.compile(r"\d+")


class _Repeated:
    """A cause in its current period."""

    __slots__ = ("again", "latest")

    def __init__(self) -> None:
        self.again = 0
        self.latest: tuple[str, tuple[object, ...], Mapping[str, object]] = "", (), {}


class Causes:
    """The causes that one part of the program warns of. Use from an event loop; a new loop begins empty."""

    def __init__(self, logger: logging.Logger, period_s: float = PERIOD_S) -> None:
        self._logger = logger
        self._period_s = period_s
        self._known: dict[str, _Repeated] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def warn(self, cause: object, message: str, *arguments: object, **named: object) -> None:
        """Log a warning, unless one of the same cause was logged less than a period ago.

        Two causes are the same if their texts differ only in numbers: slots, partitions, sizes. `named`: the
        line's fields, see korvet.logs.fields.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._known = loop, {}
        name = _NUMBERS.sub("0", str(cause))
        if name not in self._known and len(self._known) >= _MOST_CAUSES:
            name = _OTHERS
        known = self._known.get(name)
        if known is not None:
            known.again += 1
            known.latest = message, arguments, named
            return
        self._known[name] = _Repeated()
        self._logger.warning(message, *arguments, extra=fields(**named))
        loop.call_later(self._period_s, self._period_over, name)

    def _period_over(self, name: str) -> None:
        known = self._known[name]
        if not known.again:
            del self._known[name]
            return
        message, arguments, named = known.latest
        self._logger.warning(
            f"{message} (%d times more in %.0f s)",
            *arguments,
            known.again,
            self._period_s,
            extra=fields(**named, repeated=known.again),
        )
        known.again = 0
        asyncio.get_running_loop().call_later(self._period_s, self._period_over, name)
