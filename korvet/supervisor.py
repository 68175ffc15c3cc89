"""Background work of the process: every asyncio task that nobody awaits is started here.

Long-lived work is restarted when an exception ends it. The exception of any other task is logged. Both are
counted in `failures`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from korvet.logs import fields

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

# The pause before the first restart; it doubles with each further restart, up to the longest pause. A passing
# cause costs a moment, a lasting one 120 restarts an hour.
FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 30.0
# Work that ran for longer than this before it failed begins a new series of failures.
_STEADY_S: Final = 2 * LONGEST_PAUSE_S

log = logging.getLogger(__name__)

failures: Final[Counter[str]] = Counter()
"""Exceptions that ended background work since the process began, by the name of the work."""

# asyncio keeps only weak references to tasks.
_running: Final[set[asyncio.Task[Any]]] = set()


def keep(
    name: str,
    work: Callable[[], Coroutine[Any, Any, object]],
    *,
    most_failures: int | None = None,
    give_up: Callable[[BaseException], None] | None = None,
) -> asyncio.Task[None]:
    """Run `work()` until it returns or the task is cancelled; run it again whenever an exception ends it.

    After `most_failures` failures in a row, give_up(last exception) is called and the work ends.
    """
    return once(name, _Kept(name, work, most_failures, give_up).run())


def once(name: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Run a task that nobody needs to await. An exception that ends it is logged and counted."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    _running.add(task)
    task.add_done_callback(_ended)
    return task


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and wait until they have ended. None stands for work that was not begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


def doubled_s(first_s: float, times: int, longest_s: float) -> float:
    """A pause that was doubled so many times, but is not longer than the longest."""
    return min(first_s * (1 << min(times, 16)), longest_s)


def _ended(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        failures[task.get_name()] += 1
        log.error("%s failed", task.get_name(), exc_info=error, extra=fields(task=task.get_name()))


class _Kept:
    """One piece of long-lived work and its current series of failures."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, object]],
        most_failures: int | None,
        give_up: Callable[[BaseException], None] | None,
    ) -> None:
        self._name = name
        self._work = work
        self._most_failures = most_failures
        self._give_up = give_up
        self._in_a_row = 0
        self._last_error = ""

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self._work()
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled(error):
                    raise
                if clock() - began_s > _STEADY_S:
                    self._in_a_row = 0
                pause_s = self._failed(error)
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
            else:
                return

    def _failed(self, error: BaseException) -> float | None:
        """The pause before the next run in seconds; None to give up."""
        self._in_a_row += 1
        failures[self._name] += 1
        if self._in_a_row == self._most_failures:
            log.critical("%s failed %d times in a row, given up", self._name, self._in_a_row, exc_info=error)
            if self._give_up is not None:
                self._give_up(error)
            return None
        pause_s = doubled_s(FIRST_PAUSE_S, self._in_a_row - 1, LONGEST_PAUSE_S)
        said = repr(error)
        # The traceback of a lasting cause is logged once.
        trace = error if self._in_a_row == 1 or said != self._last_error else None
        self._last_error = said
        log.error(
            "%s failed (failure %d since the start), starts again in %.2f s: %s",
            self._name,
            failures[self._name],
            pause_s,
            said,
            exc_info=trace,
            extra=fields(task=self._name, failures=failures[self._name]),
        )
        return pause_s


def _is_cancelled(error: BaseException) -> bool:
    """Whether this task itself is cancelled. If only an awaited task was cancelled, that is a failure."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
