"""The records of `__consumer_offsets` that count, distinguished by the codec."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from korvet.offsets.codec import DecodeError, decode_key, decode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue, UnknownKey, UnknownValue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from korvet.offsets.schema import Key, Value
    from tests.spark.reckoning.logs import Entry, Log

Row = dict[str, Any]
Place = tuple[str, str, int]
"""Group, topic and partition."""
COMMIT_TYPES, GROUP_TYPES = range(2), range(2, 24)
LARGEST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


@dataclass(frozen=True, slots=True)
class Record:
    """A readable record and its position."""

    key: Key
    value: Any
    key_bytes: bytes
    value_bytes: bytes | None
    partition: int
    offset: int
    timestamp_ms: int

    @property
    def position(self) -> Row:
        return source_columns(self.partition, self.offset, self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Read:
    """Commits, records on groups, and rows of the table `quarantine`, each in the order of positions."""

    commits: list[Record]
    groups: list[Record]
    refused: list[Row]


def read(logs: Iterable[Log], as_of_ms: int, *, pending: bool = False) -> Read:
    """Read what counts at a time, or else the records of open transactions."""
    found = Read([], [], [])
    for log in logs:
        for entry in log.opened() if pending else log.committed():
            if entry.timestamp_ms <= as_of_ms:
                _sort(found, log.partition, entry)
    return found


def _sort(found: Read, partition: int, entry: Entry) -> None:
    kind, reason, key, value = _decoded(entry)
    if reason is not None:
        position = source_columns(partition, entry.offset, entry.timestamp_ms)
        row = {"key": entry.key, "value": entry.value, "reason": reason}
        found.refused.append({**row, **position, "src_date": day(entry.timestamp_ms)})
    elif key is not None and not isinstance(key, UnknownKey):
        assert entry.key is not None
        place = (partition, entry.offset, entry.timestamp_ms)
        record = Record(key, value, entry.key, entry.value, *place)
        (found.commits if kind in COMMIT_TYPES else found.groups).append(record)


def _decoded(entry: Entry) -> tuple[int, str | None, Key | None, Value | None]:
    """Type, the reason if it can't be read, key and value of a record."""
    if entry.key is None or len(entry.key) < 2:
        return 0, "no key" if entry.key is None else "the key is shorter than its version", None, None
    kind = int.from_bytes(entry.key[:2], "big", signed=True)
    what = "offset commit" if kind in COMMIT_TYPES else "group metadata"
    try:
        key = decode_key(entry.key)
    except DecodeError as error:
        return kind, f"damaged {what} key: {error}", None, None
    if isinstance(key, UnknownKey):
        return kind, None, key, None
    try:
        value = decode_value(key, entry.value)
    except DecodeError as error:
        return kind, f"damaged {what} value: {error}", None, None
    if isinstance(value, UnknownValue):
        return kind, f"unknown {what} value version {value.version}", None, None
    return kind, None, key, value


def commit_columns(record: Record) -> Row:
    """Returns the columns of a commit without its position; null where a tombstone has no value."""
    key, value = record.key, record.value
    assert isinstance(key, OffsetCommitKey)
    row: Row = {"group": key.group, "topic": key.topic, "partition": key.partition}
    row |= {"key_version": key.version, "tombstone": value is None}
    names = ("committed_offset", "leader_epoch", "metadata", "commit_ms", "commit_ts", "expire_ms")
    row |= dict.fromkeys((*names, "topic_id", "value_version"))
    if value is None:
        return row
    assert isinstance(value, OffsetCommitValue)
    return row | {
        "committed_offset": value.offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "commit_ms": commit_ms(value),
        "commit_ts": moment(value.commit_timestamp_ms),
        "expire_ms": value.expire_timestamp_ms,
        "topic_id": value.topic_id,
        "value_version": value.version,
    }


def commit_ms(value: OffsetCommitValue) -> int | None:
    """Returns the time of a commit; None if it has none."""
    return None if value.commit_timestamp_ms == -1 else value.commit_timestamp_ms


def place_of(record: Record) -> Place:
    """Returns what a commit is about."""
    assert isinstance(record.key, OffsetCommitKey)
    return record.key.group, record.key.topic, record.key.partition


def source_columns(partition: int, offset: int, timestamp_ms: int) -> Row:
    return {"src_partition": partition, "src_offset": offset, "src_ts": timestamp_ms}


def moment(ms: int) -> int | None:
    """Returns a time that Spark can represent: in the years 1970 to 9999; else None."""
    return ms if 0 <= ms <= LARGEST_MS else None


def day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).date().isoformat()
