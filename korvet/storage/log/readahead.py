"""What consumers that read through a log will ask for next, read while they look at what they have.

A consumer has one fetch at work: while Redis works on it the consumer waits, and while the consumer works
Redis waits. So the read behind one that continued another is begun at once, if possible before the reply to
that one is converted, and mostly there when it is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.storage.log.reader import Read
from korvet.storage.log.values import Fetched

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.errors import StorageError
    from korvet.storage.log.partition_log import PartitionLog

    Done = Callable[[Fetched | StorageError], None]

DEFAULT_BYTES: Final = 32 * 1024 * 1024
# What was read ahead is given away for so long only: natives may delete what it shows.
FRESH_S: Final = 1.0
# Ends of reads that are remembered per log; one that begins there goes on from another.
_REMEMBERED_ENDS: Final = 64
# So many replies in a row have to be given in whole before the end of the next one is believed to be where
# its consumer goes on: where records are large, often the last one leaves no room for itself.
_GIVEN_IN_WHOLE: Final = 4


class _Begun:
    """A read that was begun, maybe before anybody has asked for it."""

    __slots__ = ("began_s", "end", "max_bytes", "offset", "outcome", "owner", "size_bytes", "taker")

    def __init__(self, owner: ReadAhead, offset: int, max_bytes: int, taker: Done | None) -> None:
        self.owner = owner
        self.offset = offset
        self.max_bytes = max_bytes
        self.size_bytes = max_bytes
        self.began_s = time.monotonic()
        self.outcome: Fetched | None = None
        self.taker = taker
        """Who has asked for it, if need be while it was under way."""
        self.end = -1
        """Where its reply seemed to end; -1 where that is not known."""


class ReadAheadBudget:
    """The bytes that may be read ahead for all logs of a process together."""

    __slots__ = ("_held", "_sweep", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        """limit_bytes 0 reads nothing ahead."""
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        # The oldest first.
        self._held: OrderedDict[_Begun, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def hold(self, ahead: _Begun) -> bool:
        """Count a read that is about to begin; False where there is no room for it."""
        if self.held_bytes + ahead.size_bytes > self.limit_bytes:
            return False
        self.held_bytes += ahead.size_bytes
        self._held[ahead] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(FRESH_S, self._drop_stale)
        return True

    def resize(self, ahead: _Begun, size_bytes: int) -> None:
        """What was read turned out to be so large."""
        if ahead in self._held:
            self.held_bytes += size_bytes - ahead.size_bytes
            ahead.size_bytes = size_bytes

    def release(self, ahead: _Begun) -> None:
        """It was taken, or is not wanted any more. No fault where it was released before."""
        if ahead in self._held:
            del self._held[ahead]
            self.held_bytes -= ahead.size_bytes

    def clear(self) -> None:
        """Forget all: what Redis holds may have changed."""
        for ahead in list(self._held):
            ahead.owner.drop(ahead)

    def _drop_stale(self) -> None:
        self._sweep = None
        while self._held:
            oldest = next(iter(self._held))
            left_s = oldest.began_s + FRESH_S - time.monotonic()
            if left_s > 0:
                self._sweep = asyncio.get_running_loop().call_later(left_s, self._drop_stale)
                return
            oldest.owner.drop(oldest)


class ReadAhead:
    """The reads of one log, some of them begun before they are asked for."""

    __slots__ = ("_aheads", "_budget", "_ends", "_given_in_whole", "_log")

    def __init__(self, log: PartitionLog, budget: ReadAheadBudget) -> None:
        self._log = log
        self._budget = budget
        self._aheads: dict[int, _Begun] = {}
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._given_in_whole = 0

    def read(self, offset: int, max_bytes: int, done: Done) -> None:
        """See PartitionLog.read; `done` may be called at once."""
        ahead = self._aheads.get(offset)
        if ahead is None or ahead.max_bytes > max_bytes or ahead.taker is not None or self._is_stale(ahead):
            self._begin(_Begun(self, offset, max_bytes, done))
        elif ahead.outcome is None:
            ahead.taker = done
        else:
            self.drop(ahead)
            self._give(ahead, ahead.outcome, done)

    def drop(self, ahead: _Begun) -> None:
        """Nobody may be given this any more, but who waits for it."""
        self._budget.release(ahead)
        if self._aheads.get(ahead.offset) is ahead:
            del self._aheads[ahead.offset]

    def clear(self) -> None:
        """Drop all."""
        for ahead in list(self._aheads.values()):
            self.drop(ahead)
        self._ends.clear()

    def _begin(self, begun: _Begun) -> None:
        arrived, replied = partial(self._arrived, begun), partial(self._replied, begun)
        Read(self._log, begun.offset, begun.max_bytes, arrived, replied).start()

    def _is_stale(self, ahead: _Begun) -> bool:
        return time.monotonic() > ahead.began_s + FRESH_S or ahead.offset < self._log.log_start

    def _replied(self, begun: _Begun, end: int) -> None:
        """Redis has answered, with records up to `end` as it seems."""
        begun.end = end
        if begun.taker is not None and self._given_in_whole >= _GIVEN_IN_WHOLE:
            self._go_on(begun, end)

    def _arrived(self, begun: _Begun, outcome: Fetched | StorageError) -> None:
        taker = begun.taker
        if taker is not None:
            self.drop(begun)
            if self._log.refusal is not None:
                taker(self._log.refusal)
            elif isinstance(outcome, Fetched):
                self._give(begun, outcome, taker)
            else:
                taker(outcome)
        elif isinstance(outcome, Fetched) and outcome.record_count:
            begun.outcome = outcome
            self._budget.resize(begun, len(outcome.data))
        else:
            # The consumer's own read will say what is wrong.
            self.drop(begun)

    def _give(self, begun: _Begun, fetched: Fetched, taker: Done) -> None:
        """Hand over what was read, with the ends as they are known now."""
        log = self._log
        self._check_end(begun, fetched)
        if fetched.record_count:
            self._go_on(begun, fetched.next_offset)
        self._remember_end(fetched.next_offset)
        taker(msgspec.structs.replace(fetched, log_start=log.log_start, log_end=log.log_end))

    def _check_end(self, begun: _Begun, fetched: Fetched) -> None:
        """Whether the reader goes on where the reply seemed to end."""
        if fetched.next_offset == begun.end:
            self._given_in_whole += 1
            return
        self._given_in_whole = 0
        foreseen = self._aheads.get(begun.end)
        if foreseen is not None:
            self.drop(foreseen)

    def _go_on(self, begun: _Begun, offset: int) -> None:
        """Begin the read behind this one, if this one continued another and that will need Redis."""
        log = self._log
        in_tail = log.tail.start <= offset < log.tail.end
        if begun.offset not in self._ends or offset >= log.log_end or in_tail or log.closed:
            return
        if offset in self._aheads or offset <= begun.offset:
            return
        ahead = _Begun(self, offset, begun.max_bytes, None)
        if self._budget.hold(ahead):
            self._aheads[offset] = ahead
            self._begin(ahead)

    def _remember_end(self, offset: int) -> None:
        self._ends[offset] = None
        self._ends.move_to_end(offset)
        if len(self._ends) > _REMEMBERED_ENDS:
            self._ends.popitem(last=False)
