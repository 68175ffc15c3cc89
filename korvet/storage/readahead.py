"""What consumers that read through a log will ask for next, read while they look at what they have.

A consumer has one fetch at work: while Redis works on it the consumer waits, and while the consumer works
Redis waits. So the read behind one that continued another is begun at once, and mostly there when it is
asked for.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.storage.reader import Fetched, Read

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.storage.errors import StorageError
    from korvet.storage.log import PartitionLog
    from korvet.storage.store import Store

    Done = Callable[[Fetched | StorageError], None]

DEFAULT_BYTES: Final = 32 * 1024 * 1024
# What was read ahead is given away for so long only: natives may delete what it shows.
FRESH_S: Final = 1.0
# Ends of reads that are remembered per log; one that begins there goes on from another.
_REMEMBERED_ENDS: Final = 64


class _Ahead:
    """A read that nobody has asked for yet."""

    __slots__ = ("began_s", "max_bytes", "offset", "outcome", "owner", "size_bytes", "taker")

    def __init__(self, owner: ReadAhead, offset: int, max_bytes: int, began_s: float) -> None:
        self.owner = owner
        self.offset = offset
        self.max_bytes = max_bytes
        self.size_bytes = max_bytes
        self.began_s = began_s
        self.outcome: Fetched | None = None
        self.taker: Done | None = None
        """Who has asked for it while it is under way."""


class ReadAheadBudget:
    """The bytes that may be read ahead for all logs of a process together."""

    __slots__ = ("_held", "_sweep", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        """limit_bytes 0 reads nothing ahead."""
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        # The oldest first.
        self._held: OrderedDict[_Ahead, None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def hold(self, ahead: _Ahead) -> bool:
        """Count a read that is about to begin; False where there is no room for it."""
        if self.held_bytes + ahead.size_bytes > self.limit_bytes:
            return False
        self.held_bytes += ahead.size_bytes
        self._held[ahead] = None
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(FRESH_S, self._drop_stale)
        return True

    def resize(self, ahead: _Ahead, size_bytes: int) -> None:
        """What was read turned out to be so large."""
        if ahead in self._held:
            self.held_bytes += size_bytes - ahead.size_bytes
            ahead.size_bytes = size_bytes

    def release(self, ahead: _Ahead) -> None:
        """It was taken, or is not wanted any more. No fault where it was released before."""
        if ahead in self._held:
            del self._held[ahead]
            self.held_bytes -= ahead.size_bytes

    def clear(self) -> None:
        """Forget all: what Redis holds may have changed."""
        for ahead in list(self._held):
            ahead.owner.drop(ahead)

    def _drop_stale(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = None
        while self._held:
            oldest = next(iter(self._held))
            left_s = oldest.began_s + FRESH_S - loop.time()
            if left_s > 0:
                self._sweep = loop.call_later(left_s, self._drop_stale)
                return
            oldest.owner.drop(oldest)


class ReadAhead:
    """The reads of one log, some of them begun before they are asked for."""

    __slots__ = ("_aheads", "_budget", "_ends", "_log", "_store")

    def __init__(self, log: PartitionLog, store: Store) -> None:
        self._log = log
        self._store = store
        self._budget = store.readaheads
        self._aheads: dict[int, _Ahead] = {}
        self._ends: OrderedDict[int, None] = OrderedDict()

    def read(self, offset: int, max_bytes: int, done: Done) -> None:
        """See PartitionLog.read; `done` may be called at once."""
        ahead = self._aheads.get(offset)
        if ahead is None or ahead.max_bytes > max_bytes or ahead.taker is not None or self._is_stale(ahead):
            self._begin(offset, max_bytes, lambda outcome: self._arrived(offset, max_bytes, done, outcome))
        elif ahead.outcome is None:
            ahead.taker = done
        else:
            self.drop(ahead)
            self._give(ahead.outcome, offset, max_bytes, done)

    def drop(self, ahead: _Ahead) -> None:
        """Nobody may be given this any more, but who waits for it."""
        self._budget.release(ahead)
        if self._aheads.get(ahead.offset) is ahead:
            del self._aheads[ahead.offset]

    def clear(self) -> None:
        """Drop all."""
        for ahead in list(self._aheads.values()):
            self.drop(ahead)
        self._ends.clear()

    def _begin(self, offset: int, max_bytes: int, done: Done) -> None:
        Read(self._log, self._store, offset, max_bytes, done).start()

    def _is_stale(self, ahead: _Ahead) -> bool:
        now_s = asyncio.get_running_loop().time()
        return now_s > ahead.began_s + FRESH_S or ahead.offset < self._log.log_start

    def _arrived(self, offset: int, max_bytes: int, done: Done, outcome: Fetched | StorageError) -> None:
        if isinstance(outcome, Fetched):
            self._go_on(offset, max_bytes, outcome)
        done(outcome)

    def _give(self, fetched: Fetched, offset: int, max_bytes: int, done: Done) -> None:
        """Hand over what was read ahead, with the ends as they are known now."""
        log = self._log
        current = msgspec.structs.replace(fetched, log_start=log.log_start, log_end=log.log_end)
        self._arrived(offset, max_bytes, done, current)

    def _go_on(self, offset: int, max_bytes: int, fetched: Fetched) -> None:
        """Begin the read behind this one, if this one continued another and that will need Redis."""
        log, ahead_of = self._log, fetched.next_offset
        continued = offset in self._ends
        self._remember_end(ahead_of)
        in_tail = log.tail.start <= ahead_of < log.tail.end
        if not continued or not fetched.record_count or ahead_of >= log.log_end or in_tail or log.closed:
            return
        if ahead_of in self._aheads:
            return
        ahead = _Ahead(self, ahead_of, max_bytes, asyncio.get_running_loop().time())
        if self._budget.hold(ahead):
            self._aheads[ahead_of] = ahead
            self._begin(ahead_of, max_bytes, lambda outcome: self._ahead_arrived(ahead, outcome))

    def _remember_end(self, offset: int) -> None:
        self._ends[offset] = None
        self._ends.move_to_end(offset)
        if len(self._ends) > _REMEMBERED_ENDS:
            self._ends.popitem(last=False)

    def _ahead_arrived(self, ahead: _Ahead, outcome: Fetched | StorageError) -> None:
        taker = ahead.taker
        if taker is not None:
            self.drop(ahead)
            if self._log.refusal is not None:
                taker(self._log.refusal)
            elif isinstance(outcome, Fetched):
                self._give(outcome, ahead.offset, ahead.max_bytes, taker)
            else:
                taker(outcome)
        elif isinstance(outcome, Fetched) and outcome.record_count:
            ahead.outcome = outcome
            self._budget.resize(ahead, len(outcome.data))
        else:
            # The consumer's own read will say what is wrong.
            self.drop(ahead)
