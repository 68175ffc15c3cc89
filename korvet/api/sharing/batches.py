"""Record batches that share groups write themselves, as logs take those of producers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from korvet.offsets.record_batch import (
    CHECKED_HEADER,
    HEADER_BYTES,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from korvet.protocol.primitives import unsigned_varint
from korvet.records.assembly import assemble_batch
from korvet.records.batch import BatchError
from korvet.records.kernel import parse_batch
from korvet.redis.errors import StorageError
from korvet.redis.futures import awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended
    from korvet.records.batch import AppendArguments, BatchHeader, BytesLike

T = TypeVar("T")
NULL: Final = b"\x01"
"""An encoded key or value that is null."""
# Attributes and timestamp delta of a record.
_BEFORE_OFFSET: Final = b"\0\0"
# The most bytes of a record's length, and of its offset delta.
_NUMBERS_BYTES: Final = 2 * 5


class _Received(msgspec.Struct):
    """A batch as logs take those of producers."""

    data: BytesLike
    header: BatchHeader
    plain: bytes | None = None


def encoded(value: bytes | None) -> bytes:
    """A key, a value, or a header's name or value in a record."""
    return NULL if value is None else encoded_number(len(value)) + value


def encoded_number(value: int) -> bytes:
    """A number that is not negative, in a record."""
    return unsigned_varint(value << 1)


def batch_bytes(bodies: Iterable[bytes]) -> int:
    """The most bytes of a batch with these records."""
    return HEADER_BYTES + sum(len(body) + len(_BEFORE_OFFSET) + _NUMBERS_BYTES for body in bodies)


def fitting(items: Iterable[T], body_of: Callable[[T], bytes], max_bytes: int) -> Iterator[list[T]]:
    """The items in order, as many at once as have their records in a batch of up to `max_bytes`; one at
    least. body_of: what is encoded of an item's record from its key on.
    """
    some: list[T] = []
    size_bytes = HEADER_BYTES
    for item in items:
        more = batch_bytes([body_of(item)]) - HEADER_BYTES
        if some and size_bytes + more > max_bytes:
            yield some
            some, size_bytes = [], HEADER_BYTES
        some.append(item)
        size_bytes += more
    if some:
        yield some


def record_batch(bodies: Sequence[bytes], now_ms: int) -> bytes:
    """A batch of records. bodies: of each, what is encoded from its key on; now_ms: their timestamp."""
    records: list[bytes] = []
    for delta, body in enumerate(bodies):
        record = _BEFORE_OFFSET + encoded_number(delta) + body
        records += (encoded_number(len(record)), record)
    count = len(bodies)
    header = CHECKED_HEADER.pack(
        0, count - 1, now_ms, now_ms, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE, count
    )
    return assemble_batch(0, -1, header, *records)


async def append(log: PartitionLog, batch: bytes, timeout_ms: int) -> None:
    """Append a batch to a log that this broker leads, and wait for its replicas. Raises StorageError."""
    if log.missing_replicas is not None:
        raise log.missing_replicas
    try:
        received = _Received(batch, parse_batch(batch, 0))
        appended = await awaited(partial(_append, log, received))
    except BatchError as error:
        raise StorageError(str(error)) from error
    await awaited(
        partial(log.await_released, appended.base_offset + received.header.record_count, timeout_ms)
    )


def _append(log: PartitionLog, received: _Received, done: Callable[[Appended | StorageError], None]) -> None:
    log.append(received, None, _admit, done)


def _admit(_: AppendArguments) -> None:
    """The records have the time of the append; no policy asks for their keys."""
