"""The record kernel compared with its uncompiled form and two clients' codecs, and with damaged input."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from korvet.records import kernel
from korvet.records.batch import AppendForm, BatchError
from korvet.records.compression import compress, decompress
from korvet.records.framing import unpack
from korvet.records.native import native_json
from korvet.redis.calls import parse_reply
from tests.unit.records.forms import (
    BASE_MS,
    FORMS,
    LARGEST_IS_WITHIN_BYTES,
    MAX_INT64,
    MIN_INT64,
    Entry,
    Record,
    batch_bytes,
    bulk,
    bulk_strings,
    fetched,
    read_back,
    records_bytes,
    split,
    stored,
    whole_batch,
    xrange_reply,
)

payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=120, max_size=300)
timestamps = st.integers(-1, 1 << 42) | st.integers(BASE_MS - 1000, BASE_MS + 1000)
headers = st.lists(st.tuples(st.binary(max_size=12), payloads), max_size=5).map(tuple)
text_headers = st.lists(st.tuples(st.text(max_size=8).map(str.encode), payloads), max_size=5).map(tuple)
records_of = st.builds(Record, payloads, payloads, timestamps, headers)
text_records = st.builds(Record, payloads, payloads, timestamps, text_headers)
batches = st.lists(records_of, min_size=1, max_size=8)
text_batches = st.lists(text_records, min_size=1, max_size=8)
offsets = st.integers(1, 1 << 52) | st.integers(BASE_MS << 10, (BASE_MS << 10) + 5000)

our_names = st.sampled_from(
    [b"key", b"value", b"ts", b"header.", b"header.a", b"nullheader.", b"nullheader.a"]
)
any_names = our_names | st.binary(max_size=12)
numbers = st.integers(-(1 << 70), 1 << 70).map(lambda number: b"%d" % number)
odd_numbers = st.sampled_from(
    [b"", b"-", b"--1", b"+1", b" 1", b"1.0", b"9" * 19, b"-9223372036854775808", b"0x1"]
)
field_values = st.binary(max_size=200) | numbers | odd_numbers | st.just(b"")
field_lists = st.lists(st.tuples(any_names, field_values), max_size=6).map(
    lambda pairs: [f for pair in pairs for f in pair]
)
milliseconds = st.integers(0, 1 << 42) | st.integers((1 << 53) - 3, (1 << 64) - 1)
sequences = st.integers(0, 3) | st.integers(1020, 1030) | st.integers(0, (1 << 64) - 1)


def unique_entries(rows: list[tuple[int, int, list[bytes]]]) -> list[Entry]:
    by_id = {(ms, sequence): Entry(ms, sequence, fields) for ms, sequence, fields in rows if ms or sequence}
    return [by_id[entry_id] for entry_id in sorted(by_id)]


streams = st.lists(st.tuples(milliseconds, sequences, field_lists), max_size=8).map(unique_entries)


def outcome(run: Any) -> Any:
    try:
        return run()
    except BatchError as error:
        return error.kind, str(error)


def append_outcome(form: Any, data: bytes, records: bytes | None, with_timestamps: bool) -> Any:
    def run() -> Any:
        header = form.parse_batch(data, 0)
        return header, form.encode_append(data, 0, header, records, with_timestamps)

    found = outcome(run)
    # A batch that is stored unchanged passes the same checks, and so does one for the server module.
    checked = outcome(lambda: form.check_records(data, 0, form.parse_batch(data, 0), records))
    packed = outcome(lambda: form.check_entries(data, 0, form.parse_batch(data, 0), records, with_timestamps))
    assert packed == checked
    if isinstance(found[1], str):
        assert checked == found
        return found
    arguments = found[1]
    for name in ("max_timestamp_ms", "min_timestamp_ms", "keyless_count", "payload_bytes"):
        assert getattr(checked, name) == getattr(arguments, name)
    # The smaller one lacks the names of the fields key, value and ts, and the timestamp.
    assert 0 <= arguments.largest_bytes - checked.largest_bytes <= LARGEST_IS_WITHIN_BYTES
    return found


def same_in_all_forms(results: list[Any]) -> Any:
    assert all(result == results[0] for result in results[1:]), results
    return results[0]


@given(batches, offsets, st.booleans())
def test_a_batch_comes_back_as_it_went_in(records: list[Record], offset: int, with_timestamps: bool) -> None:
    data = whole_batch(records)
    header, arguments = same_in_all_forms(
        [append_outcome(form, data, None, with_timestamps) for form in FORMS]
    )
    assert header.size == len(data)
    assert arguments.max_timestamp_ms == max(record.timestamp_ms for record in records)
    assert arguments.min_timestamp_ms == min(record.timestamp_ms for record in records)
    entries = stored(arguments, offset)
    reply = xrange_reply(entries)
    result = same_in_all_forms([fetched(form, reply) for form in FORMS])
    expected = (
        records
        if with_timestamps
        else [r._replace(timestamp_ms=e.ms) for r, e in zip(records, entries, strict=True)]
    )
    assert read_back(result.data) == [(offset + i, record) for i, record in enumerate(expected)]
    assert (result.first_offset, result.last_offset) == (offset, offset + len(records) - 1)
    assert result.next_offset == offset + len(records)
    assert (result.record_count, result.consumed_entries, result.unaddressable) == (
        len(records),
        len(records),
        0,
    )


@given(batches, st.sampled_from([1, 1, 200]), st.booleans(), st.booleans())
def test_what_is_said_of_a_batch_is_true(
    some: list[Record], times: int, with_timestamps: bool, transactional: bool
) -> None:
    records = some * times
    parts: dict[str, Any] = {"attributes": 16, "producer": (1 << 40, 3, 9)} if transactional else {}
    data = whole_batch(records, **parts)
    _, arguments = same_in_all_forms([append_outcome(form, data, None, with_timestamps) for form in FORMS])
    summary = same_in_all_forms(
        [form.check_entries(data, 0, form.parse_batch(data, 0), None, with_timestamps) for form in FORMS]
    )
    sizes = [
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name) + len(value or b"") for name, value in record.headers)
        for record in records
    ]
    assert arguments.payload_bytes == summary.payload_bytes == sum(sizes)
    assert arguments.keyless_count == summary.keyless_count == sum(r.key is None for r in records)
    assert (arguments.form, arguments.batch, arguments.append_ms) == (AppendForm.RECORDS, b"", -1)
    assert arguments.entry_count == arguments.record_count == len(records)
    assert arguments.pieces == (arguments.resp,)
    assert arguments.size_bytes == len(arguments.resp)
    entries = stored(arguments, BASE_MS << 10)
    assert len(bulk_strings(arguments.resp)) == arguments.argc
    largest = max(sum(map(len, entry.fields)) for entry in entries)
    assert max(sizes) <= summary.largest_bytes <= largest
    assert abs(arguments.largest_bytes - largest) <= LARGEST_IS_WITHIN_BYTES


@given(text_batches, offsets)
def test_clients_read_what_is_fetched(records: list[Record], offset: int) -> None:
    data = whole_batch(records)
    entries = stored(kernel.encode_append(data, 0, kernel.parse_batch(data, 0), None, True), offset)
    for _, one in split(fetched(kernel, xrange_reply(entries)).data):
        for batch in (AiokafkaBatch(one), KafkaPythonBatch(one)):
            assert batch.validate_crc()
            seen = [
                (r.offset, r.key, r.value, r.timestamp, [(n.encode(), v) for n, v in r.headers])
                for r in batch
            ]
            assert seen == [
                (o, r.key, r.value, r.timestamp_ms, list(r.headers))
                for o, r in read_back(one)
            ]  # fmt: skip


@given(
    text_batches.map(lambda rs: [r._replace(timestamp_ms=max(r.timestamp_ms, 0)) for r in rs]),
    st.sampled_from([0, 1, 2, 3, 4]),
)
def test_what_clients_write_is_taken(records: list[Record], codec: int) -> None:
    theirs = KafkaPythonBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    others = AiokafkaBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for i, record in enumerate(records):
        named = [(name.decode(), value) for name, value in record.headers]
        theirs.append(i, record.timestamp_ms, record.key, record.value, named)
        others.append(i, record.timestamp_ms, record.key, record.value, named)
    plain = whole_batch(records)
    expected = kernel.encode_append(plain, 0, kernel.parse_batch(plain, 0), None, True)
    for data in (bytes(theirs.build()), bytes(others.build())):
        header = kernel.parse_batch(data, 0)
        section = decompress(header.codec, data[61 : header.size], 1 << 20) if header.codec else None
        assert kernel.encode_append(data, 0, header, section, True) == expected


@given(batches, st.integers(1, 4), st.booleans())
def test_compressed_records_give_the_same_arguments(
    records: list[Record], codec: int, with_timestamps: bool
) -> None:
    section = records_bytes(records)
    data = batch_bytes(
        compress(codec, section), len(records), base_ms=records[0].timestamp_ms, attributes=codec
    )
    plain = whole_batch(records)
    unpacked = decompress(codec, data[61:], len(section))
    assert unpacked == section
    compressed = same_in_all_forms([append_outcome(form, data, unpacked, with_timestamps) for form in FORMS])
    assert compressed[1] == append_outcome(kernel, plain, None, with_timestamps)[1]


@given(batches, st.data(), st.booleans())
def test_damage_is_refused_or_harmless(records: list[Record], data: st.DataObject, mend_crc: bool) -> None:
    good = bytearray(whole_batch(records))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    bad = bytes(good[: data.draw(st.integers(0, len(good)) | st.just(len(good)))])
    if mend_crc and len(bad) > 21:
        bad = bad[:17] + struct.pack(">I", kernel.crc32c(bad[21:])) + bad[21:]
    for with_timestamps in (False, True):
        same_in_all_forms([append_outcome(form, bad, None, with_timestamps) for form in FORMS])


@given(batches, st.data(), st.integers(MIN_INT64, MAX_INT64))
def test_damaged_records_behind_a_right_crc(records: list[Record], data: st.DataObject, base_ms: int) -> None:
    section = bytearray(records_bytes(records))
    for _ in range(data.draw(st.integers(0, 2))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(section[: data.draw(st.integers(0, len(section)) | st.just(len(section)))])
    bad = batch_bytes(cut, len(records), base_ms=base_ms)
    same_in_all_forms([append_outcome(form, bad, None, True) for form in FORMS])


@given(st.binary(max_size=200), st.integers(-2, 300), st.integers(MIN_INT64, MAX_INT64))
def test_noise_as_records(noise: bytes, count: int, base_ms: int) -> None:
    bad = batch_bytes(noise, count, base_ms=base_ms)
    same_in_all_forms([append_outcome(form, bad, None, True) for form in FORMS])


@given(streams, st.integers(0, 1), st.booleans(), st.integers(0, 2000) | st.just(1 << 30))
def test_no_stream_entry_makes_a_fetch_fail(
    entries: list[Entry], bias: int, log_append_time: bool, max_bytes: int
) -> None:
    reply = xrange_reply(entries)
    options = {"bias": bias, "log_append_time": log_append_time, "max_bytes": max_bytes, "leader_epoch": 7}
    result = same_in_all_forms([fetched(form, reply, **options) for form in FORMS])
    consumed = entries[: result.consumed_entries]
    good = [e for e in consumed if e.sequence <= 1023 and e.ms < 1 << 53]
    assert result.unaddressable == len(consumed) - len(good)
    back = read_back(result.data)
    assert [offset for offset, _ in back] == [(e.ms << 10 | e.sequence) - bias for e in good]
    assert result.record_count == len(good)
    assert result.truncated == (len(consumed) < len(entries))
    assert len(result.data) <= max_bytes or result.record_count == 1
    for (_, record), entry in zip(back, good, strict=True):
        check_record(record, entry, log_append_time)
    for header, _ in split(result.data):
        assert header.leader_epoch == 7
        assert header.log_append_time == log_append_time
        assert header.last_offset_delta < 1 << 31


def check_record(record: Record, entry: Entry, log_append_time: bool) -> None:
    """The rule for an entry's fields, written a second time."""
    pairs = list(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    names = [name for name, _ in pairs]
    timestamp = entry.ms
    ours = bool(pairs)
    found: dict[bytes, bytes] = {}
    listed: list[tuple[bytes, bytes | None]] = []
    for name, value in pairs:
        if name in {b"key", b"value", b"ts"}:
            ours = ours and names.count(name) == 1
            found[name] = value
        elif name.startswith(b"header."):
            listed.append((name[7:], value))
        elif name.startswith(b"nullheader.") and not value:
            listed.append((name[11:], None))
        else:
            ours = False
    if b"ts" in found:
        digits = found[b"ts"].removeprefix(b"-")
        ours = ours and digits.isdigit() and MIN_INT64 < int(found[b"ts"]) + entry.ms <= MAX_INT64
        ours = ours and abs(int(found[b"ts"])) <= MAX_INT64
        timestamp += int(found[b"ts"]) if ours else 0
    if not ours:
        assert record == Record(None, native_json(entry.fields), entry.ms)
    else:
        at = entry.ms if log_append_time else timestamp
        assert record == Record(found.get(b"key"), found.get(b"value"), at, tuple(listed))


@given(streams, st.data())
def test_damaged_replies_are_named_as_such(entries: list[Entry], data: st.DataObject) -> None:
    reply = bytearray(xrange_reply(entries))
    for _ in range(data.draw(st.integers(1, 2))):
        reply[data.draw(st.integers(0, len(reply) - 1))] = data.draw(st.integers(0, 255))
    bad = bytes(reply[: data.draw(st.integers(0, len(reply)) | st.just(len(reply)))])
    same_in_all_forms([outcome(lambda form=form: fetched(form, bad)) for form in FORMS])
    same_in_all_forms([form.predict_end_offset(bad, 0) for form in FORMS])


@given(streams, st.integers(0, 1))
def test_the_end_of_a_reply_is_where_a_fetch_of_all_of_it_ends(entries: list[Entry], bias: int) -> None:
    reply = xrange_reply(entries)
    end = same_in_all_forms([form.predict_end_offset(reply, bias) for form in FORMS])
    if entries and entries[-1].sequence <= 1023 and entries[-1].ms < (1 << 53) - 1:
        assert end == fetched(kernel, reply, bias=bias).next_offset
    else:
        assert end == -1


replies = st.recursive(
    st.sampled_from(
        [b"+OK\r\n", b"-ERR no\r\n", b":12\r\n", b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n"]
    )
    | st.binary(max_size=30).map(bulk)
    | st.binary(max_size=5).map(lambda data: b"=%d\r\n%s\r\n" % (len(data), data)),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda parts: b"*%d\r\n" % len(parts) + b"".join(parts))
        | st.lists(inner, max_size=4).map(lambda parts: b"~%d\r\n" % len(parts) + b"".join(parts))
        | st.tuples(inner, inner).map(lambda pair: b"%1\r\n" + b"".join(pair))
        | st.tuples(inner, inner, inner).map(lambda parts: b"|1\r\n" + b"".join(parts))
    ),
    max_leaves=12,
)


