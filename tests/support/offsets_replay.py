"""A model of the state that `__consumer_offsets` holds: current offsets and all groups.

The newest value per key counts, a tombstone removes it. A value written in a transaction waits for its
marker; when that commits, it yields to a value that was written later, outside the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from korvet.offsets.codec import DecodeError, decode_key, decode_value
from korvet.offsets.schema import (
    GroupMemberKey,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    GroupRegexKey,
    OffsetCommitKey,
    OffsetCommitValue,
    UnknownValue,
    Value,
)
from korvet.offsets.wire import Reader

NO_PRODUCER_ID: Final = -1

_MARKER_COMMIT: Final = 1
_MARKER_ABORT: Final = 0


class CommitTarget(NamedTuple):
    """The group and partition of a committed offset."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """A committed offset, and the offset of its record in its partition of `__consumer_offsets`."""

    value: OffsetCommitValue
    record_offset: int


@dataclass(slots=True)
class NewerGroup:
    """A consumer, share or streams group: its newest values by record type, members' and regexes' by name."""

    properties: dict[int, Value] = field(default_factory=dict)
    members: dict[str, dict[int, Value]] = field(default_factory=dict)
    regexes: dict[str, Value] = field(default_factory=dict)

    @property
    def is_gone(self) -> bool:
        """Whether the group has no values any more."""
        return not (self.properties or self.members or self.regexes)

    def apply(self, key: GroupRecordKey | GroupMemberKey | GroupRegexKey, value: Value | None) -> None:
        """Set a value, or remove it with None."""
        if isinstance(key, GroupRecordKey):
            _put(self.properties, key.version, value)
        elif isinstance(key, GroupRegexKey):
            _put(self.regexes, key.regular_expression, value)
        else:
            _put(self.members.setdefault(key.member_id, {}), key.version, value)
            if not self.members[key.member_id]:
                del self.members[key.member_id]


def _put(values: dict[Any, Value], name: int | str, value: Value | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value


class OffsetsReplay:
    """Replays records of `__consumer_offsets`, each partition in offset order (partitions may interleave).

    offsets, groups (classic ones) and newer_groups hold the current state, for reading only. skipped counts
    the records that do not concern it: unknown types and versions, null keys, other control records.
    """

    __slots__ = ("_pending", "groups", "newer_groups", "offsets", "skipped")

    def __init__(self) -> None:
        self.offsets: dict[CommitTarget, StoredOffset] = {}
        self.groups: dict[str, GroupMetadataValue] = {}
        self.newer_groups: dict[str, NewerGroup] = {}
        self.skipped = 0
        self._pending: dict[tuple[int, int], dict[CommitTarget, StoredOffset]] = {}

    @property
    def open_transactions(self) -> int:
        """How many (partition, producer) have offsets that wait for a marker."""
        return len(self._pending)

    @property
    def pending(self) -> dict[tuple[int, int], dict[CommitTarget, StoredOffset]]:
        """Offsets that wait for a marker, by (partition, producer id); a copy."""
        return {transaction: dict(waiting) for transaction, waiting in self._pending.items()}

    def apply(
        self,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        *,
        producer_id: int = NO_PRODUCER_ID,
        transactional: bool = False,
        control: bool = False,
    ) -> None:
        """Apply the record at `offset` of `partition`.

        An offset written with a producer ID waits for that producer's marker, as in Kafka's coordinator.
        Raises DecodeError if the record is damaged or transactional without a producer ID; the state does not
        change then.
        """
        if transactional and producer_id < 0:
            raise DecodeError("the record is transactional but has no producer id")
        if control:
            self._end_transaction(partition, producer_id, key)
            return
        if key is None:
            self.skipped += 1
            return
        decoded_key = decode_key(key)
        decoded = decode_value(decoded_key, value)
        if isinstance(decoded, UnknownValue):
            self.skipped += 1
        elif isinstance(decoded_key, OffsetCommitKey):
            target = CommitTarget(decoded_key.group, decoded_key.topic, decoded_key.partition)
            if isinstance(decoded, OffsetCommitValue):
                self._store(partition, producer_id, target, StoredOffset(decoded, offset))
            else:
                self._remove(partition, target)
        elif isinstance(decoded_key, GroupMetadataKey):
            if isinstance(decoded, GroupMetadataValue):
                self.groups[decoded_key.group] = decoded
            else:
                self.groups.pop(decoded_key.group, None)
        elif isinstance(decoded_key, GroupRecordKey | GroupMemberKey | GroupRegexKey):
            group = self.newer_groups.setdefault(decoded_key.group, NewerGroup())
            group.apply(decoded_key, decoded)
            if group.is_gone:
                del self.newer_groups[decoded_key.group]
        else:
            self.skipped += 1

    def _store(self, partition: int, producer_id: int, target: CommitTarget, stored: StoredOffset) -> None:
        if producer_id < 0:
            self.offsets[target] = stored
        else:
            self._pending.setdefault((partition, producer_id), {})[target] = stored

    def _remove(self, partition: int, target: CommitTarget) -> None:
        """Delete an offset at once, also by a transactional tombstone; pending values go with it."""
        self.offsets.pop(target, None)
        for transaction in [name for name in self._pending if name[0] == partition]:
            pending = self._pending[transaction]
            pending.pop(target, None)
            if not pending:
                del self._pending[transaction]

    def _end_transaction(self, partition: int, producer_id: int, key: bytes | None) -> None:
        marker = _marker_type(key)
        if marker not in (_MARKER_ABORT, _MARKER_COMMIT):
            self.skipped += 1
            return
        pending = self._pending.pop((partition, producer_id), {})
        if marker == _MARKER_ABORT:
            return
        for target, stored in pending.items():
            current = self.offsets.get(target)
            if current is None or current.record_offset < stored.record_offset:
                self.offsets[target] = stored


def _marker_type(key: bytes | None) -> int:
    """Return the type in a control record's key (int16 version, int16 type)."""
    if key is None:
        raise DecodeError("a control record has no key")
    reader = Reader(key)
    reader.int16()
    return reader.int16()
