"""What the fields of a stream entry mean: a record, a transaction marker, a whole record batch, or an
application's own fields.

`read_entry` is the definition. The kernels of brokers (korvet.records) and of Spark (korvet.spark.records),
and the index (_entries.lua) follow it; tests compare them. Entries don't say whether a transaction is open or
aborted: the partition's leader notes that in Redis.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

# An entry that is one record.
KEY: Final = b"key"
VALUE: Final = b"value"
# ms that the record's timestamp is after the ms of the entry ID.
TIMESTAMP: Final = b"ts"
# The name of a record header follows the prefix. A header whose value is null has the second prefix and an
# empty value.
HEADER_PREFIX: Final = b"header."
NULL_HEADER_PREFIX: Final = b"nullheader."

# Fields that an entry has in addition if the record is part of a transaction.
PRODUCER_ID: Final = b"pid"
PRODUCER_EPOCH: Final = b"epoch"
# A transaction marker has this field beside the producer's two, and no other.
CONTROL: Final = b"ctl"
COMMIT: Final = b"commit"
ABORT: Final = b"abort"
# Names and values of a transaction marker.
MARKER_STRINGS: Final = 6

# An entry that is a whole record batch has this one field.
BATCH: Final = b"batch"

# The most digits of a producer ID or epoch, which always fit int64, and of a timestamp.
NUMBER_DIGITS: Final = 18
TIMESTAMP_DIGITS: Final = 19
# Producer epochs are int16.
MAX_EPOCH: Final = (1 << 15) - 1

_MAX_INT64: Final = (1 << 63) - 1
_TIMESTAMP: Final = re.compile(rb"-?[0-9]{1,%d}" % TIMESTAMP_DIGITS)
_OUTCOMES: Final = {COMMIT: True, ABORT: False}


class Record(NamedTuple):
    """An entry that is one record, of a producer or of an application that uses the same fields."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[bytes, bytes | None]]
    """Names and values, in order."""
    producer_id: int
    """Of its transaction; -1 outside transactions."""


class Marker(NamedTuple):
    """An entry that ends a producer's transaction. It is no record, even if there is no such transaction."""

    producer_id: int
    commits: bool


def read_entry(fields: Sequence[bytes], entry_ms: int) -> Record | Marker | None:
    """What an entry is; `fields` is a flat list name, value, name, value ..., `entry_ms` the time in its ID.

    None if the fields are an application's own, and if the entry is a record batch.
    """
    key = value = timestamp_ms = producer_id = epoch = commits = None
    headers: list[tuple[bytes, bytes | None]] = []
    for name, text in zip(fields[::2], fields[1::2], strict=True):
        if name == VALUE and value is None:
            value = text
        elif name == KEY and key is None:
            key = text
        elif name == TIMESTAMP and timestamp_ms is None:
            timestamp_ms = _timestamp_ms(text, entry_ms)
            if timestamp_ms is None:
                return None
        elif name.startswith(HEADER_PREFIX):
            headers.append((name[len(HEADER_PREFIX) :], text))
        elif name.startswith(NULL_HEADER_PREFIX) and not text:
            headers.append((name[len(NULL_HEADER_PREFIX) :], None))
        elif name == PRODUCER_ID and producer_id is None and _is_number(text):
            producer_id = int(text)
        elif name == PRODUCER_EPOCH and epoch is None and _is_number(text) and int(text) <= MAX_EPOCH:
            epoch = int(text)
        elif name == CONTROL and commits is None and text in _OUTCOMES and len(fields) == MARKER_STRINGS:
            commits = _OUTCOMES[text]
        else:
            return None
    if (producer_id is None) != (epoch is None):
        return None
    if commits is not None:
        return None if producer_id is None else Marker(producer_id, commits)
    if timestamp_ms is None:
        timestamp_ms = entry_ms
    return Record(key, value, timestamp_ms, headers, -1 if producer_id is None else producer_id)


def _is_number(text: bytes) -> bool:
    return len(text) <= NUMBER_DIGITS and text.isdigit()


def _timestamp_ms(text: bytes, entry_ms: int) -> int | None:
    """The time of a `ts` field after an entry's time; None if it is no number, or one beyond int64."""
    if _TIMESTAMP.fullmatch(text) is None:
        return None
    relative_ms = int(text)
    return entry_ms + relative_ms if -_MAX_INT64 <= relative_ms <= _MAX_INT64 - entry_ms else None
