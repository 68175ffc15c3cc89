"""The end of a log for its readers: what ListOffsets returns as the latest offset."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from korvet.storage.link.futures import awaited
from korvet.storage.log.values import LAST_OFFSET

if TYPE_CHECKING:
    from korvet.storage.log.partition_log import PartitionLog


async def readable_end(log: PartitionLog, *, is_committed: bool, after: int = LAST_OFFSET) -> int:
    """The high watermark, or the last stable offset if `is_committed`, of the log as Redis has it now.

    After a change of leader, it is not before the end that the last leader may have returned (KIP-207),
    unless it is after the offset `after`: that suffices then. Raises HighWatermarkUnknown if no replica
    confirms soon what the log holds, and StorageError.
    """
    await log.read_watermark()
    release = log.state.release
    if release is not None and _end(log, is_committed) <= after:
        await awaited(partial(log.await_confirmed, release.found_end))
    return _end(log, is_committed)


def _end(log: PartitionLog, is_committed: bool) -> int:
    return log.last_stable_offset if is_committed else log.high_watermark
