"""The offsets of entries that are records: equal to a plain model, in each form of the kernel."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.records.batch import BatchError
from tests.unit.records.forms import FORMS, Entry, fetched, xrange_reply

MARKER = [b"ctl", b"commit", b"pid", b"7", b"epoch", b"0"]
IN_TRANSACTION = [b"value", b"v", b"pid", b"7", b"epoch", b"0"]
BATCH = [b"batch", b"x"]
FOREIGN = [b"batch", b"x", b"ctl", b"commit"]
RECORD = [b"key", b"k", b"value", b"v"]
kinds = st.sampled_from([RECORD, RECORD, RECORD, MARKER, IN_TRANSACTION, FOREIGN])
rows = st.lists(st.tuples(st.integers(1, 3), kinds), max_size=30)
NO_LIMIT = (1 << 63) - 1

pytestmark = pytest.mark.parametrize("form", FORMS)


def entries_of(steps: list[tuple[int, list[bytes]]]) -> list[Entry]:
    entries, position = [], 1020
    for step, fields in steps:
        position += step
        entries.append(Entry(position >> 10, position & 1023, fields))
    return entries


def runs(form: Any, entries: list[Entry], **options: Any) -> Any:
    reply = b"+" + xrange_reply(entries)
    return form.record_runs(
        reply, 1, len(reply), **{"bias": 0, "before": NO_LIMIT, "is_committed": False, **options}
    )


@given(rows, st.integers(0, 1))
def test_runs_and_markers(form, steps, bias):
    entries = entries_of(steps)
    found = runs(form, entries, bias=bias)
    bounds, markers, largest_bytes = found
    offsets = [
        offset
        for first, last in zip(bounds[::2], bounds[1::2], strict=True)
        for offset in range(first, last + 1)
    ]
    expected = [(entry.ms << 10 | entry.sequence) - bias for entry in entries if entry.fields is not MARKER]
    assert offsets == expected
    assert all(last + 1 < first for last, first in zip(bounds[1::2], bounds[2::2], strict=False))
    assert markers == [b"%d-%d" % entry[:2] for entry in entries if entry.fields is MARKER]
    sizes = [len(xrange_reply([entry])) - len(b"*1\r\n") for entry in entries]
    assert largest_bytes == max(sizes, default=0)
    read = fetched(form, xrange_reply(entries), bias=bias, skip_markers=True)
    assert (read.record_count, read.consumed_entries) == (len(expected), len(entries))
    assert (read.first_offset, read.last_offset) == ((expected[0], expected[-1]) if expected else (-1, -1))


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        (Entry(1, 1024, RECORD), {}),
        (Entry(1 << 60, 0, RECORD), {}),
        (Entry(1, 7, BATCH), {}),
        (Entry(1, 7, RECORD), {"before": 1024 + 7}),
        (Entry(1, 7, IN_TRANSACTION), {"is_committed": True}),
    ],
)
def test_others_need_a_closer_look(form, entry, options):
    before, after = Entry(1, 6, RECORD), Entry(1 << 61, 0, RECORD)
    assert runs(form, [entry], **options) is None
    assert runs(form, [before, entry], **options) is None
    assert runs(form, [before], **options) is not None
    assert runs(form, [entry, after], **options) is None


@given(st.binary(max_size=40).filter(lambda data: not data.startswith(b"*0")))
def test_other_bytes_are_refused(form, data):
    with pytest.raises(BatchError):
        form.record_runs(data, 0, len(data), bias=0, before=NO_LIMIT, is_committed=False)


@given(rows.filter(bool), st.data())
def test_a_cut_reply_is_refused(form, steps, data):
    reply = xrange_reply(entries_of(steps))
    end = data.draw(st.integers(0, len(reply) - 1))
    with pytest.raises(BatchError):
        form.record_runs(reply, 0, end, bias=0, before=NO_LIMIT, is_committed=False)
