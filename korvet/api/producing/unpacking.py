"""Decompression of produced record batches, within a bound on memory and on the event loop's time.

A few KB can hold a batch as large as `max.decompressed.message.bytes`. The plain records, and their form as
Redis commands, stay in memory until Redis has them. So each batch takes its part of a budget of the process
before it is decompressed. Small batches are decompressed at once, as long as there is room and not too many
came in one turn of the event loop. All others wait for room in a fair order, and threads decompress them.
Small batches have a budget of their own, in which they need not wait for large ones.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.api.common.budget import Budget
from korvet.offsets.record_batch import HEADER_BYTES
from korvet.records.batch import BatchError
from korvet.records.compression import named_size, too_large
from korvet.records.framing import unpack

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from korvet.records.batch import BatchHeader, BytesLike

# An entry's share of an XADD command beside its key and value: names, lengths, entry ID.
_RECORD_BYTES: Final = 96
# A thread decompresses a batch that takes more than this (plain records and commands): 1 to 2 ms of gzip.
_SMALL_BYTES: Final = 1 << 20
# What is decompressed at once in one turn of the event loop, all connections together.
_TURN_BYTES: Final = 2 << 20
# The share of the memory that is for small batches.
_SMALL_SHARE: Final = 4
# Decompression needs no more than a core beside the event loop's; the second is for when one batch is slow.
_THREADS: Final = 2


class Unpacked:
    """The plain records of a batch, which hold their part of the budget until `release` is called, or until
    nobody holds them.
    """

    __slots__ = ("_budget", "_held_bytes", "plain")

    def __init__(self, plain: bytes, budget: Budget, held_bytes: int) -> None:
        self.plain = plain
        self._budget = budget
        self._held_bytes = held_bytes

    def release(self) -> None:
        """The records are in Redis, or refused."""
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._budget.give_back(held_bytes)

    def __del__(self) -> None:
        # The callback that would release them may have failed.
        if self._held_bytes:
            self.release()


class Unpacking:
    """Decompresses producers' batches. `limit_bytes` bounds what all of them take together."""

    def __init__(self, limit_bytes: int, loop: asyncio.AbstractEventLoop) -> None:
        small_bytes = limit_bytes // _SMALL_SHARE
        self._small = Budget(small_bytes, loop)
        self._large = Budget(limit_bytes - small_bytes, loop)
        self._loop = loop
        self._left_in_turn = _TURN_BYTES
        # Threads are started when there is something to do.
        self._executor = ThreadPoolExecutor(_THREADS, "unpacking")

    def close(self) -> None:
        """Decompress nothing more."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def at_once(self, data: BytesLike, header: BatchHeader, most_bytes: int) -> Unpacked | None:
        """A small batch, decompressed; None if it has to wait for its turn: then it is for `soon`.

        `most_bytes` bounds the plain records. Raises BatchError.
        """
        section = memoryview(data)[HEADER_BYTES:]
        commands_bytes = header.record_count * _RECORD_BYTES
        limit_bytes = min(_SMALL_BYTES - commands_bytes, most_bytes)
        plain_bytes = named_size(header.codec, section) or limit_bytes
        if plain_bytes > most_bytes:
            raise too_large(header.codec, most_bytes)
        size_bytes = commands_bytes + plain_bytes
        if not 0 < plain_bytes <= limit_bytes or self._left_in_turn <= 0 or not self._small.take(size_bytes):
            return None
        held_bytes = 0
        try:
            plain = unpack(header.codec, section, plain_bytes)
            held_bytes = commands_bytes + len(plain)
        except BatchError as error:
            if error.kind != "too_large" or plain_bytes == most_bytes:
                raise
            return None
        finally:
            self._small.give_back(size_bytes - held_bytes)
            self._count_turn(held_bytes or size_bytes)
        return Unpacked(plain, self._small, held_bytes)

    def soon(
        self,
        data: BytesLike,
        header: BatchHeader,
        most_bytes: int,
        done: Callable[[Unpacked | BatchError], None],
        *,
        is_whole: bool = True,
    ) -> None:
        """Decompress a batch when there is room for it; `done` is called later. See `at_once`. `is_whole`:
        whether the size that the first frame names may be that of the batch.
        """
        section = memoryview(data)[HEADER_BYTES:]
        named_bytes = named_size(header.codec, section) if is_whole else None
        plain_bytes = min(named_bytes or most_bytes, most_bytes)
        commands_bytes = header.record_count * _RECORD_BYTES
        size_bytes = commands_bytes + plain_bytes
        budget = self._small if size_bytes <= _SMALL_BYTES else self._large

        def admitted(_: bool) -> None:
            self.run(partial(unpack, header.codec, section, plain_bytes), unpacked)

        def unpacked(outcome: bytes | BatchError) -> None:
            if isinstance(outcome, bytes):
                held_bytes = commands_bytes + len(outcome)
                budget.give_back(size_bytes - held_bytes)
                done(Unpacked(outcome, budget, held_bytes))
                return
            budget.give_back(size_bytes)
            if outcome.kind == "too_large" and plain_bytes < most_bytes:
                # Several frames: the first one named its own size only.
                self.soon(data, header, most_bytes, done, is_whole=False)
            else:
                done(outcome)

        budget.wait(size_bytes, admitted)

    def run(self, work: Callable[[], bytes], done: Callable[[bytes | BatchError], None]) -> None:
        """Have a thread do some work on bytes; `done` is called later."""

        def over(working: asyncio.Future[bytes]) -> None:
            if working.cancelled():
                return
            error = working.exception()
            if error is None:
                done(working.result())
            else:
                done(error if isinstance(error, BatchError) else BatchError("corrupt", f"{error!r}"))

        self._loop.run_in_executor(self._executor, work).add_done_callback(over)

    def _count_turn(self, size_bytes: int) -> None:
        if self._left_in_turn == _TURN_BYTES:
            self._loop.call_soon(self._begin_turn)
        self._left_in_turn -= size_bytes

    def _begin_turn(self) -> None:
        self._left_in_turn = _TURN_BYTES
