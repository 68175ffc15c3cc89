"""Keeps the high watermarks of logs in Redis, for the next leaders of their partitions.

A new leader would otherwise know none before the first answer of its replicas, and readers would wait
although others have read the records. If the last leader's process has ended, the noted watermark may be some
seconds old, as in Kafka; that delays the newest records only.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.records.kernel import pack_command
from korvet.redis.errors import PASSING, StorageError, domain_error
from korvet.redis.functions import named
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from korvet.log.state import LogState

# Kafka's replica.high.watermark.checkpoint.interval.ms.
_INTERVAL_S: Final = 5.0


class Watermarks:
    """Notes the watermarks that have changed, every few seconds, and at the end of a log."""

    __slots__ = ("_changed", "_lost", "_task")

    def __init__(self) -> None:
        self._changed: dict[LogState, None] = {}
        # Closed logs whose last note Redis did not take, by stream.
        self._lost: dict[bytes, LogState] = {}
        self._task: asyncio.Task[None] | None = None

    def changed(self, state: LogState) -> None:
        """A log's high watermark is not noted."""
        self._changed[state] = None
        if self._task is None:
            self._task = keep("noting high watermarks", self._run)

    def end(self, state: LogState) -> None:
        """Note a log's high watermark before the log is closed. Another server may have taken over, which
        lacks what was noted.
        """
        self._changed.pop(state, None)
        if state.release is not None and state.known.has_watermark:
            self._note(state)

    def note_all(self) -> None:
        """Note the high watermarks of all logs that have changed."""
        noted, self._changed, self._lost = (*self._lost.values(), *self._changed), {}, {}
        for state in noted:
            self._note(state)

    def note_former(self, stream: bytes) -> None:
        """Note the high watermark of the closed log of a partition if its note was lost: before the partition
        is claimed again, because Redis takes no note of an earlier epoch after that.
        """
        former = self._lost.pop(stream, None)
        if former is not None:
            self._note(former)

    def note_lost(self) -> None:
        """The same of all partitions."""
        for stream in list(self._lost):
            self.note_former(stream)

    def _note(self, state: LogState) -> None:
        name, keys = named("korvet_note_watermark"), (state.meta, state.stream)
        rest = state.ends.high_watermark, str(state.topic.topic_id), state.highest_epoch, state.bias
        command = pack_command("FCALL", name, len(keys), *keys, *rest)
        state.links.write_functions.send(command, partial(self._noted, state))

    def _noted(self, state: LogState, reply: memoryview | StorageError) -> None:
        if not isinstance(reply, StorageError) or not isinstance(domain_error(reply), PASSING):
            return
        if state.refusal is None:
            self.changed(state)
        else:
            self._lost[state.stream] = state

    async def close(self) -> None:
        """Note no more."""
        await end(self._task)

    async def _run(self) -> NoReturn:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.note_all()
