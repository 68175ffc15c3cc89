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

    from korvet.api.fetching.partition import FetchedPartition, TopicKey

# The version that added a field, or the encoding.
_LOG_START_SINCE: Final = 5
_PREFERRED_REPLICA_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
_INT32: Final = struct.Struct(">i")
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
    nothing_aborted = length(0 if is_committed else -1, flexible)
    segments: list[bytes] = []
    topics = [(topic, [*found]) for topic, found in groupby(partitions, _topic)]
    text = [_SESSION.pack(0, error, session_id) if version >= SESSIONS_SINCE else _INT32.pack(0)]
    text.append(length(len(topics), flexible))
    for topic, found in topics:
        text.append(_topic_name(topic, flexible))
        text.append(length(len(found), flexible))
        for each in found:
            text.append(_PARTITION.pack(each.index, each.error, each.high_watermark, each.last_stable_offset))
            if version >= _LOG_START_SINCE:
                text.append(_INT64.pack(each.log_start))
            if is_committed and each.aborted:
                text.append(length(len(each.aborted), flexible))
                text += [_ABORTED.pack(one.producer_id, one.first_offset) + tags for one in each.aborted]
            else:
                text.append(nothing_aborted)
            if version >= _PREFERRED_REPLICA_SINCE:
                text.append(_INT32.pack(-1))
            text.append(length(each.size_bytes, flexible))
            if each.size_bytes:
                segments.append(b"".join(text))
                segments += each.batches
                text = []
            text.append(tags)
        text.append(tags)
    text.append(tags)
    segments.append(b"".join(text))
    return segments


def _topic_name(topic: TopicKey, flexible: bool) -> bytes:
    return string(topic, flexible) if isinstance(topic, str) else uuid_bytes(topic)
