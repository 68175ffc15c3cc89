"""Deleting from one partition's log: retention, DeleteRecords, and forgetting transactions and producers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from korvet.log.transactions import member_of
from korvet.redis.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.index import LogIndex
    from korvet.log.state import LogState
    from korvet.log.transactions import Aborted
    from korvet.redis.commands import Commands

# Aborted transactions that one ZREM removes.
_REMOVED_AT_ONCE: Final = 128


class Trimming:
    """Deletes from one log. Every method raises StorageError; FencedEpoch if another broker leads the
    partition, and nothing is deleted.
    """

    __slots__ = ("_commands", "_index", "_lock", "_state")

    def __init__(self, state: LogState, commands: Commands, index: LogIndex) -> None:
        self._state = state
        self._commands = commands
        self._index = index
        self._lock = asyncio.Lock()

    async def trim(self, retention_ms: int | None, retention_bytes: int | None, now_ms: int) -> int:
        """Delete from the log start what is older than `retention_ms` or exceeds `retention_bytes`. None or
        -1 is no limit.

        Whole spans of the index go: those whose newest record is too old, and those without which the log
        still has `retention_bytes`. Records that nobody could read yet, for lack of replicas, stay. Returns
        the number of deleted entries. Function korvet_trim.
        """
        cutoff = "" if retention_ms is None or retention_ms < 0 else now_ms - retention_ms
        keep = "" if retention_bytes is None or retention_bytes < 0 else retention_bytes
        dropped = 0
        async with self._lock:
            while cutoff != "" or keep != "":
                seen = "" if self._state.release is None else self._state.ends.high_watermark
                _, now_dropped, more, start, end = await self._index.call(
                    "korvet_trim", cutoff, keep, seen, self._state.highest_epoch, read=False
                )
                dropped += now_dropped
                self._state.note_ends(start, end)
                if not more:
                    break
            if dropped:
                await self._forget_deleted_transactions()
        return dropped

    async def delete_before(self, offset: int | None) -> int:
        """Delete the records before an offset, or all. Returns the log start, which may be later than
        `offset`. All records of an entry go or stay together.

        Raises OffsetOutOfRange if the offset is not in the log. Function korvet_delete_before.
        """
        bound: str | int = "" if offset is None else offset
        async with self._lock:
            while True:
                outcome, dropped, start, end = await self._index.call(
                    "korvet_delete_before", bound, self._state.highest_epoch, read=False
                )
                self._state.note_ends(start, end)
                if outcome == b"range":
                    raise OffsetOutOfRange(-1 if offset is None else offset, start, end)
                # What is appended from now on stays.
                bound = end if bound == "" else bound
                if not dropped:
                    await self._forget_deleted_transactions()
                    return int(start)

    async def _forget_deleted_transactions(self) -> None:
        """Forget transactions whose markers were deleted: none of their records is left."""
        state = self._state
        before = f"({state.ends.local_log_start}"
        await self._commands.call("ZREMRANGEBYSCORE", state.aborted_key, "-inf", before)

    async def forget_transactions(self, aborted: Sequence[Aborted], gone: Sequence[int]) -> None:
        """Forget aborted transactions whose records left the log long ago. `gone`: the offsets, in order, at
        which their markers and other records are about to be removed.
        """
        state = self._state
        try:
            for at in range(0, len(aborted), _REMOVED_AT_ONCE):
                page = aborted[at : at + _REMOVED_AT_ONCE]
                await self._commands.call("ZREM", state.aborted_key, *map(member_of, page))
        finally:
            # Not earlier: readers learn from Redis of the transactions that it still has.
            state.transactions.prune(gone)

    async def expire_producers(self, seen_before_ms: int) -> int:
        """Forget producers that appended nothing since that time (Redis's clock). Returns their number.
        Function korvet_expire_producers.
        """
        state = self._state
        forgotten = 0
        cursor = b"0"
        while True:
            state.check_open()
            cursor, expired = await self._commands.fcall(
                "korvet_expire_producers", [state.meta], seen_before_ms, cursor
            )
            forgotten += int(expired)
            if cursor == b"0":
                return forgotten
