"""DeleteRecords on a log: deletes the records before an offset that readers can see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.storage.errors import OffsetOutOfRange
from korvet.storage.link.replicas import replicated
from korvet.storage.log.readable_end import readable_end
from korvet.storage.log.values import LAST_OFFSET

if TYPE_CHECKING:
    from korvet.storage.log.partition_log import PartitionLog


async def delete_before(log: PartitionLog, offset: int | None, timeout_ms: int) -> int:
    """Delete the records before an offset, or all that readers see. Returns the log start; see
    Trimming.delete_before.

    Raises OffsetOutOfRange, HighWatermarkUnknown, NotReplicated if the replicas that the topic asks for don't
    have the deletion within `timeout_ms`, and StorageError.
    """
    if (release := log.state.release) is None:
        return await log.trimming.delete_before(offset)
    history = log.links.server.write.history
    # Readers of the last leader may have asked for the offset.
    end = await readable_end(log, is_committed=False, after=LAST_OFFSET if offset is None else offset - 1)
    if offset is not None and offset > end:
        raise OffsetOutOfRange(offset, log.log_start, end)
    start = await log.trimming.delete_before(end if offset is None else offset)
    key, timeout_s = log.state.barrier_key, timeout_ms / 1000
    await replicated(log.links, release.level, log.stream, key, history, timeout_s)
    return start
