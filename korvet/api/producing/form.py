"""Produce requests as most producers send them, one batch for one partition, decoded in a few steps.

All that such a request has before the partition is the same from one to the next. It is known by its bytes
then, and what is left to read is the partition, the batch's length and the batch.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.protocol.headers import FIXED_HEADER_BYTES, LASTING_FRAME_BYTES
from korvet.protocol.primitives import MalformedRequest, length, read_unsigned_varint, string, uuid_bytes

if TYPE_CHECKING:
    import uuid

_FLEXIBLE_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 13
_INDEX_AND_SIZE: Final = struct.Struct(">ii")
_ACKS_AND_TIMEOUT_BYTES: Final = 6
# Tagged fields of partition, topic and request, of which there are none.
_NO_TAGS: Final = b"\x00\x00\x00"


class PartitionData(msgspec.Struct, frozen=True, gc=False):
    """PartitionProduceData."""

    index: int
    records: bytes | memoryview


class TopicData(msgspec.Struct, frozen=True, gc=False):
    """TopicProduceData; a name or an id, as the version has it."""

    name: str
    topic_id: uuid.UUID | None
    partition_data: tuple[PartitionData]


class ProduceOne(msgspec.Struct, frozen=True, gc=False):
    """ProduceRequest of one topic."""

    acks: int
    topic_data: tuple[TopicData]
    transactional_id: None = None


class ProduceForm:
    """What a producer's requests have in common, taken from one of them."""

    __slots__ = ("_acks", "_flexible", "_name", "_start", "_topic_id")

    def __init__(self, start: bytes, flexible: bool, request: Any) -> None:
        """Use `of`."""
        (topic,) = request.topic_data
        self._start = start
        self._flexible = flexible
        self._acks: int = request.acks
        self._name: str = getattr(topic, "name", "")
        self._topic_id: uuid.UUID | None = getattr(topic, "topic_id", None)

    @classmethod
    def of(cls, version: int, request: Any, frame: memoryview, position: int) -> ProduceForm | None:
        """The form of a decoded request whose body lies at `position`; None where it is no such request.

        The form holds what is behind the correlation id: client id and tagged fields of the header, too.
        """
        if request.transactional_id is not None or len(request.topic_data) != 1:
            return None
        (topic,) = request.topic_data
        if len(topic.partition_data) != 1:
            return None
        flexible = version >= _FLEXIBLE_SINCE
        no_transaction = string(None, flexible)
        settings = position + len(no_transaction)
        start = b"".join(
            (
                no_transaction,
                frame[settings : settings + _ACKS_AND_TIMEOUT_BYTES],
                length(1, flexible),
                _topic_start(version, topic, flexible),
                length(1, flexible),
            )
        )
        # Numbers can be written in more than one way: only the usual one is recognised.
        if frame[position : position + len(start)] != start:
            return None
        return cls(bytes(frame[FIXED_HEADER_BYTES:position]) + start, flexible, request)

    def decode(self, buffer: bytearray, begin: int, end: int) -> ProduceOne | None:
        """The request in the frame buffer[begin:end] of the same version, all values copied where the frame
        does not last; None where it has another form.
        """
        at = begin + FIXED_HEADER_BYTES
        lasts = end - begin > LASTING_FRAME_BYTES
        if not buffer.startswith(self._start, at, end):
            return None
        at += len(self._start)
        if end < at + _INDEX_AND_SIZE.size:
            return None
        index, size = _INDEX_AND_SIZE.unpack_from(buffer, at)
        if self._flexible:
            try:
                size, at = read_unsigned_varint(buffer, at + 4)
            except MalformedRequest:
                return None
            size -= 1
            if not buffer.endswith(_NO_TAGS, at, end):
                return None
            end -= len(_NO_TAGS)
        else:
            at += _INDEX_AND_SIZE.size
        if size <= 0 or at + size != end:
            return None
        records = memoryview(buffer)[at:end]
        data = PartitionData(index, records if lasts else bytes(records))
        return ProduceOne(self._acks, (TopicData(self._name, self._topic_id, (data,)),))


def _topic_start(version: int, topic: Any, flexible: bool) -> bytes:
    if version < _TOPIC_IDS_SINCE:
        return string(topic.name, flexible)
    return uuid_bytes(topic.topic_id)
