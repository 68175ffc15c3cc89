"""The kernel in all its forms, with a batch writer and a model of Redis for its tests."""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import msgspec

from korvet.records import batch, kernel
from korvet.records.batch import AppendArguments, BatchHeader, Entries
from korvet.records.native import native_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

SOURCES = Path(batch.__file__).with_name("kernel")
BASE_MS = 1_700_000_000_000
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1
# How far `AppendArguments.largest_bytes` may be from the size of the largest entry in tests.
LARGEST_IS_WITHIN_BYTES = 96


def _load(hidden: dict[str, Any]) -> ModuleType:
    """The uncompiled kernel as modules of its own, also beside a compiled one."""
    spec = importlib.util.spec_from_file_location(
        kernel.__name__, SOURCES / "__init__.py", submodule_search_locations=[str(SOURCES)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {kernel.__name__: module, **hidden}):
        for name in [name for name in sys.modules if name.startswith(f"{kernel.__name__}.")]:
            del sys.modules[name]
        spec.loader.exec_module(module)
    return module


installed: Any = kernel
with_cython: Any = _load({})
without_cython: Any = _load({"cython": None})
FORMS = (installed, with_cython, without_cython)


class Record(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class Entry(NamedTuple):
    ms: int
    sequence: int
    fields: list[bytes]


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_bytes(record: Record, base_ms: int, delta: int) -> bytes:
    body = b"\0" + varint(record.timestamp_ms - base_ms) + varint(delta)
    body += nullable(record.key) + nullable(record.value) + varint(len(record.headers))
    body += b"".join(nullable(name) + nullable(value) for name, value in record.headers)
    return varint(len(body)) + body


def records_bytes(records: list[Record], base_ms: int | None = None) -> bytes:
    base = records[0].timestamp_ms if base_ms is None else base_ms
    return b"".join(record_bytes(record, base, delta) for delta, record in enumerate(records))


def batch_bytes(
    section: bytes,
    count: int,
    *,
    base_ms: int = BASE_MS,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    last_delta: int | None = None,
    length: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    max_ms: int | None = None,
) -> bytes:
    """A batch with a correct CRC; all other parts may be wrong."""
    fields = (
        attributes,
        count - 1 if last_delta is None else last_delta,
        base_ms,
        base_ms if max_ms is None else max_ms,
    )
    body = struct.pack(">hiqqqhii", *fields, *producer, count) + section
    size = 9 + len(body) if length is None else length
    return struct.pack(">qiibI", base_offset, size, leader_epoch, 2, kernel.crc32c(body)) + body


def whole_batch(records: list[Record], **parts: Any) -> bytes:
    base = records[0].timestamp_ms
    return batch_bytes(records_bytes(records), len(records), base_ms=base, **parts)


def bulk_strings(resp: bytes) -> list[bytes]:
    strings: list[bytes] = []
    at = 0
    while at < len(resp):
        line = resp.index(b"\r\n", at)
        assert resp[at : at + 1] == b"$"
        length = int(resp[at + 1 : line])
        strings.append(resp[line + 2 : line + 2 + length])
        at = line + 2 + length
        assert resp[at : at + 2] == b"\r\n"
        at += 2
    return strings


def records_of(arguments: AppendArguments) -> Iterator[tuple[list[bytes], int]]:
    """The field arguments of each record, and the 1-based place of the timestamp among them (0: none)."""
    heads, *strings = bulk_strings(arguments.resp)
    assert 1 + len(strings) == arguments.argc
    at = 0
    for half_count, half_place in struct.iter_unpack(">HB", heads):
        yield strings[at : at + 2 * half_count], 2 * half_place
        at += 2 * half_count
    assert at == len(strings)


def stored(arguments: AppendArguments, base_offset: int) -> list[Entry]:
    """The entries that the append function adds: IDs from the offset on, relative timestamps."""
    entries: list[Entry] = []
    for offset, (fields, place) in enumerate(records_of(arguments), base_offset):
        if place:
            assert fields[place - 2] == b"ts"
            fields[place - 1] = b"%d" % (int(fields[place - 1]) - (offset >> 10))
        entries.append(Entry(offset >> 10, offset & 1023, fields))
    assert len(entries) == arguments.record_count
    return entries


def assert_the_same(one: AppendArguments, other: AppendArguments) -> None:
    """Fail unless the arguments are equal, but for the size of the largest entry, which is not exact."""
    assert msgspec.structs.replace(one, largest_bytes=other.largest_bytes) == other
    sizes = [sum(map(len, entry.fields)) for entry in stored(other, 0)]
    for arguments in (one, other):
        assert abs(arguments.largest_bytes - max(sizes)) <= LARGEST_IS_WITHIN_BYTES


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


def xrange_reply(entries: list[Entry]) -> bytes:
    parts = [b"*%d\r\n" % len(entries)]
    for entry in entries:
        parts.append(b"*2\r\n" + bulk(b"%d-%d" % (entry.ms, entry.sequence)))
        parts.append(b"*%d\r\n" % len(entry.fields) + b"".join(bulk(field) for field in entry.fields))
    return b"".join(parts)


def fetched(form: Any, reply: bytes, **options: Any) -> Entries:
    arguments: dict[str, Any] = {
        "bias": 0,
        "max_bytes": 1 << 30,
        "leader_epoch": 0,
        "log_append_time": False,
        "native": native_json,
    }
    entries: Entries = form.entries_to_batches(reply, 0, len(reply), **{**arguments, **options})
    return entries


def split(data: bytes) -> list[tuple[BatchHeader, bytes]]:
    """The batches of a fetched section. `parse_batch` would refuse the gaps in their offset deltas."""
    batches: list[tuple[BatchHeader, bytes]] = []
    at = 0
    while at < len(data):
        base, length, epoch, magic, crc, attributes, last, first_ms, max_ms, pid, pepoch, sequence, count = (
            struct.unpack_from(">qiibIhiqqqhii", data, at)
        )
        one = data[at : at + 12 + length]
        assert len(one) == 12 + length
        assert magic == 2
        assert crc == kernel.crc32c(one[21:])
        header = BatchHeader(
            12 + length, base, epoch, attributes,
            attributes & 7, bool(attributes & 16), bool(attributes & 32),
            bool(attributes & 8), last, first_ms, max_ms, pid, pepoch, sequence, count,
        )  # fmt: skip
        batches.append((header, one))
        at += header.size
    return batches


class Reader:
    """A record reader that follows the description of the format."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        raw = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            raw |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (raw >> 1) ^ -(raw & 1)

    def nullable(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        self.at += length
        assert self.at <= len(self.data)
        return self.data[self.at - length : self.at]

    def record(self, base_ms: int) -> tuple[int, Record]:
        length = self.varint()
        end = self.at + length
        self.at += 1
        timestamp = base_ms + self.varint()
        delta = self.varint()
        key, value = self.nullable(), self.nullable()
        headers = tuple((self.nullable() or b"", self.nullable()) for _ in range(self.varint()))
        assert self.at == end
        return delta, Record(key, value, timestamp, headers)


def read_back(data: bytes) -> list[tuple[int, Record]]:
    """(offset, record) of every record in a fetched section."""
    records: list[tuple[int, Record]] = []
    for header, one in split(data):
        reader = Reader(one[61:])
        batch_records = [reader.record(header.base_timestamp_ms) for _ in range(header.record_count)]
        assert reader.at == len(one) - 61
        assert batch_records[-1][0] == header.last_offset_delta
        records += [(header.base_offset + delta, record) for delta, record in batch_records]
    return records
