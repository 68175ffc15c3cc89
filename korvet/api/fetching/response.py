"""Encodes Fetch responses (FetchResponse.json) by hand, in segments, so that record data is not copied."""

from __future__ import annotations

import struct
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.api.fetching.params import SESSIONS_SINCE
from korvet.protocol.primitives import length, string, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.api.fetching.partition import FetchedPartition
    from korvet.protocol.fetch_request import TopicKey

# The version that added a field, or the encoding.
_LOG_START_SINCE: Final = 5
_PREFERRED_REPLICA_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
_INT32: Final = struct.Struct(">i")
_NO_REPLICA: Final = _INT32.pack(-1)
_INT64: Final = struct.Struct(">q")
# Throttle time, error code and session ID.
_SESSION: Final = struct.Struct(">ihi")
# Index, error code, high watermark and last stable offset.
_PARTITION: Final = struct.Struct(">ihqq")
# Producer ID and first offset.
_ABORTED: Final = struct.Struct(">qq")
_topic: Final = attrgetter("topic")


def encode_response(
    version: int,
    partitions: Iterable[FetchedPartition],
    error: ErrorCode = ErrorCode.none,
    *,
    is_committed: bool = False,
    session_id: int = 0,
) -> list[bytes]:
    """The response body in segments. Consecutive partitions of one topic share an entry of the topic."""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    segments: list[bytes] = []
    topics = [(topic, [*found]) for topic, found in groupby(partitions, _topic)]
    text = [_SESSION.pack(0, error, session_id) if version >= SESSIONS_SINCE else _INT32.pack(0)]
    text.append(length(len(topics), flexible))
    for topic, found in topics:
        text.append(_topic_name(topic, flexible))
        text.append(length(len(found), flexible))
        for each in found:
            text.append(each.encoded or encode_head(version, each, is_committed=is_committed))
            if each.size_bytes:
                if each.log is not None:
                    each.log.counts.returned(each.size_bytes)
                segments.append(b"".join(text))
                segments += each.batches
                text = []
            text.append(tags)
        text.append(tags)
    text.append(tags)
    segments.append(b"".join(text))
    return segments


def encode_head(version: int, partition: FetchedPartition, *, is_committed: bool) -> bytes:
    """The fields of a partition up to the size of its records."""
    flexible = version >= _FLEXIBLE_SINCE
    high_watermark, last_stable_offset = partition.high_watermark, partition.last_stable_offset
    text = _PARTITION.pack(partition.index, partition.error, high_watermark, last_stable_offset)
    if version >= _LOG_START_SINCE:
        text += _INT64.pack(partition.log_start)
    if is_committed and partition.aborted:
        tags = b"\x00" if flexible else b""
        text += length(len(partition.aborted), flexible)
        text += b"".join(_ABORTED.pack(one.producer_id, one.first_offset) + tags for one in partition.aborted)
    else:
        text += length(0 if is_committed else -1, flexible)
    if version >= _PREFERRED_REPLICA_SINCE:
        text += _NO_REPLICA
    return text + length(partition.size_bytes, flexible)


def _topic_name(topic: TopicKey, flexible: bool) -> bytes:
    return string(topic, flexible) if isinstance(topic, str) else uuid_bytes(topic)
