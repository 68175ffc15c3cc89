"""Exact expectations of the record kernel, in its compiled and uncompiled forms."""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest

from korvet.records import kernel
from korvet.records.batch import BatchError, Entries
from korvet.records.native import native_json
from korvet.spark.records import compiled
from tests.unit.records.forms import (
    BASE_MS,
    FORMS,
    MAX_INT64,
    MIN_INT64,
    Entry,
    Record,
    assert_the_same,
    batch_bytes,
    bulk_strings,
    fetched,
    read_back,
    record_bytes,
    records_bytes,
    records_of,
    split,
    stored,
    varint,
    whole_batch,
    xrange_reply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ONE = [Record(b"k", b"v", BASE_MS)]
# The largest number that Lua replies exactly.
MAX_EXACT = (1 << 53) - 1
every_form = pytest.mark.parametrize("form", FORMS, ids=["installed", "beside cython", "without cython"])


def refusal(run: Callable[[], object]) -> BatchError:
    with pytest.raises(BatchError) as caught:
        run()
    return caught.value


def refused(form: Any, data: bytes) -> BatchError:
    """The error of all ways to read a batch."""
    header = form.parse_batch(data, 0)
    found = refusal(lambda: form.encode_append(data, 0, header, None, True))
    checked = refusal(lambda: form.check_records(data, 0, header, None))
    packed = refusal(lambda: form.check_entries(data, 0, header, None, True))
    assert (found.kind, str(found)) == (checked.kind, str(checked)) == (packed.kind, str(packed))
    return found


@pytest.mark.skipif(
    os.environ.get("KORVET_REQUIRE_EXT", "") in {"", "0"}, reason="a compiled kernel is not required"
)
def test_the_kernels_are_compiled_where_that_is_required() -> None:
    assert kernel.ACCELERATED
    assert compiled.kernel is not None


@every_form
def test_crc32c_check_value(form: Any) -> None:
    assert form.crc32c(b"123456789") == 0xE3069283
    assert form.crc32c_portable(bytearray(b"123456789")) == 0xE3069283
    assert form.crc32c(memoryview(b"")) == 0


@every_form
def test_the_records_for_which_a_batch_is_refused(form: Any) -> None:
    times = [BASE_MS, BASE_MS - 10, BASE_MS + 10, -1, BASE_MS]
    keys = [b"k", b"k", b"k", b"k", None]
    sent = whole_batch([Record(key, b"v", time) for key, time in zip(keys, times, strict=True)])
    header = form.parse_batch(sent, 0)

    def bad(*limits: Any) -> Any:
        return form.find_invalid(sent, 0, header, None, *limits)

    assert bad(BASE_MS, BASE_MS, False, 10) == [(1, BASE_MS - 10, False), (2, BASE_MS + 10, False)]
    assert bad(BASE_MS - 10, BASE_MS + 10, True, 10) == [(4, BASE_MS, True)]
    assert bad(BASE_MS, BASE_MS, True, 2) == [(1, BASE_MS - 10, False), (2, BASE_MS + 10, False)]
    assert bad(MIN_INT64, MAX_INT64, False, 10) == []


@every_form
def test_a_batch_is_placed_by_what_its_crc_leaves_out(form: Any) -> None:
    sent = whole_batch([Record(b"k", b"v", BASE_MS), Record(None, bytes(300), BASE_MS)])
    found = form.place_batch(memoryview(b"junk" + sent)[4:], (1 << 62) + 7, 0x01020304)
    assert form.parse_batch(found, 0).base_offset == (1 << 62) + 7
    assert found[8:16] == sent[8:12] + b"\x01\x02\x03\x04"
    assert found[16:] == sent[16:]
    assert refusal(lambda: form.place_batch(sent[:60], 0, 0)).kind == "corrupt"
    assert refusal(lambda: form.place_batch(b"", 0, 0)).kind == "corrupt"


@every_form
def test_arguments_of_every_kind_of_record(form: Any) -> None:
    records = [
        Record(b"k", b"v", BASE_MS, ((b"a", b"1"), (b"a", None), (b"", b""))),
        Record(None, None, BASE_MS + 1),
        Record(b"", b"", BASE_MS - 1),
    ]
    data = b"junk" + whole_batch(records)
    header = form.parse_batch(data, 4)
    arguments = form.encode_append(data, 4, header, None, True)
    assert bulk_strings(arguments.resp) == [
        bytes((0, 6, 3, 0, 1, 1, 0, 3, 3)),
        b"key", b"k", b"value", b"v", b"ts", b"1700000000000",
        b"header.a", b"1", b"nullheader.a", b"", b"header.", b"",
        b"ts", b"1700000000001",
        b"key", b"", b"value", b"", b"ts", b"1699999999999",
    ]  # fmt: skip
    assert (arguments.argc, arguments.record_count, arguments.payload_bytes) == (21, 3, 5)
    assert (arguments.min_timestamp_ms, arguments.max_timestamp_ms) == (BASE_MS - 1, BASE_MS + 1)
    without = form.encode_append(data, 4, header, None, False)
    assert bulk_strings(without.resp) == [
        bytes((0, 5, 0, 0, 1, 0, 0, 2, 0)),
        b"key", b"k", b"value", b"v", b"header.a", b"1", b"nullheader.a", b"", b"header.", b"",
        b"ts", b"0",
        b"key", b"", b"value", b"",
    ]  # fmt: skip
    assert without.argc == 17


@every_form
def test_our_own_records_get_the_same_arguments(form: Any) -> None:
    records = [Record(b"k", b"v", 5), Record(b"k", None, 7), Record(None, b"", 6), Record(None, None, -1)]
    data = whole_batch(records)
    ours = form.encode_append_records([(r.key, r.value, r.timestamp_ms) for r in records])
    assert_the_same(ours, form.encode_append(data, 0, form.parse_batch(data, 0), None, True))
    with pytest.raises(ValueError, match="at least one"):
        form.encode_append_records([])


@every_form
def test_the_timestamps_are_those_of_the_records_not_of_the_header(form: Any) -> None:
    data = whole_batch(ONE, max_ms=MAX_INT64)
    header = form.parse_batch(data, 0)
    assert header.max_timestamp_ms == MAX_INT64
    assert form.encode_append(data, 0, header, None, True).max_timestamp_ms == BASE_MS


@every_form
def test_header_fields(form: Any) -> None:
    data = whole_batch(ONE, attributes=0b111000, producer=(77, 3, 9), base_offset=-5, leader_epoch=4)
    header = form.parse_batch(data + b"more", 0)
    assert header.size == len(data)
    assert (header.base_offset, header.leader_epoch, header.attributes, header.codec) == (-5, 4, 0b111000, 0)
    assert (header.transactional, header.control, header.log_append_time) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 3, 9)
    assert (header.last_offset_delta, header.record_count) == (0, 1)
    assert header.base_timestamp_ms == header.max_timestamp_ms == BASE_MS


