"""Records of a Fetch response: batches whole or cut off, control batches, compression, nulls."""

import gzip
import struct

from hypothesis import given
from hypothesis import strategies as st

from korvet.cli.log_requests import LogRecord, _read

GZIP, CONTROL = 1, 0x20


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch(records: list[LogRecord], attributes: int = 0) -> bytes:
    """A record batch (magic 2) in Kafka's format; its checksum is not checked here."""
    base, first_ms = records[0].offset, records[0].timestamp_ms
    body = b""
    for record in records:
        inner = b"\x00" + varint(record.timestamp_ms - first_ms) + varint(record.offset - base)
        inner += field(record.key) + field(record.value)
        inner += varint(len(record.headers))
        for name, value in record.headers:
            inner += field(name.encode()) + field(value)
        body += varint(len(inner)) + inner
    if attributes & 0x07:
        body = gzip.compress(body)
    last = records[-1].offset - base
    head = struct.pack(
        ">ibIhiqqqhii", 0, 2, 0, attributes, last, first_ms, first_ms, -1, -1, -1, len(records)
    )
    return struct.pack(">qi", base, len(head) + len(body)) + head + body


octets = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=20), octets), max_size=3).map(tuple)
Field = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@given(
    first=st.integers(0, 2**53),
    fields=st.lists(
        st.tuples(st.integers(1, 1000), st.integers(-5000, 5000), octets, octets, headers),
        min_size=1,
        max_size=8,
    ),
    attributes=st.sampled_from([0, GZIP]),
)
def test_what_was_written_is_read(first: int, fields: list[Field], attributes: int) -> None:
    offset, records = first, []
    for gap, delta_ms, key, value, named in fields:
        records.append(LogRecord(offset, 1_700_000_000_000 + delta_ms, key, value, named))
        offset += gap
    data = batch(records, attributes)
    end = records[-1].offset + 1
    assert _read(data, first) == (records, end)
    assert _read(data + data[:-1], first) == (records, end)
    assert _read(data, end) == ([], end)


def test_a_batch_in_the_middle_is_cut_at_the_position() -> None:
    records = [LogRecord(offset, 0, b"k", None, ()) for offset in range(10, 15)]
    assert _read(batch(records), 13) == (records[3:], 15)


def test_markers_are_passed_over() -> None:
    marker = [LogRecord(7, 0, b"\0\0\0\1", b"", ())]
    assert _read(batch(marker, CONTROL), 7) == ([], 8)


def test_nothing_is_nothing() -> None:
    assert _read(b"", 5) == ([], 5)
