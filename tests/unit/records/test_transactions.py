"""Transactional records and markers: their fields in entries, and their batches for consumers."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from korvet.records.native import native_json
from tests.unit.records.forms import (
    BASE_MS,
    FORMS,
    Entry,
    Record,
    assert_the_same,
    fetched,
    read_back,
    split,
    stored,
    whole_batch,
    xrange_reply,
)

every_form = pytest.mark.parametrize("form", FORMS, ids=["installed", "beside cython", "without cython"])
MARK = [b"pid", b"7", b"epoch", b"3"]
RECORDS = [
    Record(b"k", b"v", BASE_MS, ((b"h", b"1"),)),
    Record(None, None, BASE_MS + 1),
    Record(b"k", None, BASE_MS + 2),
]


def marker(outcome: bytes, sequence: int = 0, producer: bytes = b"7") -> Entry:
    return Entry(BASE_MS, sequence, [b"ctl", outcome, b"pid", producer, b"epoch", b"3"])


def transactional(records: list[Record] = RECORDS, producer: tuple[int, int, int] = (7, 3, 5)) -> bytes:
    return whole_batch(records, attributes=16, producer=producer)


@every_form
@pytest.mark.parametrize("with_timestamps", [True, False])
def test_records_end_with_their_producer(form: Any, with_timestamps: bool) -> None:
    data = transactional()
    arguments = form.encode_append(data, 0, form.parse_batch(data, 0), None, with_timestamps)
    entries = stored(arguments, BASE_MS << 10)
    assert [entry.fields[-4:] for entry in entries] == [MARK] * 3
    stamp = [b"ts", b"0"] if with_timestamps else []
    assert entries[0].fields == [b"key", b"k", b"value", b"v", *stamp, b"header.h", b"1", *MARK]
    if not with_timestamps:
        assert entries[1].fields == MARK
    got = fetched(form, xrange_reply(entries))
    ((header, _),) = split(got.data)
    assert (header.attributes, header.producer_id, header.producer_epoch) == (16, 7, 3)
    assert header.base_sequence == -1
    shown = RECORDS if with_timestamps else [record._replace(timestamp_ms=BASE_MS) for record in RECORDS]
    assert [record for _, record in read_back(got.data)] == shown


@every_form
def test_a_coordinators_batches_have_a_base_sequence_but_for_its_markers(form: Any) -> None:
    entries = [
        Entry(BASE_MS, 0, [b"key", b"k", b"value", b"v"]),
        Entry(BASE_MS, 1, [b"key", b"k", b"value", b"v", *MARK]),
        marker(b"commit", 2),
    ]
    got = fetched(form, xrange_reply(entries), base_sequence=0)
    found = [(header.producer_id, header.base_sequence) for header, _ in split(got.data)]
    assert found == [(-1, 0), (7, 0), (7, -1)]


@every_form
def test_our_own_records_end_with_their_producer(form: Any) -> None:
    data = transactional([Record(b"k", b"v", BASE_MS), Record(b"k", None, BASE_MS)])
    theirs = form.encode_append(data, 0, form.parse_batch(data, 0), None, True)
    ours = form.encode_append_records([(b"k", b"v", BASE_MS), (b"k", None, BASE_MS)], (7, 3))
    assert_the_same(ours, theirs)


@every_form
@pytest.mark.parametrize(("outcome", "kind"), [(b"commit", 1), (b"abort", 0)])
def test_a_marker_is_a_control_batch(form: Any, outcome: bytes, kind: int) -> None:
    entries = [
        Entry(BASE_MS, 0, [b"value", b"a", *MARK]),
        Entry(BASE_MS, 1, [b"value", b"b", b"pid", b"8", b"epoch", b"3"]),
        Entry(BASE_MS, 2, [b"value", b"c", b"pid", b"8", b"epoch", b"4"]),
        marker(outcome, 3),
        marker(outcome, 4),
        Entry(BASE_MS, 5, [b"value", b"d"]),
        Entry(BASE_MS, 6, [b"value", b"e"]),
    ]
    got = fetched(form, xrange_reply(entries))
    told = [
        (header.attributes, header.producer_id, header.producer_epoch, header.record_count)
        for header, _ in split(got.data)
    ]
    assert told == [(16, 7, 3, 1), (16, 8, 3, 1), (16, 8, 4, 1), (48, 7, 3, 1), (48, 7, 3, 1), (0, -1, -1, 2)]
    control = read_back(got.data)[3][1]
    assert control == Record(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), BASE_MS)
    assert (got.record_count, got.last_offset) == (7, (BASE_MS << 10) + 6)


@every_form
@pytest.mark.parametrize("limit", [1, 100, 200])
def test_a_marker_counts_towards_the_limit(form: Any, limit: int) -> None:
    got = fetched(form, xrange_reply([marker(b"abort", n) for n in range(3)]), max_bytes=limit)
    size = 61 + 1 + 16
    assert len(got.data) == size * max(1, limit // size)
    assert got.truncated


@every_form
@pytest.mark.parametrize(
    "fields",
    [
        [b"value", b"v", b"pid", b"7"],
        [b"value", b"v", b"epoch", b"7"],
        [b"value", b"v", b"pid", b"-7", b"epoch", b"3"],
        [b"value", b"v", b"pid", b"7", b"epoch", b"32768"],
        [b"value", b"v", b"pid", b"7x", b"epoch", b"3"],
        [b"value", b"v", b"pid", b"", b"epoch", b"3"],
        [b"value", b"v", b"pid", b"9" * 19, b"epoch", b"3"],
        [b"value", b"v", b"pid", b"7", b"pid", b"7", b"epoch", b"3"],
        [b"ctl", b"commit"],
        [b"ctl", b"commit", b"pid", b"7"],
        [b"ctl", b"commits", b"pid", b"7", b"epoch", b"3"],
        [b"ctl", b"abor_", b"pid", b"7", b"epoch", b"3"],
        [b"ctl", b"commit", b"pid", b"7", b"epoch", b"3", b"value", b"v"],
        [b"ctl", b"commit", b"ctl", b"abort", b"pid", b"7"],
        [b"ctx", b"commit", b"pid", b"7", b"epoch", b"3"],
        [b"value", b"v", b"pix", b"7", b"epoch", b"3"],
        [b"value", b"v", b"pid", b"7", b"epock", b"3"],
    ],
)
def test_what_only_looks_like_one_of_ours_is_native(form: Any, fields: list[bytes]) -> None:
    got = fetched(form, xrange_reply([Entry(BASE_MS, 0, fields)]))
    ((header, _),) = split(got.data)
    assert (header.attributes, header.producer_id) == (0, -1)
    assert read_back(got.data)[0][1] == Record(None, native_json(fields), BASE_MS)