@every_form
@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"", "corrupt", "0 bytes are no whole batch header"),
        (whole_batch(ONE)[:60], "corrupt", "60 bytes are no whole batch header"),
        (whole_batch(ONE)[:-2], "corrupt", "2 of 58 bytes are missing"),
        (whole_batch(ONE)[:-1] + b"x", "corrupt", "CRC"),
        (batch_bytes(b"", 1, length=-1), "corrupt", "length -1"),
        (batch_bytes(b"", 1, length=48), "corrupt", "length 48"),
        (batch_bytes(records_bytes(ONE), 1, length=2**31 - 1), "corrupt", "missing"),
        (bytes(16) + b"\x01" + bytes(80), "unsupported_magic", "magic 1"),
        (bytes(16) + b"\x00" + bytes(10), "unsupported_magic", "magic 0"),
        (bytes(16) + b"\x03" + bytes(80), "unsupported_magic", "magic 3"),
        (whole_batch(ONE, attributes=5), "unsupported_codec", "codec 5"),
        (batch_bytes(records_bytes(ONE), 0), "invalid_record", "record count 0"),
        (batch_bytes(records_bytes(ONE), -1), "invalid_record", "record count -1"),
        (
            batch_bytes(records_bytes(ONE), 1, last_delta=1),
            "invalid_record",
            "last offset delta 1 with 1 records",
        ),
        (batch_bytes(records_bytes(ONE), 2**31 - 1), "invalid_record", "can't hold 2147483647 records"),
        (whole_batch(ONE, producer=(5, 0, -1)), "invalid_record", "sequence -1"),
    ],
)
def test_refused_batches(form: Any, data: bytes, kind: str, says: str) -> None:
    error = refusal(lambda: form.parse_batch(b"123" + data, 3))
    assert error.kind == kind
    assert says in str(error)
    assert "byte 3" in str(error)


