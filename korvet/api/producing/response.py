"""Produce responses, written by hand: there is one for every batch (ProduceResponse.json)."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec
from kio.schema.errors import ErrorCode

from korvet.api.common.errors import error_code_of
from korvet.protocol.primitives import length, string, topic_head

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from korvet.records.batch import BatchError
    from korvet.redis.errors import StorageError

_LOG_START_SINCE: Final = 5
_RECORD_ERRORS_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
TOPIC_IDS_SINCE: Final = 13
# Index, error code, base offset, append time and log start; versions before 5 have no log start.
_PARTITION: Final = struct.Struct(">ihqqq")
_BYTES_WITHOUT_START: Final = 22
_INT32: Final = struct.Struct(">i")


class RecordError(NamedTuple):
    """A record for which a batch is refused (KIP-467)."""

    batch_index: int
    """Its place in the batch, from 0 on."""
    message: str


class Refused(Exception):
    """The batch of one partition is not appended: the error and the text for the client."""

    def __init__(self, error: ErrorCode, message: str, records: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.error = error
        self.records = records
        """The bad records; empty if the whole batch is bad."""


Refusal: TypeAlias = "Refused | BatchError | StorageError"


class PartitionAnswer(msgspec.Struct, gc=False):
    """PartitionProduceResponse. Times in ms."""

    index: int
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    record_errors: Sequence[RecordError] = ()
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error."""
        if isinstance(refusal, Refused):
            self.error, self.record_errors = refusal.error, refusal.records
        else:
            self.error = error_code_of(refusal)
        self.message = str(refusal) or None


def encode_response(
    version: int,
    topics: Sequence[tuple[str, UUID | None, Sequence[PartitionAnswer]]],
    throttle_ms: int = 0,
) -> bytes:
    """The response body. `topics`: names and IDs, and the answers of their partitions."""
    flexible, by_id = version >= _FLEXIBLE_SINCE, version >= TOPIC_IDS_SINCE
    tags = b"\x00" if flexible else b""
    no_fault = _no_fault(version)
    size = _PARTITION.size if version >= _LOG_START_SINCE else _BYTES_WITHOUT_START
    parts = [length(len(topics), flexible)]
    for name, topic_id, answers in topics:
        parts.append(topic_head(name, topic_id, len(answers), by_id, flexible))
        for answer in answers:
            numbers = _PARTITION.pack(
                answer.index, answer.error, answer.base_offset, answer.append_ms, answer.log_start
            )
            fault = no_fault if answer.message is None else _fault(version, answer)
            parts += (numbers[:size], fault)
        parts.append(tags)
    parts += (_INT32.pack(throttle_ms), tags)
    return b"".join(parts)


@lru_cache(maxsize=32)  # one for each version
def _no_fault(version: int) -> bytes:
    return _fault(version, PartitionAnswer(0))


def _fault(version: int, answer: PartitionAnswer) -> bytes:
    """What follows a partition's numbers: bad records, a text, and no tagged fields."""
    if version < _RECORD_ERRORS_SINCE:
        return b""
    flexible = version >= _FLEXIBLE_SINCE
    tags = b"\x00" if flexible else b""
    parts = [length(len(answer.record_errors), flexible)]
    for index, message in answer.record_errors:
        parts += (_INT32.pack(index), string(message, flexible), tags)
    parts += (string(answer.message, flexible), tags)
    return b"".join(parts)