@given(
    st.lists(replies, min_size=1, max_size=4),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.integers(0, 3),
)
def test_the_scanner_finds_every_end(parts: list[bytes], steps: list[int], shift: int) -> None:
    whole = b"".join(parts)
    for form in FORMS:
        scanner = form.ReplyScanner()
        ends: list[int] = []
        start = have = turn = 0
        while len(ends) < len(parts):
            padding = b"x" * (shift * turn % 5)  # the reply may move in its buffer
            visible = padding + whole[start:have]
            end = scanner.feed(visible, len(padding), len(visible))
            if end >= 0:
                start += end - len(padding)
                ends.append(start)
                continue
            assert have < len(whole)
            have = min(len(whole), have + steps[turn % len(steps)])
            turn += 1
        assert ends == [sum(map(len, parts[: i + 1])) for i in range(len(parts))]


lua_integers = st.integers(-(1 << 53), 1 << 53) | st.integers(-1100, 1100)


@given(st.lists(lua_integers, max_size=60))
def test_integers_of_a_reply_are_read_and_of_nothing_less(integers: list[int]) -> None:
    reply = b"*%d\r\n" % len(integers) + b"".join(b":%d\r\n" % number for number in integers)
    for form in FORMS:
        assert form.integer_array(reply) == tuple(integers)
        assert form.integer_array(bytearray(b"x" + reply)[1:]) == tuple(integers)
        assert all(form.integer_array(reply[:size]) is None for size in range(len(reply)))
        assert form.integer_array(reply + b"x") is None