PADDING = b"\x00" * 40


@every_form
@pytest.mark.parametrize(
    ("section", "count", "says"),
    [
        (records_bytes(ONE) + b"\0", 1, "1 bytes follow the last of 1 records"),
        (records_bytes(ONE) + PADDING, 2, "record 1 (byte 9 of the records): its length"),
        (varint(200) + PADDING, 1, "its length"),
        (varint(-1) + PADDING, 1, "its length"),
        (varint(0) + PADDING, 1, "its length"),
        (b"\x80\x80\x80\x80\x10" + PADDING, 1, "its length"),
        (b"\xff" * 30, 1, "its length"),
        (varint(12) + b"\0" + b"\xff" * 11, 1, "its timestamp delta"),
        (varint(12) + b"\0" + b"\xff" * 9 + b"\x02\0", 1, "its timestamp delta"),
        (record_bytes(ONE[0], BASE_MS, 1), 1, "its offset delta"),
        (record_bytes(ONE[0], BASE_MS, -1), 1, "its offset delta"),
        (record_bytes(ONE[0], BASE_MS, 0) * 2, 2, "record 1 (byte 9 of the records): its offset delta"),
        (varint(9) + b"\0\0\0" + varint(-2) + bytes(5), 1, "its key length"),
        (varint(9) + b"\0\0\0" + varint(6) + bytes(5), 1, "its key length"),
        (varint(9) + b"\0\0\0\0" + varint(-2) + bytes(4), 1, "its value length"),
        (varint(9) + b"\0\0\0\0" + varint(5) + bytes(4), 1, "its value length"),
        (varint(9) + b"\0\0\0\0\0" + varint(-1) + bytes(3), 1, "its header count"),
        (varint(9) + b"\0\0\0\0\0" + varint(2) + bytes(3), 1, "its header count"),
        (varint(8) + b"\0\0\0\0\0" + varint(1) + varint(-1) + b"\0", 1, "a header without a name"),
        (varint(8) + b"\0\0\0\0\0" + varint(1) + varint(3) + b"\0", 1, "a header without a name"),
        (varint(8) + b"\0\0\0\0\0" + varint(1) + varint(0) + varint(1), 1, "a header value"),
        (varint(8) + b"\0\0\0\0\0" + varint(1) + varint(0) + varint(-2), 1, "a header value"),
        (
            varint(9) + b"\0\0\0\0\0" + varint(1) + varint(0) + varint(0) + b"x",
            1,
            "bytes follow its last header",
        ),
        (varint(7) + b"\0\0\0\0\0\0x", 1, "bytes follow its last header"),
    ],
)
def test_refused_records(form: Any, section: bytes, count: int, says: str) -> None:
    error = refused(form, batch_bytes(section, count))
    assert error.kind == "invalid_record"
    assert says in str(error)


@every_form
@pytest.mark.parametrize(
    ("base_ms", "delta", "fits"),
    [
        (MAX_INT64, 1, False),
        (MIN_INT64, -1, False),
        (1, MAX_INT64, False),
        (-1, MIN_INT64, False),
        (MIN_INT64, MIN_INT64, False),
        (MAX_INT64, 0, True),
        (MIN_INT64, 0, True),
        (MIN_INT64, MAX_INT64, True),
        (MAX_INT64, MIN_INT64, True),
        (0, MIN_INT64, True),
    ],
)
def test_timestamps_stay_within_int64(form: Any, base_ms: int, delta: int, fits: bool) -> None:
    data = batch_bytes(record_bytes(Record(None, b"v", delta), 0, 0), 1, base_ms=base_ms)
    if not fits:
        assert "no int64" in str(refused(form, data))
        return
    arguments = form.encode_append(data, 0, form.parse_batch(data, 0), None, True)
    assert arguments.max_timestamp_ms == arguments.min_timestamp_ms == base_ms + delta
    assert bulk_strings(arguments.resp)[-1] == b"%d" % (base_ms + delta)


