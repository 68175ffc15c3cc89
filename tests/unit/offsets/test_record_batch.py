"""The record batch layout: positions agree with the structs, and with a batch that a Kafka client wrote."""

from __future__ import annotations

import struct

from kafka.record.default_records import DefaultRecordBatchBuilder

from korvet.offsets import record_batch
from korvet.records.kernel import crc32c

POSITIONS = (
    record_batch.BASE_OFFSET_AT,
    record_batch.LENGTH_AT,
    record_batch.LEADER_EPOCH_AT,
    record_batch.MAGIC_AT,
    record_batch.CRC_AT,
    record_batch.ATTRIBUTES_AT,
    record_batch.LAST_OFFSET_DELTA_AT,
    record_batch.BASE_TIMESTAMP_AT,
    record_batch.MAX_TIMESTAMP_AT,
    record_batch.PRODUCER_ID_AT,
    record_batch.PRODUCER_EPOCH_AT,
    record_batch.BASE_SEQUENCE_AT,
    record_batch.RECORD_COUNT_AT,
)


def test_the_positions_are_those_of_the_structs() -> None:
    formats = record_batch.HEADER.format.lstrip(">")
    assert len(formats) == len(POSITIONS)
    for index, position in enumerate(POSITIONS):
        assert struct.calcsize(">" + formats[:index]) == position
    assert record_batch.HEADER.size == record_batch.HEADER_BYTES
    start, checked = record_batch.HEADER_START, record_batch.CHECKED_HEADER
    assert start.format + checked.format.lstrip(">") == record_batch.HEADER.format
    assert start.size == record_batch.ATTRIBUTES_AT
    assert record_batch.CODEC_AT == record_batch.ATTRIBUTES_AT + 1
    assert record_batch.LENGTH_EXCLUDES_BYTES == record_batch.LEADER_EPOCH_AT


def test_a_batch_of_a_client_has_this_layout() -> None:
    builder = DefaultRecordBatchBuilder(2, record_batch.GZIP, True, 7, 3, 11, 1 << 14)
    builder.append(0, 1000, b"k", b"v" * 999, [])
    builder.append(1, 1500, b"k", b"v" * 999, [])
    data = bytes(builder.build())
    fields = record_batch.HEADER.unpack_from(data)
    base, length, _, magic, crc, attributes, last_delta, base_ms, max_ms, producer, epoch, sequence, count = (
        fields
    )
    assert (base, magic, last_delta, base_ms, max_ms) == (0, record_batch.MAGIC, 1, 1000, 1500)
    assert length == len(data) - record_batch.LENGTH_EXCLUDES_BYTES
    assert crc == crc32c(data[record_batch.ATTRIBUTES_AT :])
    assert attributes == record_batch.GZIP | record_batch.TRANSACTIONAL
    assert data[record_batch.CODEC_AT] & record_batch.CODEC_MASK == record_batch.GZIP
    assert (producer, epoch, sequence, count) == (7, 3, 11, 2)