@given(replies)
def test_any_reply_is_an_array_of_integers_or_none(reply: bytes) -> None:
    found = same_in_all_forms([form.integer_array(reply) for form in FORMS])
    parsed = parse_reply(memoryview(reply)) if reply[:1] == b"*" and b"-ERR" not in reply else None
    is_array = isinstance(parsed, list) and all(type(item) is int for item in parsed)
    assert found == (tuple(parsed) if is_array and parsed is not None else None)


@given(st.lists(lua_integers, max_size=12), st.data())
def test_damaged_integers_of_a_reply(integers: list[int], data: st.DataObject) -> None:
    reply = bytearray(b"*%d\r\n" % len(integers) + b"".join(b":%d\r\n" % number for number in integers))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(reply) - 1))
        reply[at] = data.draw(st.sampled_from(b"*:$+-\r\n0123456789") | st.integers(0, 255))
    bad = bytes(reply)
    found = same_in_all_forms([form.integer_array(bad) for form in FORMS])
    if found is not None:
        head, *items, end = bad.split(b"\r\n")
        assert (int(head.removeprefix(b"*")), end) == (len(found), b"")
        assert found == tuple(int(item.removeprefix(b":")) for item in items)


@given(st.integers(0, (1 << 63) - 1), st.binary(max_size=30))
def test_an_array_that_claims_to_be_large_is_no_array_of_integers(count: int, rest: bytes) -> None:
    reply = b"*%d\r\n" % count + rest
    found = same_in_all_forms([form.integer_array(reply) for form in FORMS])
    assert found is None or len(found) == count <= len(rest)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_the_scanner_survives_noise(noise: bytes, cut: int) -> None:
    def scan(form: Any) -> Any:
        scanner = form.ReplyScanner()
        first = outcome(lambda: scanner.feed(noise, 0, min(cut, len(noise))))
        return first, outcome(lambda: scanner.feed(noise, 0, len(noise)))

    same_in_all_forms([scan(form) for form in FORMS])