@every_form
@pytest.mark.parametrize(
    ("with_timestamps", "transactional", "most"),
    [(True, False, 1947), (False, False, 1948), (True, True, 1945), (False, True, 1946)],
)
def test_an_entry_takes_1950_fields(form: Any, with_timestamps: bool, transactional: bool, most: int) -> None:
    """Key, value, timestamp and two fields of a transaction among them."""
    parts: dict[str, Any] = {"attributes": 16, "producer": (7, 3, 0)} if transactional else {}

    def sent(headers: int) -> bytes:
        return whole_batch(
            [Record(b"", b"", BASE_MS), Record(b"", b"", BASE_MS, ((b"h", b"v"),) * headers)], **parts
        )

    data = sent(most)
    header = form.parse_batch(data, 0)
    first = 2 * (2 + with_timestamps + 2 * transactional)
    arguments = form.encode_append(data, 0, header, None, with_timestamps)
    assert [len(fields) for fields, _ in records_of(arguments)] == [first, 3900]
    assert form.check_entries(data, 0, header, None, with_timestamps).payload_bytes == 2 * most
    data = sent(most + 1)
    header = form.parse_batch(data, 0)
    for encode in (form.encode_append, form.check_entries):
        error = refusal(lambda encode=encode: encode(data, 0, header, None, with_timestamps))
        assert error.kind == "invalid_record"
        assert f"record 1: {most + 1} headers" in str(error)
    # A batch in one entry may have more headers.
    assert form.check_records(data, 0, header, None).keyless_count == 0


@every_form
def test_compressed_records_must_come_decompressed(form: Any) -> None:
    data = batch_bytes(b"whatever", 3, attributes=1)
    header = form.parse_batch(data, 0)
    assert header.codec == 1
    for encode in (form.encode_append, form.check_entries):
        for records, says in ((None, "compressed"), (b"", "can't hold 3"), (bytes(20), "can't hold 3")):
            error = refusal(lambda encode=encode, records=records: encode(data, 0, header, records, True))
            assert says in str(error)


@every_form
def test_a_header_of_another_batch_reads_nothing_beyond_the_data(form: Any) -> None:
    header = form.parse_batch(whole_batch([Record(None, bytes(500), BASE_MS)]), 0)
    for encode in (form.encode_append, form.check_entries):
        for start in (0, -1):
            error = refusal(
                lambda encode=encode, start=start: encode(whole_batch(ONE), start, header, None, True)
            )
            assert error.kind == "corrupt"


@every_form
def test_records_of_a_batch_that_is_kept_as_it_is(form: Any) -> None:
    records = [
        Record(b"k", b"v", 7, ((b"a", b"1"), (b"", None))),
        Record(None, b"", 5),
        Record(b"", None, MIN_INT64),
        Record(None, None, 9),
    ]
    data = b"junk" + batch_bytes(records_bytes(records, base_ms=0), 4, base_ms=0)
    header = form.parse_batch(data, 4)
    summary = form.check_records(data, 4, header, None)
    assert (summary.min_timestamp_ms, summary.max_timestamp_ms, summary.keyless_count) == (MIN_INT64, 9, 2)
    # The names of headers have prefixes in an entry.
    largest = len(b"k" + b"v" + b"header.a" + b"1" + b"nullheader.")
    assert (summary.payload_bytes, summary.largest_bytes) == (4, largest)
    for with_timestamps in (False, True):
        assert form.check_entries(data, 4, header, None, with_timestamps) == summary

    def found(from_index: int, timestamp_ms: int) -> tuple[int, int] | None:
        answer: tuple[int, int] | None = form.find_record(data, 4, header, None, from_index, timestamp_ms)
        return answer

    assert found(0, MIN_INT64) == (0, 7)
    assert found(1, MIN_INT64) == (1, 5)
    assert found(2, MIN_INT64) == (2, MIN_INT64)
    assert found(1, 6) == (3, 9)
    assert found(0, 10) is None
    assert found(4, 0) is None


