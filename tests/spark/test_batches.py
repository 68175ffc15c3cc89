"""Topics with storage.layout=batch, read from Redis."""

from __future__ import annotations

import itertools
import json
import struct
from typing import TYPE_CHECKING, Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from korvet.offsets.packing import entry_id, pack
from korvet.records.compression import compress
from korvet.spark.records.arrow import record_batch
from korvet.spark.records.batches import batch_records, read_batch, read_records
from korvet.spark.records.columns import MAX_SPARK_MS, MIN_SPARK_MS, Origin
from korvet.spark.records.entries import columns_of
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.views import record_lag
from korvet.spark.versions import arrow_schema
from tests.api.batches import GZIP, LZ4, SNAPPY, ZSTD, batch
from tests.spark.direct import schema_of
from tests.spark.forms import FORMS, INSTALLED, UNCOMPILED, using
from tests.spark.test_replies import reply_of, strings_of
from tests.spark.test_source import at, rows
from tests.unit.records import forms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from korvet.spark.records.page import Entry
    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

MS = 1_700_000_000_000
BASE = pack(MS, 1000)


def stored(data: bytes, base_offset: int) -> bytes:
    return struct.pack(">q", base_offset) + data[8:]


def append_timed(data: bytes, newest_ms: int) -> bytes:
    checked = bytes([0, data[22] | 8]) + data[23:35] + struct.pack(">q", newest_ms) + data[43:]
    return data[:17] + struct.pack(">I", crc32c(checked)) + checked


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_records_of_a_batch(codec: int) -> None:
    records = [
        forms.Record(b"k" * 200, b"", 5, (("é".encode(), b"x"), (b"", None))),
        forms.Record(None, None, -7),
        forms.Record(b"", b"v" * 100_000, 2**40),
    ]
    section = forms.records_bytes(records, base_ms=0)
    plain = forms.batch_bytes(section, 3, base_ms=0)
    packed = compress(codec, section)
    checked = struct.pack(">h", codec) + plain[23:61] + packed
    data = struct.pack(">qiibI", BASE, 9 + len(checked), 0, 2, crc32c(checked)) + checked
    found = read_batch([b"batch", data], BASE + 2)
    assert found is not None
    assert found.rows == [
        (b"k" * 200, b"", BASE, 5, [("é", b"x"), ("", None)]),
        (None, None, BASE + 1, -7, None),
        (b"", b"v" * 100_000, BASE + 2, 2**40, None),
    ]
    assert (found.base_offset, found.log_append_time) == (BASE, False)
    appended = read_batch([b"batch", append_timed(data, 99)], BASE + 2)
    assert appended is not None
    assert appended.log_append_time
    assert [row[3] for row in appended.rows] == [99] * 3