@given(st.binary(max_size=300))
def test_checksums_agree(data: bytes) -> None:
    same_in_all_forms([form.crc32c(data) for form in FORMS] + [form.crc32c_portable(data) for form in FORMS])


@given(st.integers(0, 12_000), st.integers(0, 15), st.integers(0, 1 << 32))
def test_checksums_of_many_bytes_agree(size: int, start: int, seed: int) -> None:
    data = memoryview(random.Random(seed).randbytes(start + size))[start:]
    same_in_all_forms([form.crc32c(data) for form in FORMS] + [form.crc32c_portable(data) for form in FORMS])


@given(st.integers(1, 4), st.binary(max_size=400), st.data())
@settings(max_examples=300)
def test_damaged_compressed_data_is_bounded(codec: int, plain: bytes, data: st.DataObject) -> None:
    packed = bytearray(compress(codec, plain * 20))
    for _ in range(data.draw(st.integers(0, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    limit = data.draw(st.integers(0, 9000))
    cut = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    result = outcome(lambda: unpack(codec, cut, limit))
    assert len(result) <= limit if isinstance(result, bytes) else result[0] in {"invalid_record", "too_large"}


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_are_what_they_say(form: Any) -> None:
    assert form.ACCELERATED is (form is kernel and kernel.__file__.endswith(".so"))