@every_form
@pytest.mark.parametrize("bias", [0, 1])
def test_entries_that_are_batches_are_given_as_they_are(form: Any, bias: int) -> None:
    ms, count = BASE_MS, 300
    records = [Record(b"k", b"v" * 1000, BASE_MS)] * count
    data = batch_bytes(records_bytes(records, base_ms=BASE_MS), count, base_ms=BASE_MS)
    base = (ms << 10) + 900 - bias
    whole = struct.pack(">q", base) + data[8:]
    last = divmod(base + count - 1 + bias, 1024)
    entries = [
        Entry(ms, 5, [b"key", b"own"]),
        Entry(*last, [b"batch", whole]),
        Entry(last[0] + 1, 0, [b"native", b"x"]),
        Entry(last[0] + 3, 0, [b"batch", b"rubbish"]),
    ]
    found = fetched(form, xrange_reply(entries), bias=bias)
    before, given, behind = split(found.data)
    assert given[1] == whole
    assert (before[0].record_count, behind[0].record_count) == (1, 2)
    assert (found.record_count, found.consumed_entries) == (count + 3, 4)
    assert (found.first_offset, found.last_offset) == ((ms << 10) + 5 - bias, (last[0] + 3 << 10) - bias)
    values = [record.value for _, record in read_back(behind[1])]
    assert all(value is not None and value.startswith(b'{"') for value in values)
    # The result has the first record, however large, and no second one.
    alone = fetched(form, xrange_reply(entries[1:]), bias=bias, max_bytes=1)
    assert (alone.data, alone.first_offset, alone.record_count) == (whole, base, count)
    assert alone.truncated
    assert alone.next_offset == base + count


@every_form
def test_many_tiny_records_outgrow_what_is_reserved(form: Any) -> None:
    """Their arguments are many times as large."""
    records = [Record(b"" if i % 7 == 0 else None, None, BASE_MS) for i in range(2_500)]
    data = whole_batch(records)
    header = form.parse_batch(data, 0)
    start = (BASE_MS << 10) + 1_000
    entries = stored(form.encode_append(data, 0, header, None, True), start)
    assert [record for _, record in read_back(fetched(form, xrange_reply(entries)).data)] == records


@every_form
def test_native_values_outgrow_their_reply(form: Any) -> None:
    fields = [[b"field", bytes(range(256)) * size] for size in (1, 1_000, 1)]
    entries = [Entry(BASE_MS, number, both) for number, both in enumerate(fields)]
    found = read_back(fetched(form, xrange_reply(entries)).data)
    assert [record.value for _, record in found] == [native_json(both) for both in fields]
    assert len(native_json(fields[1])) > len(xrange_reply(entries))


@every_form
def test_large_batches_come_back(form: Any) -> None:
    records = [
        Record(b"%d" % i, bytes([i % 251]) * 30_000, BASE_MS + i, ((b"n" * 300, b"v" * 3000),))
        for i in range(20)
    ]
    data = whole_batch(records)
    entries = stored(form.encode_append(data, 0, form.parse_batch(data, 0), None, True), 1 << 20)
    assert [record for _, record in read_back(fetched(form, xrange_reply(entries)).data)] == records


@every_form
def test_an_empty_reply(form: Any) -> None:
    for reply in (b"*0\r\n", b"*-1\r\n"):
        entries = fetched(form, reply)
        assert (entries.data, entries.record_count, entries.consumed_entries) == (b"", 0, 0)
        assert (entries.first_offset, entries.last_offset, entries.next_offset) == (-1, -1, -1)


@every_form
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"*1\r\n",
        b"$3\r\nabc\r\n",
        b"-ERR x\r\n",
        b"*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$9\r\nb\r\n",
    ],
)
def test_what_is_no_reply(form: Any, reply: bytes) -> None:
    assert refusal(lambda: fetched(form, reply)).kind == "corrupt"
    assert refusal(lambda: form.ReplyScanner().feed(reply, 0, len(reply) + 1)).kind == "corrupt"


@every_form
def test_batches_split_where_the_offset_delta_would_leave_int32(form: Any) -> None:
    step = (1 << 31) - 1
    offsets = [1 << 20, (1 << 20) + step, (1 << 20) + step + 1, (1 << 20) + 2 * step + 5]
    entries = [Entry(o >> 10, o & 1023, [b"value", b"%d" % o]) for o in offsets]
    result = fetched(form, xrange_reply(entries))
    assert [header.last_offset_delta for header, _ in split(result.data)] == [step, 0, 0]
    assert [(o, r.value) for o, r in read_back(result.data)] == [(o, b"%d" % o) for o in offsets]