@pytest.mark.parametrize("codec", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_what_is_no_batch(codec: int) -> None:
    data = stored(
        batch([(b"a", b"1"), (b"b", b"2")], attributes=codec, compress=lambda p: compress(codec, p)), 10
    )
    assert batch_records([b"batch", data], 11) == 2
    for fields, last in [
        ([b"batch", data], 12),
        ([b"batch", data, b"more", b"1"], 11),
        ([b"value", data], 11),
        ([b"batch", data + b"x"], 11),
        ([b"batch", data[:60]], 11),
        ([], 11),
    ]:
        assert read_batch(fields, last) is None
        assert batch_records(fields, last) is None
    # None of these makes a read fail.
    for cut in range(61, len(data)):
        short = data[:8] + struct.pack(">i", cut - 12) + data[12:cut]
        assert read_batch([b"batch", short], 11) is None
        read_batch([b"batch", data[:cut] + bytes([data[cut] ^ 255]) + data[cut + 1 :]], 11)


@pytest.mark.short
def test_batches_and_native_entries(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 2, {"storage.layout": "batch"})
    offset = BASE
    for number, codec in enumerate((0, GZIP, SNAPPY, LZ4, ZSTD)):
        pairs = [(b"k", b"%d-%d" % (number, index)) for index in range(10)]
        data = batch(
            pairs, attributes=codec, compress=lambda p, c=codec: compress(c, p), timestamp_ms=MS + number
        )
        if number == 4:
            data = append_timed(data, MS + 9)
        keyspace.add("t", 0, entry_id(offset + 9), b"batch", stored(data, offset))
        offset += 10
    keyspace.add("t", 0, entry_id(offset), b"celsius", b"21")
    keyspace.add("t", 0, entry_id(offset + 1), b"batch", b"no batch")
    got = rows(keyspace.read(spark, "t"))
    assert [row["offset"] for row in got] == [*range(BASE, BASE + 52)]
    assert [row["value"] for row in got[:50]] == [b"%d-%d" % divmod(index, 10) for index in range(50)]
    assert [json.loads(row["value"]) for row in got[50:]] == [{"celsius": "21"}, {"batch": "no batch"}]
    assert [row["timestamp"] for row in got[:50:10]] == [at(MS + ms) for ms in (0, 1, 2, 3, 9)]
    assert [row["timestampType"] for row in got] == [0] * 40 + [1] * 10 + [0] * 2
    # From inside a batch to inside another one, to its end, and within one batch.
    for first, last in ((3, 37), (10, 20), (12, 14), (49, 51), (0, 1)):
        limits = [json.dumps({"t": {"0": BASE + place}}) for place in (first, last)]
        part = keyspace.read(spark, "t", startingOffsets=limits[0], endingOffsets=limits[1])
        assert [row["offset"] for row in rows(part)] == [*range(BASE + first, BASE + last)]


@pytest.mark.parametrize("assignment", ["clock", "dense"])
def test_deleted_records_of_a_batch_are_not_read(
    spark: SparkSession, keyspace: Keyspace, assignment: str
) -> None:
    keyspace.topic("t", 1, {"storage.layout": "batch", "offset.assignment": assignment})
    bias = int(assignment == "dense")
    base = 0 if bias else BASE
    for offset in (base, base + 70):
        data = batch([(b"k", b"v")] * 70, timestamp_ms=MS)
        keyspace.add("t", 0, entry_id(offset + 69, bias), b"batch", stored(data, offset))
    # Like after DeleteRecords: all of an entry's records remain, or none.
    log = [0.0] * 14
    log[2] = base + 30
    keyspace.client.hset("{korvet:t:0}:meta", "log", struct.pack(">14d", *log))
    for starting in ("earliest", json.dumps({"t": {"0": base}}), json.dumps({"t": {"0": base + 29}})):
        got = rows(keyspace.read(spark, "t", startingOffsets=starting, failOnDataLoss="false"))
        assert [row["offset"] for row in got] == [*range(base + 30, base + 140)]
    with pytest.raises(Exception, match="begins at offset"):
        rows(keyspace.read(spark, "t", startingOffsets=json.dumps({"t": {"0": base}})))
    reader = RedisReader(Address(keyspace.url))
    lag = record_lag_of(spark, reader, base)
    assert lag == 110


def record_lag_of(spark: SparkSession, reader: RedisReader, committed: int) -> int:
    current = spark.createDataFrame(
        [("g", "t", 0, committed, MS)],
        "group string, topic string, partition int, committed_offset long, commit_ms long",
    )
    records = reader.records(spark, {"t": {0: committed}})
    (row,) = record_lag(current, records, MS).collect()
    lag: int = row["record_lag"]
    return lag


def test_a_damaged_batch_is_no_record(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t", 1, {"storage.layout": "batch"})
    data = batch([(b"k", b"v")] * 10, timestamp_ms=MS)
    for number in range(3):
        offset = BASE + 10 * number
        whole = stored(data, offset)
        keyspace.add("t", 0, entry_id(offset + 9), b"batch", whole[:-1] + b"?" if number == 1 else whole)
    with pytest.raises(Exception, match=f"entry {entry_id(BASE + 19)} is a damaged record batch"):
        rows(keyspace.read(spark, "t"))
    got = rows(keyspace.read(spark, "t", failOnDataLoss="false"))
    assert [row["offset"] for row in got] == [*range(BASE, BASE + 10), *range(BASE + 20, BASE + 30)]


# Often several equal ones in a row.
RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=200),
        st.integers(-(2**62), 2**62) | st.integers(MS, MS + 5000),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=5,
).flatmap(
    lambda records: st.sampled_from([1, 7]).map(lambda times: [r for r in records for _ in range(times)])
)


