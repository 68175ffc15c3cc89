"""What tools produce to `__consumer_offsets`: every record is decoded and checked before it is applied.

Its groups' coordinator appends it then as its own, so that it holds at once; its time is that of the append.
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
    from korvet.storage.log.values import ReceivedBatch


def read_put(received: ReceivedBatch, partition: int, partitions: int) -> tuple[str, PutRequest]:
    """The batch's records and the group of one of them, all of which belong to this partition.

    Raises BatchError("invalid_record") for what no coordinator of groups would write there.
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
        named = decode_key(key)
        if not isinstance(named, (OffsetCommitKey, GroupMetadataKey)):
            # Those of consumer groups name topics by id, and each cluster has ids of its own.
            raise BatchError("invalid_record", f"records of key version {named.version} can't be moved here")
        said = decode_value(named, value)
    except DecodeError as error:
        raise BatchError("invalid_record", str(error)) from None
    if said is not None and not isinstance(said, (OffsetCommitValue, GroupMetadataValue)):
        raise BatchError("invalid_record", f"value version {said.version} is unknown")
    home = partition_for(named.group, partitions)
    if home != partition:
        raise BatchError("invalid_record", f"group {named.group!r} belongs to partition {home}")
    return named, said
