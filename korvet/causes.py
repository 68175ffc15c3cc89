"""Warnings that one cause may repeat thousands of times: the first is logged, the others are counted.

A cause may keep work from succeeding: the renewal of a lease, the load of a partition. It ends when all work
that failed because of it has succeeded. A cause without such work ends by silence.

| state | failed | all its work succeeded | period over, failed in it | period over, silent |
|---|---|---|---|---|
| unknown | first line, lasting | | | |
| lasting | count | line of the end, ended | line of the count | line of the silence, unknown |
| ended | count, returned | | line of the count, ended | unknown |
| returned | count | ended | line of the count, lasting | |

So a cause that comes and goes has one count per period. Work may be tried rarely: a lasting cause with work
is forgotten after a silence of a quarter of an hour.
"""

from __future__ import annotations

import asyncio
import re
import time
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from korvet.logs import fields

if TYPE_CHECKING:
    import logging
    from collections.abc import Hashable, Mapping

# One line per minute: the log of an hour's outage fits one screen.
PERIOD_S: Final = 60.0
# Retention tries every five minutes.
_FORGOTTEN_S: Final = 900.0
# Limits the known causes, and so the memory; further causes count as one.
_MOST_CAUSES: Final = 1_000
_OTHERS: Final = ""
_NUMBERS: Final = re.compile(r"\d+")


class _State(Enum):
    LASTING = auto()
    ENDED = auto()
    RETURNED = auto()
    UNKNOWN = auto()


class Life:
    """The life of one cause, by the table above. Times are in seconds since the epoch. Methods return what to
    log.
    """

    __slots__ = ("_again", "_again_s", "_began_s", "_count", "_last_s", "_state", "work")

    def __init__(self, now_s: float, work: Hashable | None) -> None:
        self._state = _State.LASTING
        self._began_s = self._last_s = self._again_s = now_s
        self._count = 1
        # Failures since the last line, the first of them at `_again_s`.
        self._again = 0
        self.work: set[Hashable] = set() if work is None else {work}
        """What has failed because of it, and not succeeded since."""

    @property
    def is_known(self) -> bool:
        """Whether the next failure belongs to the same life."""
        return self._state is not _State.UNKNOWN

    @property
    def count(self) -> int:
        """The failures since it began."""
        return self._count

    def failed(self, now_s: float, work: Hashable | None) -> None:
        """It happened again."""
        assert self.is_known
        if self._state is _State.ENDED:
            self._state, self._began_s, self._count = _State.RETURNED, now_s, 0
        if not self._again:
            self._again_s = now_s
        self._again += 1
        self._count += 1
        self._last_s = now_s
        if work is not None:
            self.work.add(work)

    def succeeded(self, now_s: float, work: Hashable) -> str | None:
        """Work that failed because of it has succeeded."""
        assert self.is_known
        self.work.remove(work)
        if self.work or self._state is _State.ENDED:
            return None
        was, self._state = self._state, _State.ENDED
        if was is _State.RETURNED:
            return None
        self._again = 0
        return f"ended after {_duration(now_s - self._began_s)}, {_times(self._count)}"

    def period_over(self, now_s: float) -> str | None:
        """A period has passed since the first line or the last call."""
        if self._again:
            text = f"{_times(self._again)} more {_span(self._again_s, self._last_s)}"
            self._again = 0
            if self._state is _State.ENDED:
                return f"{text}, ended"
            self._state = _State.LASTING
            return text
        if self._state is _State.LASTING and self.work and now_s - self._last_s < _FORGOTTEN_S:
            return None
        was, self._state = self._state, _State.UNKNOWN
        # What happened once is dated by its line.
        if was is _State.ENDED or (self._count == 1 and not self.work):
            return None
        return f"has not happened since {_clock(self._last_s)} UTC, {_times(self._count)}"


class Causes:
    """The causes that one part of the program warns of. Use from an event loop; a new loop begins empty."""

    def __init__(self, logger: logging.Logger, period_s: float = PERIOD_S) -> None:
        self._logger = logger
        self._period_s = period_s
        self._known: dict[Hashable, Life] = {}
        self._latest: dict[Hashable, tuple[str, tuple[object, ...], Mapping[str, object]]] = {}
        # The names of the causes for which work failed.
        self._failing: dict[Hashable, dict[Hashable, None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def warn(
        self, cause: object, message: str, *arguments: object, work: Hashable | None = None, **named: object
    ) -> None:
        """Log a warning, unless the cause is known already: then count it.

        Two causes are the same if their texts differ only in numbers (slots, partitions, sizes), or if they
        are equal tuples. `work`: what failed, if `ended` is called when it succeeds. `named`: the line's
        fields, see korvet.logs.fields.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._known, self._latest, self._failing = loop, {}, {}, {}
        name = cause if isinstance(cause, tuple) else _NUMBERS.sub("0", str(cause))
        if name not in self._known and len(self._known) >= _MOST_CAUSES:
            name = _OTHERS
            # Other work would be kept without a limit: anybody can fail to log in, under any name.
            work = work if work in self._failing else None
        if work is not None:
            self._failing.setdefault(work, {})[name] = None
        self._latest[name] = message, arguments, named
        known = self._known.get(name)
        if known is not None:
            known.failed(time.time(), work)
            return
        self._known[name] = Life(time.time(), work)
        self._logger.warning(message, *arguments, extra=fields(**named))
        loop.call_later(self._period_s, self._period_over, name)

    def ended(self, work: Hashable) -> None:
        """Work has succeeded. Cheap if it has not failed before."""
        if work in self._failing:
            for name in self._failing.pop(work):
                self._say(name, self._known[name].succeeded(time.time(), work))

    def _say(self, name: Hashable, text: str | None) -> None:
        if text is not None:
            message, arguments, named = self._latest[name]
            more = fields(**named, repeated=self._known[name].count - 1)
            self._logger.warning(f"{message} (%s)", *arguments, text, extra=more)

    def _period_over(self, name: Hashable) -> None:
        known = self._known[name]
        self._say(name, known.period_over(time.time()))
        if known.is_known:
            asyncio.get_running_loop().call_later(self._period_s, self._period_over, name)
            return
        for work in known.work:
            del self._failing[work][name]
            if not self._failing[work]:
                del self._failing[work]
        del self._known[name], self._latest[name]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _span(first_s: float, last_s: float) -> str:
    first, last = _clock(first_s), _clock(last_s)
    return f"at {last} UTC" if first == last else f"from {first} to {last} UTC"


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    return f"{max(seconds, 0.0):.{1 if seconds < 10 else 0}f} s"
