"""Decides whether a connection may take its next request, and calls back when it may again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.server.backpressure import Backpressure
    from korvet.server.turns import Turns

# Reasons why no request is taken: the client does not read, has used up a quota, or a request waits for
# memory.
WRITING: Final = 1
MUTED: Final = 2
WAITING: Final = 4
# Whether the next large request has asked for its turn, or has it.
_NOT_ASKED: Final = 0
_ASKED: Final = 1
_GIVEN: Final = 2


class FlowControl:
    """The reasons of one connection to wait.

    It keeps a callback only while the connection waits: otherwise each would refer to the other, and only the
    garbage collector would free both.
    """

    __slots__ = ("_turn", "_unmuting", "blocked", "held")

    def __init__(self) -> None:
        self.held = 0
        """The reasons to take no request at all, as bits."""
        self.blocked = False
        """Whether a request with records waits for backpressure to end."""
        self._turn = _NOT_ASKED
        self._unmuting: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """The connection has ended."""
        if self._unmuting is not None:
            self._unmuting.cancel()

    def mute(self, lasts_s: float, resume: Callable[[], None]) -> None:
        """Take no requests for that time, or for a longer one that was given before; then call `resume`."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + lasts_s
        if self._unmuting is not None:
            if self._unmuting.when() >= ends_at:
                return
            self._unmuting.cancel()
        self.held |= MUTED
        self._unmuting = loop.call_at(ends_at, self._unmute, resume)

    def _unmute(self, resume: Callable[[], None]) -> None:
        self._unmuting = None
        self.held &= ~MUTED
        resume()

    def may_write(self, backpressure: Backpressure, resume: Callable[[], None]) -> bool:
        """Whether a request with records may be taken now; if not, `resume` is called later."""
        if not self.blocked:

            def unblock() -> None:
                self.blocked = False
                resume()

            self.blocked = backpressure.blocked(unblock)
        return not self.blocked

    def may_take_large(self, turns: Turns, resume: Callable[[], None]) -> bool:
        """Whether a large request may be taken now; if not, `resume` is called in a later iteration of the
        event loop.
        """
        turn = self._turn
        if turn == _NOT_ASKED and turns.full:

            def take_turn() -> None:
                self._turn = _GIVEN
                resume()

            turns.wait(take_turn)
            self._turn = turn = _ASKED
        if turn == _ASKED:
            return False
        self._turn = _NOT_ASKED
        return True
