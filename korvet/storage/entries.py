"""What stream entries are as records, where only a little of it is asked: their timestamps, and no entry at
all.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

from korvet.records.kernel import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

_DECIMAL: Final = re.compile(rb"-?[0-9]+")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
# RecordBatch, magic 2: base offset, length, leader epoch, magic, CRC | attributes ... record count (KIP-98).
_BATCH_HEAD: Final = struct.Struct(">qiibI")
_BATCH_TAIL: Final = struct.Struct(">hiqqqhii")
_NO_TIMESTAMP: Final = -1


def entry_timestamp(entry_id: bytes, fields: Sequence[bytes]) -> int:
    """When a record was made (ms): entry ms + `ts` where the fields are the ones we write, else entry ms.

    The same rule as records.kernel.entries_to_batches.
    """
    ms = int(entry_id.partition(b"-")[0])
    once = {b"key", b"value", b"ts"}
    timestamp = ms
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name in once:
            once.discard(name)
            if name == b"ts":
                if not _DECIMAL.fullmatch(value):
                    return ms
                timestamp = ms + int(value)
        elif not name.startswith(b"header.") and not (name.startswith(b"nullheader.") and not value):
            return ms
    return timestamp if _INT64_MIN <= timestamp <= _INT64_MAX else ms


def empty_batch(first_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """A record batch without records that ends at `last_offset`, as Kafka's cleaner leaves where all are
    gone.

    A reader goes on at last_offset + 1. The batch begins at `first_offset` where an int32 delta reaches so
    far.
    """
    base_offset = first_offset if last_offset - first_offset <= _INT32_MAX else last_offset
    tail = _BATCH_TAIL.pack(0, last_offset - base_offset, _NO_TIMESTAMP, _NO_TIMESTAMP, -1, -1, -1, 0)
    length = _BATCH_HEAD.size - 12 + len(tail)
    return _BATCH_HEAD.pack(base_offset, length, leader_epoch, 2, crc32c(tail)) + tail
