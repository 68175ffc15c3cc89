"""Keeps the high watermarks of logs in Redis, for the next leaders of their partitions.

A new leader would otherwise know none before the first answer of its replicas, and readers would wait
although others have read the records. As in Kafka the noted watermark may be some seconds old; that delays
the newest records only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

from korvet.records.kernel import pack_command
from korvet.storage.link.functions import named
from korvet.supervisor import end, keep

if TYPE_CHECKING:
    from korvet.storage.log.state import LogState

# Kafka's replica.high.watermark.checkpoint.interval.ms.
_INTERVAL_S: Final = 5.0


class Watermarks:
    """Notes the watermarks that have changed, every few seconds, and at the end of a log."""

    __slots__ = ("_changed", "_task")

    def __init__(self) -> None:
        self._changed: dict[LogState, None] = {}
        self._task: asyncio.Task[None] | None = None

    def changed(self, state: LogState) -> None:
        """A log's high watermark has grown."""
        self._changed[state] = None
        if self._task is None:
            self._task = keep("noting high watermarks", self._run)

    def note(self, state: LogState) -> None:
        """Note a log's high watermark now if it has changed."""
        if self._changed.pop(state, state) is None:
            name, keys = named("korvet_note_watermark"), (state.meta, state.stream)
            rest = state.high_watermark, str(state.topic.topic_id), state.highest_epoch, state.bias
            command = pack_command("FCALL", name, len(keys), *keys, *rest)
            # A lost note only makes the noted watermark older.
            state.links.write_functions.send(command, lambda reply: None)

    def note_all(self) -> None:
        """Note the high watermarks of all logs that have changed."""
        for state in list(self._changed):
            self.note(state)

    async def close(self) -> None:
        """Note no more."""
        await end(self._task)

    async def _run(self) -> NoReturn:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            self.note_all()
