"""Control batches: the record batch that ends a producer's transaction (KIP-98), and one for gaps."""

from __future__ import annotations

from typing import Final

import msgspec

from korvet.offsets.record_batch import (
    ABORT,
    CHECKED_HEADER,
    COMMIT,
    CONTROL,
    CONTROL_KEY,
    CONTROL_VALUE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
)
from korvet.records.assembly import assemble_batch

# ControlRecordType and EndTxnMarker.
_KEY_VERSION: Final = 0
_VALUE_VERSION: Final = 0
# The record around key and value, one byte each: its length, attributes, both deltas and the key's size come
# before the key, the value's size before the value, and the number of headers at the end.
_BEFORE_KEY_BYTES: Final = 5
_RECORD_BYTES: Final = _BEFORE_KEY_BYTES - 1 + CONTROL_KEY.size + 1 + CONTROL_VALUE.size + 1
_BEFORE_KEY: Final = bytes((_RECORD_BYTES << 1, 0, 0, 0, CONTROL_KEY.size << 1))
_BEFORE_VALUE: Final = bytes((CONTROL_VALUE.size << 1,))
_NO_HEADERS: Final = b"\0"


class ControlMarker(msgspec.Struct, frozen=True, gc=False):
    """The end of a producer's transaction in one partition (WriteTxnMarkers)."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    decided_ms: int = -1
    """When the coordinator decided the outcome, increasing with each transaction; -1 if an administrator ends
    the transaction.
    """


def control_batch(
    marker: ControlMarker, now_ms: int, leader_epoch: int, attributes: int = 0, base_offset: int = 0
) -> bytes:
    """The record batch of a marker: one control record with the timestamp `now_ms`.

    `attributes` are added to those that every control batch has.
    """
    return assemble_batch(
        base_offset,
        leader_epoch,
        CHECKED_HEADER.pack(
            attributes | TRANSACTIONAL | CONTROL,
            0,
            now_ms,
            now_ms,
            marker.producer_id,
            marker.producer_epoch,
            NO_SEQUENCE,
            1,
        ),
        _BEFORE_KEY,
        CONTROL_KEY.pack(_KEY_VERSION, COMMIT if marker.committed else ABORT),
        _BEFORE_VALUE,
        CONTROL_VALUE.pack(_VALUE_VERSION, marker.coordinator_epoch),
        _NO_HEADERS,
    )


def gap_batch(last_offset: int, leader_epoch: int) -> bytes:
    """What consumers get in a gap at the log end: a commit marker of no producer at its last offset.

    Every client skips markers, and goes on after them. Kafka's cleaner leaves a batch without records in such
    a place, but librdkafka's position would stay before that.
    """
    marker = ControlMarker(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, committed=True, coordinator_epoch=0)
    return control_batch(marker, NO_TIMESTAMP, leader_epoch, base_offset=last_offset)
