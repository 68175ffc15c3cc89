"""Callbacks of those who wait for a log to change."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

# Listeners woken per iteration of the event loop; answering their fetches takes about 0.5 ms.
_WOKEN_AT_ONCE: Final = 16


class Listeners:
    """The callbacks of one log, woken in the order in which they were added."""

    __slots__ = ("_added", "_closed", "_name", "_waking")

    def __init__(self, name: str) -> None:
        """`name`: the log's name in error messages."""
        self._name = name
        self._closed = False
        self._added: dict[Callable[[], None], None] = {}
        # Listeners that have yet to be called for the latest change.
        self._waking: dict[Callable[[], None], None] = {}

    def __bool__(self) -> bool:
        return bool(self._added)

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change, until `remove`; soon and only once after `close`."""
        if self._closed:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._added[callback] = None

    def remove(self, callback: Callable[[], None]) -> None:
        """Cease to call `callback`. It is no error if it was not added."""
        self._added.pop(callback, None)

    def wake(self) -> None:
        """Call all listeners, the first ones now and the others in the next iterations of the event loop: a
        thousand listeners must not keep a producer waiting.
        """
        if not self._added:
            return
        is_scheduled = bool(self._waking)
        self._waking.update(self._added)
        if not is_scheduled:
            self._wake_some()

    def _wake_some(self) -> None:
        waking = self._waking
        for callback in list(itertools.islice(waking, _WOKEN_AT_ONCE)):
            # The call of another listener may have removed it, or all of them.
            waking.pop(callback, None)
            if callback in self._added:
                self._call(callback)
        if waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def close(self) -> None:
        """Remove all listeners and call each of them a last time, at once."""
        self._closed = True
        listeners = list(self._added)
        self._added.clear()
        self._waking.clear()
        for callback in listeners:
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            # One listener's defect must not cost the other listeners their call.
            log.exception("%s: a listener failed", self._name)
