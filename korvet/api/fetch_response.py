"""Fetch responses (FetchResponse.json) written by hand: in segments, so that record data is not copied."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.primitives import length, string

if TYPE_CHECKING:
    from korvet.storage.log import PartitionLog
    from korvet.storage.transactions import Aborted

LOG_START_SINCE: Final = 5
SESSIONS_SINCE: Final = 7
PREFERRED_REPLICA_SINCE: Final = 11
FLEXIBLE_SINCE: Final = 12
TOPIC_IDS_SINCE: Final = 13
READ_COMMITTED: Final = 1
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_SESSION: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqq")
_ABORTED: Final = struct.Struct(">qq")


class FetchedPart:
    """One partition of a fetch and what was found there. Offsets are packed ones."""

    __slots__ = (
        "aborted",
        "batches",
        "error",
        "high_watermark",
        "index",
        "log",
        "log_start",
        "max_bytes",
        "offset",
        "size_bytes",
        "stable_end",
    )

    def __init__(self, index: int, offset: int, max_bytes: int) -> None:
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.log: PartitionLog | None = None
        self.reset()

    def reset(self) -> None:
        """Nothing found yet."""
        self.error = ErrorCode.none
        self.batches: list[bytes] = []
        self.size_bytes = 0
        self.high_watermark = -1
        self.stable_end = -1
        self.log_start = -1
        self.aborted: list[Aborted] = []

    def take(self, batches: list[bytes], log_end: int, log_start: int, stable_end: int | None) -> None:
        """Record batches were found, in any number of pieces. stable_end: None where it is not known."""
        self.batches = batches
        self.size_bytes = sum(map(len, batches))
        self.high_watermark = log_end
        self.stable_end = log_end if stable_end is None else stable_end
        self.log_start = log_start


def encode_response(
    version: int, topics: list[tuple[Any, list[FetchedPart]]], error: ErrorCode, isolation_level: int
) -> list[bytes]:
    """The response body; `topics` are the request's topics with what was found of their partitions."""
    flexible = version >= FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    is_committed = isolation_level == READ_COMMITTED
    nothing_aborted = length(0 if is_committed else -1, flexible)
    segments: list[bytes] = []
    text = [_SESSION.pack(0, error, 0) if version >= SESSIONS_SINCE else _INT32.pack(0)]
    text.append(length(len(topics), flexible))
    for topic, parts in topics:
        text.append(_topic_name(version, topic, flexible))
        text.append(length(len(parts), flexible))
        for part in parts:
            text.append(_PARTITION.pack(part.index, part.error, part.high_watermark, part.stable_end))
            if version >= LOG_START_SINCE:
                text.append(_INT64.pack(part.log_start))
            if is_committed and part.aborted:
                text.append(length(len(part.aborted), flexible))
                text += [_ABORTED.pack(each.producer_id, each.first_offset) + tags for each in part.aborted]
            else:
                text.append(nothing_aborted)
            if version >= PREFERRED_REPLICA_SINCE:
                text.append(_INT32.pack(-1))
            text.append(length(part.size_bytes, flexible))
            if part.size_bytes:
                segments.append(b"".join(text))
                segments += part.batches
                text = []
            text.append(tags)
        text.append(tags)
    text.append(tags)
    segments.append(b"".join(text))
    return segments


def _topic_name(version: int, topic: Any, flexible: bool) -> bytes:
    if version >= TOPIC_IDS_SINCE:
        return b"\x00" * 16 if topic.topic_id is None else bytes(topic.topic_id.bytes)
    return string(topic.topic, flexible)