@every_form
def test_batches_split_where_the_timestamp_delta_would_leave_int64(form: Any) -> None:
    relative = [-MAX_INT64, MAX_INT64 - 1, 0]
    entries = [Entry(1, i, [b"ts", b"%d" % ts]) for i, ts in enumerate(relative)]
    result = fetched(form, xrange_reply(entries))
    assert [r.timestamp_ms for _, r in read_back(result.data)] == [ts + 1 for ts in relative]
    assert len(split(result.data)) == 2


@every_form
def test_log_append_time_is_the_time_of_each_entry(form: Any) -> None:
    entries = [
        Entry(5, 0, [b"value", b"a"]),
        Entry(5, 1, [b"value", b"b", b"ts", b"-3"]),
        Entry(6, 0, [b"key", b""]),
    ]
    result = fetched(form, xrange_reply(entries), log_append_time=True)
    headers = [header for header, _ in split(result.data)]
    assert [
        (h.log_append_time, h.base_timestamp_ms, h.max_timestamp_ms, h.record_count) for h in headers
    ] == [
        (1, 5, 5, 2),
        (1, 6, 6, 1),
    ]
    assert [r.timestamp_ms for _, r in read_back(result.data)] == [5, 5, 6]
    assert not split(fetched(form, xrange_reply(entries)).data)[0][0].log_append_time


@every_form
def test_max_bytes_leaves_at_least_one_record(form: Any) -> None:
    entries = [Entry(9, i, [b"value", bytes(100)]) for i in range(10)]
    reply = xrange_reply(entries)
    whole = len(fetched(form, reply).data)
    one = fetched(form, reply, max_bytes=0)
    assert (one.record_count, one.consumed_entries, one.truncated, one.next_offset) == (
        1,
        1,
        True,
        9 << 10 | 1,
    )
    exact = fetched(form, reply, max_bytes=whole)
    assert (exact.record_count, exact.truncated) == (10, False)
    less = fetched(form, reply, max_bytes=whole - 1)
    assert (less.record_count, less.truncated, less.last_offset) == (9, True, 9 << 10 | 8)
    assert len(less.data) <= whole - 1


@every_form
def test_unaddressable_entries_are_counted_and_passed(form: Any) -> None:
    odd = [b"field", b"value"]
    entries = [Entry(7, 1024, odd), Entry(8, 1023, [b"value", b"v"]), Entry(8, 5000, odd)]
    result = fetched(form, xrange_reply(entries), bias=1)
    assert (result.unaddressable, result.consumed_entries, result.record_count) == (2, 3, 1)
    assert result.first_offset == result.last_offset == (8 << 10 | 1023) - 1
    assert result.next_offset == (9 << 10) - 1
    far = [Entry(1 << 53, 0, odd), Entry((1 << 64) - 1, (1 << 64) - 1, odd)]
    result = fetched(form, xrange_reply(far))
    assert (result.unaddressable, result.record_count, result.next_offset) == (2, 0, MAX_INT64)
    last = fetched(form, xrange_reply([Entry((1 << 53) - 1, 1023, [b"value", b""])]))
    assert (last.last_offset, last.next_offset) == (MAX_INT64, MAX_INT64)


@every_form
@pytest.mark.parametrize(
    "fields",
    [
        [b"field", b"value"],
        [b"value", b"a", b"value", b"b"],
        [b"key", b"a", b"key", b"b"],
        [b"ts", b"1", b"ts", b"1"],
        [b"value", b"v", b"ts", b""],
        [b"value", b"v", b"ts", b"1x"],
        [b"value", b"v", b"ts", b"-"],
        [b"value", b"v", b"ts", b"9223372036854775807"],
        [b"value", b"v", b"ts", b"99999999999999999999999"],
        [b"nullheader.a", b"not empty"],
        [b"Key", b"k"],
        [b"header", b"v"],
        [b"value", b"v", b"\xff", b"\xfe"],
    ],
)
def test_entries_of_native_applications(form: Any, fields: list[bytes]) -> None:
    entries = fetched(form, xrange_reply([Entry(BASE_MS, 3, fields)]))
    assert read_back(entries.data) == [(BASE_MS << 10 | 3, Record(None, native_json(fields), BASE_MS))]


