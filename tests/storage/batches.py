"""Appending to logs and reading them in tests; an independent decoder decodes the record batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiokafka.record import MemoryRecords

from korvet.log.values import ProducerSequence
from korvet.records.kernel import parse_batch
from tests.support.logs import admit, read_log
from tests.support.received import ReceivedBatch
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended
    from korvet.redis.errors import StorageError


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def received(records: Sequence[tuple[bytes | None, bytes | None, int]]) -> ReceivedBatch:
    """A producer's batch of records (key, value, timestamp in ms)."""
    section = forms.records_bytes([forms.Record(*record) for record in records], base_ms=0)
    data = forms.batch_bytes(section, len(records), base_ms=0)
    return ReceivedBatch(data, parse_batch(data, 0), None)


def produce(
    log: PartitionLog,
    records: Sequence[tuple[bytes | None, bytes | None, int]],
    done: Callable[[Appended | StorageError], None],
    stamp: tuple[int, int, int] | None = None,
    epoch: int | None = None,
    *,
    followed: bool = False,
) -> None:
    """Append a batch like a Produce request."""
    producer = ProducerSequence(*stamp) if stamp else None
    log.append(received(records), producer, admit, done, epoch=epoch, followed=followed)


def decode(data: bytes) -> list[Record]:
    """The records of several batches, without the batch for a gap at the log end; their CRCs are checked."""
    found = []
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch is not None
        assert batch.validate_crc()
        if batch.is_control_batch and batch.producer_id < 0:
            continue
        found += [Record(record.offset, record.timestamp, record.key, record.value) for record in batch]
    return found


async def read_everything(log: PartitionLog, max_bytes: int) -> list[int]:
    """The offsets of all records from the log start to the log end, as a consumer reads them."""
    bounds = await log.bounds()
    offset = bounds.log_start
    found: list[int] = []
    while offset < bounds.log_end:
        fetched = await read_log(log, offset, max_bytes)
        assert fetched.next_offset > offset, "a read short of the log end gives something"
        assert fetched.data
        offsets = [record.offset for record in decode(fetched.data)]
        assert len(offsets) == fetched.record_count
        found += offsets
        offset = fetched.next_offset
    return found
