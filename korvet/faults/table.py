"""The faults that a test asks for: which requests meet them, how many still will, and how many have. Pure.

    state    a request that the fault matches                    clear
    ARMED    meets the fault; then SPENT if no request is left   forgotten
    SPENT    does not meet it: the next fault is looked at       forgotten

One request meets one fault at most: the first armed one that matches it, in the order in which the faults
were asked for. A spent fault stays listed, so that a test can assert that its fault has happened.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kio.schema.errors import ErrorCode

MOST_FAULTS: Final = 1000
"""Limits the listed faults: each request is compared with all of its API."""


class Action(Enum):
    """What happens to a request that meets a fault."""

    FAIL = "fail"
    """It gets an error, and nothing is done. Of a request for several topics, partitions or groups, only
    those that the fault matches get the error; the others are handled as usual.
    """
    DELAY = "delay"
    """It is handled as usual, and its response comes later."""
    DISCONNECT = "disconnect"
    """Nothing is done, and its connection is closed."""
    IGNORE = "ignore"
    """Nothing is done, and it gets no response."""
    LOSE_ANSWER = "lose_answer"
    """It is handled as usual, and its connection is closed in place of the response."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and the requests that it matches: those of an API, as far as each given property is equal."""

    api: str
    action: Action
    error: ErrorCode | None = None
    """Of FAIL."""
    delay_ms: int = 0
    """Of DELAY."""
    times: int | None = 1
    """How many requests meet it; None: all until it is cleared."""
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """A fault with its number and its counts."""

    number: int
    fault: Fault
    met: int = 0
    """How many requests have met it."""

    @property
    def left(self) -> int | None:
        """How many requests will meet it; None: all until it is cleared."""
        return None if self.fault.times is None else self.fault.times - self.met


class TooManyFaults(ValueError):
    """There are as many faults as the table holds. The message is for the user."""


class FaultTable:
    """The faults of one broker."""

    def __init__(self) -> None:
        self._faults: dict[int, Counted] = {}
        self._last_number = 0

    def add(self, fault: Fault) -> Counted:
        """Let requests meet a fault from now on. Raises TooManyFaults."""
        if len(self._faults) >= MOST_FAULTS:
            raise TooManyFaults(f"there are {MOST_FAULTS} faults already: clear them")
        self._last_number += 1
        counted = self._faults[self._last_number] = Counted(self._last_number, fault)
        return counted

    def armed(self, api: str, client_id: str) -> list[Counted]:
        """The faults that a client's request of that API may meet, in their order."""
        return [
            each
            for each in self._faults.values()
            if each.fault.api == api and each.left != 0 and each.fault.client_id in (None, client_id)
        ]

    def meet(self, number: int) -> None:
        """Count a request that meets an armed fault."""
        counted = self._faults[number]
        assert counted.left != 0
        self._faults[number] = msgspec.structs.replace(counted, met=counted.met + 1)

    def __len__(self) -> int:
        return len(self._faults)

    def __iter__(self) -> Iterator[Counted]:
        return iter(self._faults.values())

    def clear(self) -> None:
        """Forget all faults. Numbers are not given again."""
        self._faults.clear()