@every_form
def test_the_native_callback_may_use_the_kernel_and_return_nothing(form: Any) -> None:
    inner = xrange_reply([Entry(1, 0, [b"x", b"inner"])])

    def native(fields: list[bytes]) -> bytes:
        return b"" if fields[1] == b"inner" else bytes(fetched(form, inner, native=native).data)

    reply = xrange_reply([Entry(1, i, [b"x", b"outer"]) for i in range(3)])
    result = fetched(form, reply, native=native)
    values = [record.value for _, record in read_back(result.data)]
    assert len(set(values)) == 1
    assert [record.value for _, record in read_back(values[0] or b"")] == [b""]


@every_form
def test_an_exception_of_the_native_callback_passes_and_leaves_the_kernel_usable(form: Any) -> None:
    def native(fields: list[bytes]) -> bytes:
        raise KeyError(fields[0])

    reply = xrange_reply([Entry(1, 0, [b"x", b"y"])])
    with pytest.raises(KeyError):
        fetched(form, reply, native=native)
    assert fetched(form, reply).record_count == 1


@every_form
def test_the_reply_may_lie_inside_a_larger_buffer(form: Any) -> None:
    reply = xrange_reply([Entry(1, 0, [b"value", b"v"])])
    buffer = bytearray(b"abc" + reply + b"def")
    options = {
        "bias": 0,
        "max_bytes": 1000,
        "leader_epoch": 0,
        "log_append_time": False,
        "native": native_json,
    }
    result = form.entries_to_batches(memoryview(buffer), 3, 3 + len(reply), **options)
    assert result == fetched(form, reply)
    scanner = form.ReplyScanner()
    assert scanner.feed(buffer, 3, 10) == -1
    assert scanner.feed(buffer, 3, len(buffer)) == 3 + len(reply)


@every_form
def test_damage_to_any_byte_of_a_stored_batch_is_noticed(form: Any) -> None:
    data = form.place_batch(whole_batch([Record(b"k", b"value", BASE_MS)] * 3), (7 << 10) + 1, 5)
    records = [Entry(6, 0, [b"value", b"v"])]

    def read(value: bytes, before: Sequence[Entry] = ()) -> Entries:
        found: Entries = fetched(form, xrange_reply([*before, Entry(7, 3, [b"batch", value])]))
        return found

    assert (read(data).record_count, read(data).damaged_offset) == (3, -1)
    # Only the leader epoch, which brokers set, cannot be checked.
    places = [place for place in range(len(data)) if not 12 <= place < 16]
    wrong = [
        data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
        for place in places
        for bit in range(8)
    ]
    for value in (*wrong, data[:-1], data + b"x", data[:40]):
        for before in ((), records):
            found = read(value, before)
            assert (found.record_count, found.consumed_entries) == (len(before), len(before))
            assert found.damaged_offset == (7 << 10) + 3


@every_form
@pytest.mark.parametrize(
    "value", [b"", b"x", b"\0" * 17, b"\0" * 99, b"\2" * 99, b"text " * 50, bytes(range(256)), b"\xff" * 80]
)
def test_what_an_application_writes_is_no_damaged_batch(form: Any, value: bytes) -> None:
    found = fetched(form, xrange_reply([Entry(7, 3, [b"batch", value])]))
    assert (found.record_count, found.damaged_offset) == (1, -1)


@every_form
def test_the_end_of_a_reply_is_told_by_its_last_entry(form: Any) -> None:
    whole = [Entry(7, 1, [b"value", b"v"]), Entry(7, 3, [b"key", b"k", b"value", bytes(1900)])]
    large = Entry(8, 0, [b"value", bytes(2048)])
    imitating = Entry(8, 0, [b"value", b"*2\r\n$3\r\n5-1\r\n*1\r\n$1\r\na"])
    assert form.predict_end_offset(xrange_reply(whole), 0) == (7 << 10) + 4
    assert form.predict_end_offset(xrange_reply(whole), 1) == (7 << 10) + 3
    assert form.predict_end_offset(xrange_reply([*whole, large]), 0) == -1
    assert form.predict_end_offset(xrange_reply([*whole, imitating]), 0) == (5 << 10) + 2
    assert [form.predict_end_offset(reply, 0) for reply in (b"", b"*0\r\n", b"*1\r\n", b"-ERR x\r\n")] == [
        -1
    ] * 4