@pytest.mark.parametrize("form", FORMS)
@given(st.lists(RECORDS, min_size=1, max_size=4), st.sampled_from([0, GZIP, ZSTD]), st.data())
def test_many_batches_at_once_are_what_each_is(
    form: Any,
    batches: list[list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]],
    codec: int,
    data: st.DataObject,
) -> None:
    """Also damaged batches, which the kernel leaves to the reader of single batches."""
    entries, last_offsets, offset, damaged = [], [], 100, False
    for records in batches:
        made = [
            forms.Record(key, value, ms, tuple((name.encode(), header) for name, header in headers))
            for key, value, ms, headers in records
        ]
        section = bytearray(forms.records_bytes(made, base_ms=0))
        if data.draw(st.integers(0, 9)) == 0:
            damaged = True
            section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
        plain = forms.batch_bytes(bytes(section), len(made), base_ms=0)
        checked = struct.pack(">h", codec | data.draw(st.sampled_from([0, 8, 16]))) + plain[23:61]
        checked += compress(codec, bytes(section))
        whole = struct.pack(">qiibI", offset, 9 + len(checked), 0, 2, crc32c(checked)) + checked
        offset += len(made)
        entries.append([b"batch", whole])
        last_offsets.append(offset - 1)
    with using(form):
        found = read_records([memoryview(entry[1]) for entry in entries], range(101, offset))
    singles = [read_batch(entry, last) for entry, last in zip(entries, last_offsets, strict=True)]
    if found is None:
        times_ms = [record[2] for records in batches for record in records]
        assert form is None or damaged or not MIN_SPARK_MS <= min(times_ms) <= max(times_ms) <= MAX_SPARK_MS
        return
    expected = [(*row, s.log_append_time, s.producer) for s in singles if s for row in s.rows if row[2] > 100]
    rows = found.rows
    names, values = strings_of(rows.header_names), strings_of(rows.header_values)
    pairs = [((name or b"").decode(), value) for name, value in zip(names, values, strict=True)]
    ends = rows.header_ends[: rows.count + 1].tolist()
    got = zip(
        strings_of(rows.keys),
        strings_of(rows.values),
        rows.offsets[: rows.count].tolist(),
        rows.timestamps_ms[: rows.count].tolist(),
        [pairs[begin:end] or None for begin, end in itertools.pairwise(ends)],
        found.log_append_times.tolist(),
        rows.producers[: rows.count].tolist(),
        strict=True,
    )
    assert list(got) == expected


@pytest.mark.parametrize("form", FORMS)
def test_long_records_whose_lengths_differ_late(form: Any) -> None:
    if form is None:
        pytest.skip("no compiled kernel")
    sizes = [1 << 12] * 6 + [1 << 13, 1 << 12]
    records = [forms.Record(None, bytes(size), 0) for size in sizes]
    plain = forms.batch_bytes(forms.records_bytes(records, base_ms=0), len(records), base_ms=0)
    with using(form):
        found = read_records([memoryview(stored(plain, 0))], range(len(records)))
    assert found is not None
    assert [len(value or b"") for value in strings_of(found.rows.values)] == sizes


@given(st.lists(st.integers(0, 255), max_size=60), st.integers(0, 6), st.data())
def test_damaged_records_do_no_harm(noise: list[int], count: int, data: st.DataObject) -> None:
    """No byte after the end is read (the uncompiled form would raise). Both forms give the same result."""
    made = [forms.Record(b"k" * 3, b"v", MS, ((b"a", b"1"), (b"b", None)))] * 3
    section = bytearray(forms.records_bytes(made, base_ms=MS))
    at = data.draw(st.integers(0, len(section)))
    section[at : at + data.draw(st.integers(0, 9))] = bytes(noise)
    found = []
    for form in (UNCOMPILED, INSTALLED or UNCOMPILED):
        rows = form.Rows(4, len(section), len(section), True)
        if rows.take_records(bytes(section), count, BASE, MS, None, -1, BASE, BASE + 4):
            strings = (rows.keys, rows.values, rows.header_names, rows.header_values)
            times_ms = rows.timestamps_ms[: rows.count].tolist()
            found.append((times_ms, [strings_of(one) for one in strings]))
        else:
            found.append(None)
    assert found[0] == found[1]


@pytest.mark.parametrize("form", FORMS)
def test_batches_in_pages_are_what_they_are_alone(form: Any) -> None:
    """With markers and entries without an offset. The kernel refuses a page with another kind of entry."""
    entries: list[Entry] = []
    offset = BASE
    for codec in (0, GZIP, SNAPPY, LZ4, ZSTD):
        pairs = [(b"k", b"%d-%d" % (codec, index)) for index in range(10)]
        data = batch(
            pairs,
            attributes=codec | 16,
            compress=lambda p, c=codec: compress(c, p),
            producer=(5, 0, 0),
        )
        entries.append((entry_id(offset + 9).encode(), [b"batch", stored(data, offset)]))
        offset += 10
    ends = batch([(b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=48, producer=(5, 0, 0))
    entries.append((entry_id(offset).encode(), [b"batch", stored(ends, offset)]))
    entries.append((b"%d-5000" % (MS + 1), [b"batch", ends]))
    origin, schema = Origin("t", 0, 0, 0), arrow_schema(schema_of())
    limits = BASE + 3, BASE + 48
    for more in ([], [(b"%d-0" % (MS + 2), [b"batch", b"none"])], [(b"%d-1" % (MS + 2), [b"key", b"k"])]):
        every = [*entries, *more]
        with using(form):
            page = reply_of(every)
            found = columns_of(page, origin, *limits)
        assert page.last_id == every[-1][0]
        expected = columns_of(every, origin, *limits)
        assert record_batch(found, origin, schema).equals(record_batch(expected, origin, schema))
        assert found.producers == expected.producers
