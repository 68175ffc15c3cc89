"""Timestamps of entries by the kernel's rule, and batches without records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import example, given
from hypothesis import strategies as st

from korvet.log.entries import entry_timestamp
from korvet.offsets.entry_fields import Marker, read_entry
from korvet.records.kernel import entries_to_batches, pack_arguments
from tests.storage.batches import decode
from tests.unit.records import forms

if TYPE_CHECKING:
    from collections.abc import Callable

names = st.sampled_from(
    [
        *(b"key", b"value", b"ts", b"pid", b"epoch", b"header.a", b"nullheader.b", b"header.", b"nullheader"),
        *(b"x", b"", b"ctl", b"batch"),
    ]
)
values = st.one_of(
    st.binary(max_size=4),
    st.integers(-(2**65), 2**65).map(lambda number: b"%d" % number),
    st.sampled_from([b"", b"5", b"32767", b"-", b"+1", b"007", b"-0", b" 1", b"1_0"]),
)


@given(st.lists(st.tuples(names, values), min_size=1, max_size=5), st.integers(0, 2**43 - 1))
@example([(b"value", b""), (b"ts", b"9" * 5_000)], 5)
def test_timestamps_are_the_kernels(pairs: list[tuple[bytes, bytes]], ms: int) -> None:
    fields = [part for pair in pairs for part in pair]
    entry_id = b"%d-3" % ms
    data = _by_the_kernel(entry_id, fields, lambda _: b"")
    assert [record.timestamp_ms for record in decode(data)] == [entry_timestamp(entry_id, fields)]


@given(st.lists(st.tuples(names, values), min_size=1, max_size=5))
def test_records_of_transactions_are_the_kernels(pairs: list[tuple[bytes, bytes]]) -> None:
    _agree([part for pair in pairs for part in pair])


@given(
    st.permutations([b"ctl", b"pid", b"epoch"]), st.sampled_from([b"commit", b"abort", b"?"]), values, values
)
def test_markers_are_the_kernels(order: list[bytes], outcome: bytes, producer: bytes, epoch: bytes) -> None:
    said = {b"ctl": outcome, b"pid": producer, b"epoch": epoch}
    _agree([part for name in order for part in (name, said[name])])


def _by_the_kernel(entry_id: bytes, fields: list[bytes], native: Callable[[Any], bytes]) -> bytes:
    """The record batches that the kernel makes of one entry."""
    reply = b"*1\r\n*2\r\n" + pack_arguments(entry_id) + b"*%d\r\n" % len(fields) + pack_arguments(*fields)
    entries = entries_to_batches(
        reply,
        0,
        len(reply),
        bias=0,
        max_bytes=1 << 20,
        leader_epoch=0,
        log_append_time=False,
        native=native,
    )
    return entries.data


def _agree(fields: list[bytes]) -> None:
    """Check that readers and compaction see the same record in an entry."""
    natives: list[object] = []

    def native(read: object) -> bytes:
        natives.append(read)
        return b""

    data = _by_the_kernel(b"7-3", fields, native)
    ((header, _),) = forms.split(data)
    found = read_entry(fields, 7)
    assert (found is None) == bool(natives)
    assert isinstance(found, Marker) == header.control
    if isinstance(found, Marker):
        assert found.producer_id == header.producer_id
    elif found is not None:
        ((_, record),) = forms.read_back(data)
        headers = [(name, value) for name, value in record.headers]
        assert found == (record.key, record.value, record.timestamp_ms, headers, header.producer_id)
        assert header.transactional == (header.producer_id >= 0)
