"""The queues of share groups by `__share_group_state` (KIP-932), the state that coordinators keep.

Locks are not in it: a record that a member has counts as never delivered, or as waiting again. All records of
a state are in one partition of the topic, which one task reads in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructType

from korvet.offsets.schema import UnknownKey
from korvet.offsets.share_state import (
    AVAILABLE,
    DecodeError,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
    decode_share_key,
    decode_share_value,
)
from korvet.offsets.wire import uuid_text
from korvet.spark.tables.decode import NEEDED
from korvet.spark.tables.queues import Mark, Place, Queue
from korvet.spark.versions import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row

    from korvet.spark.tables.needs import TopicPartition

_BATCH: Final = ("first_offset", "last_offset", "delivery_state", "delivery_count")
_BATCH_TYPE: Final = StructType()
for _name in _BATCH:
    _BATCH_TYPE.add(_name, LongType())
STATE: Final = (
    StructType()
    .add("group", StringType())
    .add("topic_id", StringType())
    .add("partition", IntegerType())
    .add("start_offset", LongType())
    .add("batches", ArrayType(_BATCH_TYPE))
)


@dataclass(slots=True)
class State:
    """Of a share group in a partition. start_offset: -1 until records are delivered, None if unknown."""

    start_offset: int | None = None
    batches: list[StateBatch] = field(default_factory=list)

    def take(self, value: ShareSnapshot | ShareUpdate) -> None:
        """Change the state by a record."""
        if isinstance(value, ShareSnapshot):
            self.start_offset, self.batches = value.start_offset, [*value.state_batches]
        elif self.start_offset is not None:
            if value.start_offset >= 0:
                self.start_offset = value.start_offset
            for batch in value.state_batches:
                self.batches = [*_without(self.batches, batch), batch]
        start = self.start_offset
        if start is not None:
            self.batches = sorted(
                (each for each in self.batches if each.last_offset >= start),
                key=lambda each: each.first_offset,
            )


def _without(batches: Iterable[StateBatch], other: StateBatch) -> Iterator[StateBatch]:
    """The parts of batches that another one does not overlap."""
    for each in batches:
        count = each.delivery_state, each.delivery_count
        if each.first_offset < other.first_offset:
            last = min(each.last_offset, other.first_offset - 1)
            yield StateBatch(each.first_offset, last, *count)
        if each.last_offset > other.last_offset:
            first = max(each.first_offset, other.last_offset + 1)
            yield StateBatch(first, each.last_offset, *count)


def newest_states(records: DataFrame) -> DataFrame:
    """Return the newest state of each share group and partition (STATE), from the topic's records."""
    return records.select(*NEEDED).mapInArrow(_fold_batches, STATE)


def _fold_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    states: dict[tuple[str, bytes, int], State] = {}
    for batch in batches:
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        fold(states, zip(keys, values, strict=True))
    rows = [
        {
            "group": group,
            "topic_id": uuid_text(topic_id),
            "partition": partition,
            "start_offset": state.start_offset,
            "batches": [{name: getattr(each, name) for name in _BATCH} for each in state.batches],
        }
        for (group, topic_id, partition), state in states.items()
    ]
    yield pa.RecordBatch.from_pylist(rows, schema=arrow_schema(STATE))


def fold(
    states: dict[tuple[str, bytes, int], State], records: Iterable[tuple[bytes | None, bytes | None]]
) -> None:
    """Change states by records, in the order of the topic: keys and values.

    After a record that can't be read, a state is unknown until the next snapshot.
    """
    for key_bytes, value_bytes in records:
        try:
            key = decode_share_key(key_bytes or b"")
        except DecodeError:
            continue
        if isinstance(key, UnknownKey):
            continue
        place = key.group, key.topic_id, key.partition
        try:
            value = decode_share_value(key, value_bytes)
        except DecodeError:
            states[place] = State()
            continue
        if value is None:
            states.pop(place, None)
        elif isinstance(value, ShareSnapshot | ShareUpdate):
            states.setdefault(place, State()).take(value)
        else:
            states[place] = State()


def queue_of(place: Place, start_offset: int | None, batches: Sequence[StateBatch]) -> Queue:
    """Return the queue of a state; nothing is known of it before records are delivered."""
    if start_offset is None or start_offset < 0:
        return Queue(*place)
    left, again, first, deliveries = {start_offset: 1}, dict[int, int](), start_offset, 0
    for batch in batches:
        since, until = max(batch.first_offset, start_offset), batch.last_offset + 1
        if batch.delivery_state != AVAILABLE:
            _step(left, since, until, -1)
            first = until if since <= first else first
        elif batch.delivery_count:
            _step(again, since, until, 1)
            deliveries = max(deliveries, batch.delivery_count)
    marks = [Mark(at, left.get(at, 0), again.get(at, 0)) for at in sorted({*left, *again})]
    marks = [mark for mark in marks if mark.left or mark.again]
    return Queue(*place, start_offset, first, deliveries=deliveries, marks=marks)


def _step(sums: dict[int, int], since: int, until: int, by: int) -> None:
    sums[since] = sums.get(since, 0) + by
    sums[until] = sums.get(until, 0) - by


def kafka_queues(
    places: Sequence[Place],
    states: Sequence[Row],
    names: Mapping[str, str],
    empty: Mapping[TopicPartition, int],
) -> list[Queue]:
    """Return the queues of partitions by rows of newest_states.

    names: of topics by ID. empty: the log ends of partitions without records, whose states never change.
    """
    known = {
        Place(row["group"], names[row["topic_id"]], row["partition"]): row
        for row in states
        if row["topic_id"] in names
    }
    found = []
    for place in places:
        row, end = known.get(place), empty.get((place.topic, place.partition))
        if end is not None:
            found.append(queue_of(place, end, ()))
        elif row is not None:
            batches = [StateBatch(*batch) for batch in row["batches"]]
            found.append(queue_of(place, row["start_offset"], batches))
        else:
            found.append(Queue(*place))
    return found
