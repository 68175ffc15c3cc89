"""Fetch responses (FetchResponse.json) written by hand: in segments, so that record data is not copied."""

from __future__ import annotations

import struct
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.protocol.primitives import length, string, uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.api.fetching.part import FetchedPart, TopicKey

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
_topic: Final = attrgetter("topic")


def encode_response(
    version: int,
    parts: Iterable[FetchedPart],
    error: ErrorCode = ErrorCode.none,
    *,
    is_committed: bool = False,
    session_id: int = 0,
) -> list[bytes]:
    """The response body. Partitions of one topic that follow each other are told in one go."""
    flexible = version >= FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    nothing_aborted = length(0 if is_committed else -1, flexible)
    segments: list[bytes] = []
    topics = [(topic, [*found]) for topic, found in groupby(parts, _topic)]
    text = [_SESSION.pack(0, error, session_id) if version >= SESSIONS_SINCE else _INT32.pack(0)]
    text.append(length(len(topics), flexible))
    for topic, found in topics:
        text.append(_topic_name(topic, flexible))
        text.append(length(len(found), flexible))
        for part in found:
            text.append(_PARTITION.pack(part.index, part.error, part.high_watermark, part.last_stable_offset))
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


def _topic_name(topic: TopicKey, flexible: bool) -> bytes:
    return string(topic, flexible) if isinstance(topic, str) else uuid_bytes(topic)