@every_form
def test_the_scanner_forgets_on_reset(form: Any) -> None:
    scanner = form.ReplyScanner()
    assert scanner.feed(b"*2\r\n:1\r\n", 0, 8) == -1
    scanner.reset()
    assert scanner.feed(b":1\r\n", 0, 4) == 4


@every_form
@pytest.mark.parametrize(
    "noise", [b"x", b"$x\r\n", b"$1\n", b"$-x\r\n", b"*1234567890123456789\r\n", b"$\r\n"]
)
def test_the_scanner_names_noise(form: Any, noise: bytes) -> None:
    assert refusal(lambda: form.ReplyScanner().feed(noise, 0, len(noise))).kind == "corrupt"


def test_threads_do_not_write_into_each_others_bytes() -> None:
    records = [[Record(b"%d" % n, bytes([n]) * 5000, BASE_MS + i) for i in range(20)] for n in range(4)]
    wrong: list[int] = []

    def work(n: int) -> None:
        data = whole_batch(records[n])
        for _ in range(20):
            entries = stored(kernel.encode_append(data, 0, kernel.parse_batch(data, 0), None, True), 1024)
            reply = xrange_reply(
                [entry._replace(fields=[*entry.fields, b"other", b"x"]) for entry in entries]
            )
            result = fetched(kernel, reply, native=lambda fields: fields[1])
            if [record.value for _, record in read_back(result.data)] != [b"%d" % n] * 20:
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


@every_form
def test_commands_are_packed(form: Any) -> None:
    assert form.pack_command("GET", b"k\r\n", "é") == b"*3\r\n$3\r\nGET\r\n$3\r\nk\r\n\r\n$2\r\n\xc3\xa9\r\n"
    assert form.pack_arguments() == b""
    assert form.pack_arguments(b"", "", 0) == b"$0\r\n\r\n$0\r\n\r\n$1\r\n0\r\n"
    numbers = MIN_INT64, MAX_INT64, MIN_INT64 - 1, MAX_INT64 + 1
    assert bulk_strings(form.pack_arguments(*numbers)) == [b"%d" % number for number in numbers]
    large = b"x" * 300_000
    assert form.pack_command("SET", large) == b"*2\r\n$3\r\nSET\r\n$300000\r\n" + large + b"\r\n"


@every_form
@pytest.mark.parametrize(
    ("reply", "integers"),
    [
        (b"*0\r\n", ()),
        (b"*1\r\n:0\r\n", (0,)),
        (b"*1\r\n:-1\r\n", (-1,)),
        (
            b"*7\r\n:20\r\n:0\r\n:1700000000000\r\n:-31\r\n:0\r\n:22\r\n:999\r\n",
            (20, 0, 1_700_000_000_000, -31, 0, 22, 999),
        ),
        (b"*2\r\n:%d\r\n:%d\r\n" % (MAX_EXACT, -MAX_EXACT), (MAX_EXACT, -MAX_EXACT)),
    ],
)
def test_the_integers_of_a_reply_are_read(form: Any, reply: bytes, integers: tuple[int, ...]) -> None:
    assert form.integer_array(reply) == integers
    assert form.integer_array(memoryview(b"x" + reply)[1:]) == integers


@every_form
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"*",
        b"*1",
        b"*1\r\n",
        b"*-1\r\n",
        b"*-2\r\n",
        b"*x\r\n",
        b":1\r\n",
        b"$1\r\n1\r\n",
        b"-SESSION another connection appends\r\n",
        b"*2\r\n:1\r\n",
        b"*2\r\n:1\r\n:2",
        b"*2\r\n:1\r\n:2\r",
        b"*1\r\n:1\r\n:2\r\n",
        b"*2\r\n:1\r\n$1\r\n2\r\n",
        b"*2\r\n:1\r\n*1\r\n:2\r\n",
        b"*2\r\n:1\r\n+2\r\n",
        b"*1\r\n:\r\n",
        b"*1\r\n:-\r\n",
        b"*1\r\n:1x\r\n",
        b"*1\r\n:12345678901234567890\r\n",
        b"*4611686018427387904\r\n:1\r\n",
    ],
)
def test_another_reply_gives_no_integers(form: Any, reply: bytes) -> None:
    assert form.integer_array(reply) is None
