"""Batches of some of a batch's records, read by a decoder that is not ours."""

from __future__ import annotations

import pytest
from aiokafka.record import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from korvet.records.batch import BatchError
from korvet.records.compression import compress
from korvet.records.kernel import check_records, parse_batch
from korvet.records.runs import records_of, runs_of
from tests.unit.records.forms import Record, batch_bytes, records_bytes

small = st.binary(max_size=80)
names = st.text(max_size=5).map(str.encode)
rows = st.lists(
    st.builds(
        Record,
        st.one_of(st.none(), small),
        st.one_of(st.none(), small),
        st.integers(-5, 1 << 40),
        st.lists(st.tuples(names, st.one_of(st.none(), small)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=200,
)


def read(data: bytes) -> list[tuple]:
    found = []
    batches = MemoryRecords(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        found += [(one.offset, one.timestamp, one.key, one.value, one.headers) for one in batch]
    return found


@given(rows, st.data(), st.sampled_from([0, 1, 2, 3, 4]))
def test_some_records_stay_as_they_were(records, data, codec):
    section = records_bytes(records, base_ms=1000)
    whole = batch_bytes(compress(codec, section), len(records), base_ms=1000, attributes=codec)
    header = parse_batch(whole, 0)
    found = records_of(whole, header)
    assert [(one.key, one.tombstone) for one in found] == [(one.key, one.value is None) for one in records]
    kept = sorted(data.draw(st.sets(st.integers(0, len(records) - 1))))
    runs = list(runs_of(header, found, kept))
    everything = read(whole)
    assert [one for _, batch in runs for one in read(batch)] == [everything[place] for place in kept]
    for last, batch in runs:
        again = parse_batch(batch, 0)
        assert again.base_offset + again.last_offset_delta == last
        assert again.record_count == again.last_offset_delta + 1
        assert again.codec == codec
        assert again.max_timestamp_ms == max(one[1] for one in read(batch))
        assert again.size == len(batch)
    # Adjacent records stay in one batch.
    assert len(runs) == sum(place - 1 not in kept for place in kept)


def test_sequences_and_append_times_go_along():
    rows = [Record(b"k", b"%d" % number, 1000) for number in range(4)]
    section = records_bytes(rows, base_ms=1000)
    whole = batch_bytes(section, 4, base_ms=1000, attributes=8, max_ms=7777, producer=(5, 2, (1 << 31) - 2))
    header = parse_batch(whole, 0)
    [(_, first), (_, second)] = runs_of(header, records_of(whole, header), [0, 3])
    for batch, sequence in ((first, (1 << 31) - 2), (second, 1)):
        again = parse_batch(batch, 0)
        assert (again.producer_id, again.producer_epoch, again.base_sequence) == (5, 2, sequence)
        assert (again.log_append_time, again.max_timestamp_ms) == (1, 7777)
        assert check_records(batch, 0, again, None).keyless_count == 0


def test_damaged_records_are_told():
    section = records_bytes([Record(b"k", b"v", 0)] * 3, base_ms=0)
    for cut in range(1, len(section)):
        damaged = batch_bytes(section[:cut], 3, base_ms=0)
        with pytest.raises(BatchError):
            records_of(damaged, parse_batch(damaged, 0))
