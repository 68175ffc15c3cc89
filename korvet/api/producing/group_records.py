"""Records that tools produce to `__consumer_offsets`: each is decoded and checked before it is applied.

The group's coordinator appends them as its own records, so that they take effect at once. Their time is that
of the append.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.groups.messages import PutRequest
from korvet.offsets.codec import decode_key, decode_value
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from korvet.offsets.wire import DecodeError
from korvet.records.batch import BatchError
from korvet.records.kernel import check_records
from korvet.records.runs import records_of

if TYPE_CHECKING:
    from korvet.groups.messages import Record
    from korvet.log.values import ReceivedBatch


def read_group_records(received: ReceivedBatch, partition: int, partitions: int) -> tuple[str, PutRequest]:
    """The group of the batch's first record, and all records. `partitions`: of `__consumer_offsets`.

    Raises BatchError("invalid_record") for a record that a group coordinator would not write to this
    partition.
    """
    header = received.header
    if header.transactional:
        raise BatchError("invalid_record", "offsets are committed in transactions by TxnOffsetCommit")
    check_records(received.data, 0, header, received.plain)
    records = [
        _read(record.key, record.value, partition, partitions)
        for record in records_of(bytes(received.data), header, received.plain)
    ]
    first, _ = records[0]
    assert isinstance(first, (OffsetCommitKey, GroupMetadataKey))
    return first.group, PutRequest(tuple(records))


def _read(key: bytes | None, value: bytes | None, partition: int, partitions: int) -> Record:
    if key is None:
        raise BatchError("invalid_record", "a record without a key is of no group")
    try:
        decoded_key = decode_key(key)
        if not isinstance(decoded_key, (OffsetCommitKey, GroupMetadataKey)):
            # Records of consumer groups name topics by ID, and IDs differ from cluster to cluster.
            raise BatchError(
                "invalid_record", f"records of key version {decoded_key.version} can't be moved here"
            )
        decoded_value = decode_value(decoded_key, value)
    except DecodeError as error:
        raise BatchError("invalid_record", str(error)) from None
    if decoded_value is not None and not isinstance(decoded_value, (OffsetCommitValue, GroupMetadataValue)):
        raise BatchError("invalid_record", f"value version {decoded_value.version} is unknown")
    expected = partition_for(decoded_key.group, partitions)
    if expected != partition:
        raise BatchError("invalid_record", f"group {decoded_key.group!r} belongs to partition {expected}")
    return decoded_key, decoded_value
