"""A limit in records per second: of one task, or of all tasks of a job that write to Redis."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.spark.source.sink.link import Link


class Pace(Protocol):
    """Lets records pass at a rate. Unused time isn't made up for."""

    def wait_for(self, records: int) -> None:
        """Sleep until these records may be sent. Raises SourceError."""


class Unlimited:
    """No limit."""

    def wait_for(self, records: int) -> None:
        """Do nothing."""


class OwnPace:
    """The pace of one task."""

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`rate`: records per second."""
        self._rate = rate
        self._clock, self._sleep = clock, sleep
        self._free_s = clock()

    def wait_for(self, records: int) -> None:
        """Sleep as long as these records use the rate, so that the next task may begin at once."""
        now_s = self._clock()
        self._free_s = max(self._free_s, now_s) + records / self._rate
        self._sleep(self._free_s - now_s)


class SharedPace:
    """The pace of a job. Redis has the clock, and the time up to which the rate is used (korvet_pace)."""

    def __init__(self, link: Link, key: str, rate: int, sleep: Callable[[float], None] = time.sleep) -> None:
        """`rate`: records per second."""
        self._link = link
        self._key = key
        self._rate = rate
        self._sleep = sleep

    def wait_for(self, records: int) -> None:
        """Sleep while records that any task of the job has sent use the rate."""
        wait_ms = self._link.call("FCALL", "korvet_pace", 1, self._key, records, self._rate)
        self._sleep(wait_ms / 1000)
