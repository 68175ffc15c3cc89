"""Offset commits from Arrow batches of records: NumPy decodes whole columns, the codec unusual records.

Nearly every record is plain: two or three lengths give the positions of its numbers, and a value of version 4
has no tags or only a topic ID. korvet.offsets.codec decodes all other records, so it defines what is
readable. Pure: no Spark session.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from korvet.offsets.codec import DecodeError, decode_key, decode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.spark.records.columns import MAX_SPARK_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Made = Callable[[], pa.Array]
    Numbers = NDArray[Any]
    Flags = NDArray[np.bool_]
    # Rows that the codec decoded: the columns of each commit, or the reason why it is unreadable.
    Found = Sequence[tuple[int, dict[str, Any] | str]]

# Versions of OffsetCommitValue: with an expiry time, the first with a leader epoch, the flexible one.
_WITH_EXPIRY, _WITH_EPOCH, _FLEXIBLE = 1, 3, 4
# Bytes of a key without its texts: version, two lengths, partition. Positions of offset and epoch in a value.
_KEY_FRAME = 10
_OFFSET_AT, _EPOCH_AT = 2, 10
_TIME_BYTES = 8
# What a commit whose time isn't known has in place of it.
NO_TIME = -1
_TOPIC_ID_BYTES = 16
# The tags of a flexible value with a topic ID: one tag, number 0, of 16 bytes.
_TAG = (1, 0, _TOPIC_ID_BYTES)
# Reading a row that is too short reads at most this number of bytes after its end.
_PADDING = np.zeros(64, dtype=np.uint8)
# Records that Newest collects before it reduces them to the newest, and keys that it keeps at most.
_ROWS_AT_ONCE = 100_000
_MAX_KEPT = 500_000
# Lengths of the slots of time of which Newest keeps the last commits, in ms.
SLOTS_MS = (60_000, 300_000, 1_200_000, 3_600_000)
# Our columns of a record's position by the source's columns.
SOURCES = {"src_partition": "partition", "src_offset": "offset", "src_ts": "timestamp"}


def read_commits(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the readable offset commits among records, in the columns of `schema`; plain ones come first.

    The records have key and value, and partition, offset and timestamp if the schema needs them. Columns
    outside the schema are not computed.
    """
    rows, made, odd = _sort(records)
    return _readable_columns(records, rows, made, _decoded(records, odd), schema)


def split_commits(
    records: pa.RecordBatch, readable: pa.Schema, refused: pa.Schema
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return what read_commits and refused_commits return, with these schemas, in one pass."""
    rows, made, odd = _sort(records)
    found = _decoded(records, odd)
    return (
        _readable_columns(records, rows, made, found, readable),
        _refused_columns(records, found, refused),
    )


def _readable_columns(
    records: pa.RecordBatch, rows: Numbers, made: Mapping[str, Made], found: Found, schema: pa.Schema
) -> pa.RecordBatch:
    """The plain commits in `rows`, then the readable ones in `found`."""
    columns = _sources(records, rows)
    columns |= {name: made[name]() for name in schema.names if name not in columns}
    batches = [pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)]
    read = [(row, commit) for row, commit in found if isinstance(commit, dict)]
    if read:
        columns = _sources(records, np.array([row for row, _ in read]))
        for field in schema:
            if field.name not in columns:
                columns[field.name] = pa.array([commit.get(field.name) for _, commit in read], field.type)
        batches.append(pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema))
    return pa.concat_batches(batches)


class Newest:
    """Collects the newest readable commits and tombstones of each key from batches of records.

    Beside the newest ones these are the last ones of the newest slots of time, for each length in SLOTS_MS,
    by the timestamps of records: they tell how often a group usually commits. Records stay encoded, so most
    commits are never decoded.
    """

    def __init__(self, count: int) -> None:
        """count: commits to keep of each key, and slots of each length."""
        self._count = count
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._enough = _ROWS_AT_ONCE

    def take(self, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Process a batch with the columns key, value, partition, offset and timestamp.

        Yields records of commits only if there are more than it may keep.
        """
        self._batches.append(records)
        self._rows += records.num_rows
        if self._rows >= self._enough:
            kept = _newest(pa.concat_batches(self._batches), self._count)
            self._batches, self._rows = [kept], kept.num_rows
            # Each pass over the kept records adds at least as many new ones.
            self._enough = max(_ROWS_AT_ONCE, 2 * kept.num_rows)
            if kept.num_rows > _MAX_KEPT:
                yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the kept records, and forget them."""
        if self._batches:
            yield _newest(pa.concat_batches(self._batches), self._count)
        self._batches, self._rows, self._enough = [], 0, _ROWS_AT_ONCE


def _newest(records: pa.RecordBatch, count: int) -> pa.RecordBatch:
    """The readable commits among the newest of each key."""
    newest = records.take(pa.array(_last_of_each(records, count)))
    readable, damaged = _readable(newest)
    if damaged:
        # Each damaged record may be newer than a readable one of its key.
        records = records.take(pa.array(_readable(records)[0]))
        return records.take(pa.array(_last_of_each(records, count)))
    return newest if len(readable) == newest.num_rows else newest.take(pa.array(readable))


def _last_of_each(records: pa.RecordBatch, count: int) -> Numbers:
    """The rows with the `count` highest offsets of each key, and the last ones of its newest slots.

    Rows that have no key are left out. A tombstone is a slot of its own: it is kept if an earlier commit is.
    """
    keys = records.column("key").dictionary_encode()
    none = len(keys.dictionary)
    codes = keys.indices.fill_null(none).to_numpy(zero_copy_only=False)
    offsets = records.column("offset").to_numpy(zero_copy_only=False)
    if count == 1:
        # The newest row of a key is the last one of its slots, too, so it is all there is to keep. This needs
        # no sorting, and takes a third of the time.
        keyed = np.flatnonzero(codes < none)
        highest = np.full(none, np.iinfo(np.int64).min)
        np.maximum.at(highest, codes[keyed], offsets[keyed])
        newest: Numbers = keyed[offsets[keyed] == highest[codes[keyed]]]
        return newest
    newest_first = np.lexsort((-offsets, codes))
    rows = newest_first[: np.count_nonzero(codes < none)]
    codes = codes[rows]
    is_newest = np.ones(len(rows), dtype=bool)
    is_newest[1:] = codes[1:] != codes[:-1]
    chosen = _ranks(is_newest, np.ones(len(rows), dtype=bool)) <= count
    written = records.column("timestamp").cast(pa.int64()).fill_null(0)
    written_us = written.to_numpy(zero_copy_only=False)[rows]
    deletes = records.column("value").is_null().to_numpy(zero_copy_only=False)[rows]
    for slot_ms in SLOTS_MS:
        slots = written_us // (slot_ms * 1000)
        is_last = is_newest.copy()
        is_last[1:] |= (slots[1:] != slots[:-1]) | deletes[1:] | deletes[:-1]
        chosen |= is_last & (_ranks(is_newest, is_last) <= count)
    return np.sort(rows[chosen])


def _ranks(is_newest: Flags, counted: Flags) -> Numbers:
    """For each row, the number of counted rows of its key up to the row itself.

    The rows of a key follow each other, newest first. The newest one must be counted.
    """
    totals: Numbers = np.cumsum(counted)
    first = np.maximum.accumulate(np.where(is_newest, np.arange(len(is_newest)), 0))
    return np.subtract(totals, totals[first]) + 1


def records_on_groups(records: pa.RecordBatch) -> pa.RecordBatch:
    """Return the records on groups: those with a key of version 2 or higher."""
    keys = _Keys.measured(_Column(records.column("key")))
    return records.take(pa.array(np.flatnonzero(keys.versions > 1)))


def _readable(records: pa.RecordBatch) -> tuple[Numbers, bool]:
    """The rows that are readable commits, and whether there are unreadable commits."""
    plain, _, odd = _sort(records)
    read = [row for row in odd if isinstance(_decode(records, row), dict)]
    return np.sort(np.concatenate([plain, np.array(read, dtype=np.int64)])), len(read) < len(odd)


def refused_commits(records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the unreadable commits and the records without a type, each with a `reason`."""
    *_, odd = _sort(records)
    return _refused_columns(records, _decoded(records, odd), schema)


def _refused_columns(records: pa.RecordBatch, found: Found, schema: pa.Schema) -> pa.RecordBatch:
    refused = [(row, reason) for row, reason in found if isinstance(reason, str)]
    rows = np.array([row for row, _ in refused], dtype=np.int64)
    columns = _sources(records, rows) | {
        "key": records.column("key").take(pa.array(rows)),
        "value": records.column("value").take(pa.array(rows)),
        "reason": pa.array([reason for _, reason in refused], type=pa.string()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _sources(records: pa.RecordBatch, rows: Numbers) -> dict[str, pa.Array]:
    """The position columns of these rows."""
    columns = {name: records.column(own) for name, own in SOURCES.items() if own in records.schema.names}
    if len(rows) == records.num_rows:
        return columns
    return {name: column.take(pa.array(rows)) for name, column in columns.items()}


class _Column:
    """A column of bytes as one array, with the position and size of each row. Nulls have no bytes."""

    def __init__(self, column: pa.Array) -> None:
        column = column.cast(pa.binary())
        _, offsets, data = column.buffers()
        first, rows = column.offset, len(column)
        bounds = np.frombuffer(offsets, dtype=np.int32, count=first + rows + 1)[first:].astype(np.int64)
        raw = _PADDING[:0] if data is None else np.frombuffer(data, dtype=np.uint8)
        self.data = np.concatenate([raw, _PADDING])
        self.starts, self.sizes = bounds[:-1], np.diff(bounds)
        self.nulls: Flags = column.is_null().to_numpy(zero_copy_only=False)

    def read(self, kind: str, at: Numbers) -> Numbers:
        """Return the big-endian numbers of a NumPy type at these positions."""
        form = np.dtype(kind)
        positions = len(self.data) - form.itemsize + 1
        found: Numbers = np.ndarray((positions,), form, self.data.data, strides=(1,))[at]
        return found.astype(form.newbyteorder("="))

    def cut(self, at: Numbers, sizes: Numbers, nulls: Flags | None = None) -> pa.Array:
        """Return the bytes at these positions as a column."""
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        # Source position of each byte of the result: its own index, moved like all bytes of its row.
        positions = np.repeat(at - ends + sizes, sizes) + np.arange(total)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        valid = None if nulls is None else pa.array(~nulls).buffers()[1]
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(self.data.take(positions))]
        return pa.Array.from_buffers(pa.binary(), len(sizes), buffers)


@dataclass(slots=True)
class _Keys:
    """Positions in each key. They are valid only for the rows that are `plain`."""

    column: _Column
    versions: Numbers
    group_sizes: Numbers
    topic_sizes: Numbers
    plain: Flags

    @classmethod
    def measured(cls, column: _Column) -> _Keys:
        """Return the positions. A key is plain if its lengths add up to its size."""
        # A key that is too short for a type counts as version 0, so it is quarantined as a damaged commit.
        versions = np.where(column.sizes >= 2, column.read(">i2", column.starts), 0)
        texts = column.sizes - _KEY_FRAME
        group_sizes = column.read(">i2", column.starts + 2).astype(np.int64)
        plain = ((versions == 0) | (versions == 1)) & (group_sizes >= 0) & (group_sizes <= texts)
        group_sizes *= plain
        topic_sizes = column.read(">i2", column.starts + 4 + group_sizes).astype(np.int64)
        plain &= topic_sizes == texts - group_sizes
        return cls(column, versions, group_sizes, topic_sizes, plain)

    def texts(self, rows: Numbers) -> dict[str, pa.Array]:
        """Return group and topic of these rows, as bytes."""
        group_at, group_sizes = self.column.starts[rows] + 4, self.group_sizes[rows]
        return {
            "group": self.column.cut(group_at, group_sizes),
            "topic": self.column.cut(group_at + group_sizes + 2, self.topic_sizes[rows]),
        }

    def numbers(self, rows: Numbers) -> dict[str, Made]:
        """Return functions that build the other columns of these rows."""
        ends = self.column.starts[rows] + self.column.sizes[rows]
        return {
            "partition": lambda: pa.array(self.column.read(">i4", ends - 4)),
            "key_version": lambda: pa.array(self.versions[rows].astype(np.int32)),
        }


@dataclass(slots=True)
class _Values:
    """Positions in each value. They are valid only for the rows that are `plain`. Null is plain."""

    column: _Column
    versions: Numbers
    metadata_at: Numbers
    metadata_sizes: Numbers
    with_topic_id: Flags
    plain: Flags

    @classmethod
    def measured(cls, column: _Column) -> _Values:
        """Return the positions. A value is plain if the metadata and the fields after it fill its size."""
        versions = np.where(column.sizes >= 2, column.read(">i2", column.starts), -1)
        metadata_at, metadata_sizes, plain = _metadata(column, versions)
        rest = column.starts + column.sizes - metadata_at - metadata_sizes - _TIME_BYTES
        plain &= rest >= 0
        metadata_sizes *= plain
        flexible = versions == _FLEXIBLE
        tags_at = (metadata_at + metadata_sizes + _TIME_BYTES) * plain
        tags = [column.data[tags_at + index] for index in range(len(_TAG))]
        with_topic_id = plain & flexible & (rest == len(_TAG) + _TOPIC_ID_BYTES)
        for byte, wanted in zip(tags, _TAG, strict=True):
            with_topic_id &= byte == wanted
        untagged = rest == np.where(versions == _WITH_EXPIRY, _TIME_BYTES, 0)
        plain &= with_topic_id | np.where(flexible, (rest == 1) & (tags[0] == 0), untagged)
        return cls(column, versions, metadata_at, metadata_sizes, with_topic_id, plain | column.nulls)

    def texts(self, rows: Numbers) -> dict[str, pa.Array]:
        """Return the metadata of these rows, as bytes."""
        nulls = self.column.nulls[rows]
        return {
            "metadata": self.column.cut(self.metadata_at[rows], self.metadata_sizes[rows] * ~nulls, nulls)
        }

    def numbers(self, rows: Numbers) -> dict[str, Made]:
        """Return functions that build the other columns of these rows."""
        column, versions, nulls = self.column, self.versions[rows], self.column.nulls[rows]
        start = column.starts[rows]
        commit_at = self.metadata_at[rows] + self.metadata_sizes[rows]
        after = commit_at + _TIME_BYTES

        def epochs() -> pa.Array:
            read = column.read(">i4", start + _EPOCH_AT)
            return pa.array(np.where(versions >= _WITH_EPOCH, read, -1).astype(np.int32), mask=nulls)

        def times() -> pa.Array:
            ms = column.read(">i8", commit_at)
            none = nulls | (ms < 0) | (ms > MAX_SPARK_MS)
            return pa.array(np.where(none, 0, ms) * 1000, mask=none).cast(pa.timestamp("us", tz="UTC"))

        def moments() -> pa.Array:
            ms = column.read(">i8", commit_at)
            return pa.array(ms, mask=nulls | (ms == NO_TIME))

        def expiries() -> pa.Array:
            return pa.array(np.where(versions == _WITH_EXPIRY, column.read(">i8", after), -1), mask=nulls)

        def topic_ids() -> pa.Array:
            present = self.with_topic_id[rows]
            return column.cut(after + len(_TAG), present * _TOPIC_ID_BYTES, ~present)

        return {
            "committed_offset": lambda: pa.array(column.read(">i8", start + _OFFSET_AT), mask=nulls),
            "leader_epoch": epochs,
            "commit_ms": moments,
            "commit_ts": times,
            "expire_ms": expiries,
            "topic_id": topic_ids,
            "tombstone": lambda: pa.array(nulls),
            "value_version": lambda: pa.array(versions.astype(np.int32), mask=nulls),
        }


def _metadata(column: _Column, versions: Numbers) -> tuple[Numbers, Numbers, Flags]:
    """Position and size of the metadata in each value, and whether version and size are plain."""
    flexible = versions == _FLEXIBLE
    size_at = column.starts + np.where(versions >= _WITH_EPOCH, _EPOCH_AT + 4, _EPOCH_AT)
    first, second = column.data[size_at].astype(np.int64), column.data[size_at + 1].astype(np.int64)
    # The flexible version stores length + 1 (0 is null) as a varint of two bytes if the first has its top
    # bit. A varint with a needless byte is damaged. Metadata that needs three bytes is left to the codec.
    two = first >= 0x80
    odd = two & ((second == 0) | (second >= 0x80))
    compact = np.where(two, first & 0x7F | second << 7, first) - 1
    sizes = np.where(flexible, compact, column.read(">i2", size_at))
    plain = (versions >= 0) & (versions <= _FLEXIBLE) & (sizes >= 0) & ~(flexible & odd)
    return size_at + np.where(flexible, 1 + two, 2), sizes * plain, plain


def _sort(records: pa.RecordBatch) -> tuple[Numbers, dict[str, Made], Sequence[int]]:
    """Rows of plain commits with the functions that build their columns; rows of other possible commits.

    The others are unusual or damaged commits, and records without a type. The position columns are left out.
    """
    keys = _Keys.measured(_Column(records.column("key")))
    values = _Values.measured(_Column(records.column("value")))
    rows = np.flatnonzero(keys.plain & values.plain)
    texts = keys.texts(rows) | values.texts(rows)
    try:
        read = {name: text.cast(pa.string()) for name, text in texts.items()}
    except pa.ArrowInvalid:
        rows = rows[np.all([_are_texts(text) for text in texts.values()], axis=0)]
        texts = keys.texts(rows) | values.texts(rows)
        read = {name: text.cast(pa.string()) for name, text in texts.items()}
    others = (keys.versions == 0) | (keys.versions == 1)
    others[rows] = False
    made: dict[str, Made] = {name: partial(read.get, name) for name in read}
    return rows, made | keys.numbers(rows) | values.numbers(rows), np.flatnonzero(others).tolist()


def _are_texts(column: pa.Array) -> Flags:
    """Whether each row is UTF-8."""
    return np.array([value is None or _is_text(value) for value in column.to_pylist()], dtype=bool)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(records: pa.RecordBatch, rows: Sequence[int]) -> Found:
    return [(row, _decode(records, row)) for row in rows]


def _decode(records: pa.RecordBatch, row: int) -> dict[str, Any] | str:
    """The columns of one commit without its position; the reason if it is unreadable."""
    key_bytes, value_bytes = records.column("key")[row].as_py(), records.column("value")[row].as_py()
    if key_bytes is None:
        return "no key"
    if len(key_bytes) < 2:
        return "the key is shorter than its version"
    try:
        key = decode_key(key_bytes)
    except DecodeError as error:
        return f"damaged offset commit key: {error}"
    try:
        value = decode_value(key, value_bytes)
    except DecodeError as error:
        return f"damaged offset commit value: {error}"
    if not isinstance(key, OffsetCommitKey) or not isinstance(value, OffsetCommitValue | None):
        return f"unknown offset commit value version {getattr(value, 'version', None)}"
    return _commit_columns(key, value)


def _commit_columns(key: OffsetCommitKey, value: OffsetCommitValue | None) -> dict[str, Any]:
    """The columns of one commit. Missing columns are null."""
    columns: dict[str, Any] = {
        "group": key.group,
        "topic": key.topic,
        "partition": key.partition,
        "tombstone": value is None,
        "key_version": key.version,
    }
    if value is None:
        return columns
    ms = value.commit_timestamp_ms
    return columns | {
        "committed_offset": value.offset,
        "leader_epoch": value.leader_epoch,
        "metadata": value.metadata,
        "commit_ms": None if ms == NO_TIME else ms,
        "commit_ts": ms * 1000 if 0 <= ms <= MAX_SPARK_MS else None,
        "expire_ms": value.expire_timestamp_ms,
        "topic_id": value.topic_id,
        "value_version": value.version,
    }
