"""The records of the benchmarks: as Produce requests, and as the same entries for Redis.

A record has a key of 16 bytes, a random value, and one header. The load clients read requests from files
(their layout: benchmarks/load/common.h).
"""

from __future__ import annotations

import functools
import os
import secrets
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafka.record.default_records import DefaultRecordBatchBuilder

from benchmarks.rig.programs import BUILD

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADER = ("trace", b"0123456789abcd")
# storage.layout of the topics
LAYOUTS = ("record", "batch")
KEY_BYTES = 16
CORRELATION_ID = 7
# ID and epoch of a fetch without a session.
NO_SESSION = (0, -1)
PRODUCE, FETCH, METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 0, 1, 3, 8, 10
_PRODUCE_TIMEOUT_MS = 30_000
# The first sequence number: three digits, so that every reply of Redis has the same length.
_FIRST_SEQUENCE = 100
_MS_PLACEHOLDER = b"0" * 13


@dataclass(frozen=True, slots=True)
class Shape:
    """Records of one size, in batches of about `batch_bytes` (0: one record each)."""

    value_bytes: int
    batch_bytes: int

    @property
    def per_batch(self) -> int:
        overhead_bytes = KEY_BYTES + len(HEADER[0]) + len(HEADER[1]) + 10
        return max(1, self.batch_bytes // (self.value_bytes + overhead_bytes))

    def __str__(self) -> str:
        batches = f"{self.batch_bytes // 1024} KB batches" if self.batch_bytes else "single records"
        return f"{size_text(self.value_bytes)}, {batches}"


def size_text(size_bytes: int) -> str:
    """The size as text: "100 B", "1 KB"."""
    return f"{size_bytes} B" if size_bytes < 1024 else f"{size_bytes // 1024} KB"


@dataclass(frozen=True, slots=True)
class Request:
    """One request in a load client's file. The client defines the meaning of `mark`."""

    data: bytes
    records: int
    mark: int


def write_requests(name: str, requests: list[Request]) -> Path:
    """Write requests to a file for the load clients."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / f"{name}.{os.getpid()}.requests"
    with path.open("wb") as file:
        file.write(struct.pack("=I", len(requests)))
        for request in requests:
            file.write(struct.pack("=III", len(request.data), request.records, request.mark) + request.data)
    return path


@functools.cache
def payloads(shape: Shape, batches: int) -> list[list[tuple[bytes, bytes]]]:
    """Returns keys and values of this number of batches, the same for all callers in this process."""
    return [
        [
            (secrets.token_hex(KEY_BYTES // 2).encode(), os.urandom(shape.value_bytes))
            for _ in range(shape.per_batch)
        ]
        for _ in range(batches)
    ]


def record_batch(records: list[tuple[bytes, bytes]]) -> bytes:
    """Returns an uncompressed RecordBatch (magic 2, KIP-98) of these keys and values."""
    now_ms = int(time.time() * 1000)
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, (key, value) in enumerate(records):
        builder.append(index, now_ms, key, value, [HEADER])
    return bytes(builder.build())


def produce_request(topic: str, partition: int, batch: bytes, records: int, acks: int = 1) -> Request:
    """Returns a Produce v9 request."""
    name = compact_bytes(topic.encode())
    body = b"\0" + struct.pack(">hi", acks, _PRODUCE_TIMEOUT_MS) + b"\x02" + name + b"\x02"
    body += struct.pack(">i", partition) + compact_bytes(batch) + b"\0\0\0"
    # Response: size, correlation id, tags, topics, name, partitions, index, error code.
    error_at = 4 + 4 + 1 + 1 + len(name) + 1 + 4
    return Request(framed(PRODUCE, 9, body, flexible=True), records, error_at)


def produce_requests(topic: str, partitions: int, shape: Shape, batches: int, acks: int = 1) -> list[Request]:
    """Returns Produce requests of one batch each, cycling through the partitions."""
    return [
        produce_request(topic, number % partitions, record_batch(records), len(records), acks)
        for number, records in enumerate(payloads(shape, batches))
    ]


def fetch_request(
    topic: str, partitions: Sequence[int], wait_ms: int, session: tuple[int, int] = NO_SESSION
) -> Request:
    """Returns a Fetch v11 of a topic's partitions from offset 0, with a consumer's default limits.

    `session`: its ID and epoch (KIP-227). Without partitions, nothing of it changes.
    """
    name = topic.encode()
    body = struct.pack(">iiiibii", -1, wait_ms, 1, 50 << 20, 0, *session)
    body += struct.pack(">i", 1 if partitions else 0)
    if partitions:
        body += struct.pack(f">h{len(name)}si", len(name), name, len(partitions))
    body += b"".join(struct.pack(">iiqqi", number, -1, 0, -1, 1 << 20) for number in partitions)
    # No forgotten topics, no rack. Response: size, correlation id, throttle time, error code.
    return Request(framed(FETCH, 11, body + b"\0" * 6, flexible=False), 1, 4 + 4 + 4)


def entry_requests(keys: list[str], shape: Shape, batches: int) -> list[Request]:
    """Returns the same records as XADDs with explicit IDs, in MULTI and EXEC if there are several.

    Entries have key, value and header only: a native writer without record timestamps writes no `ts`.
    """
    requests = []
    for number, records in enumerate(payloads(shape, batches)):
        key = keys[number % len(keys)].encode()
        commands = []
        for sequence, (record_key, value) in enumerate(records, _FIRST_SEQUENCE):
            entry_id = _MS_PLACEHOLDER + b"-%d" % sequence
            fields = (b"key", record_key, b"value", value, b"header." + HEADER[0].encode(), HEADER[1])
            commands.append(resp(b"XADD", key, entry_id, *fields))
        reply_bytes = len(records) * len(b"$17\r\n0000000000000-100\r\n")
        if len(records) > 1:
            commands = [resp(b"MULTI"), *commands, resp(b"EXEC")]
            reply_bytes += (
                len(b"+OK\r\n") + len(records) * len(b"+QUEUED\r\n") + len(b"*%d\r\n" % len(records))
            )
        requests.append(Request(b"".join(commands), len(records), reply_bytes))
    return requests


def resp(*arguments: bytes) -> bytes:
    """Encodes a command as RESP."""
    parts = b"".join(b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments)
    return b"*%d\r\n%b" % (len(arguments), parts)


def framed(api_key: int, api_version: int, body: bytes, *, flexible: bool) -> bytes:
    """Returns a request with its size and header (version 2 if flexible, else 1)."""
    head = struct.pack(">hhih", api_key, api_version, CORRELATION_ID, 4) + b"load" + b"\0" * flexible
    return struct.pack(">i", len(head) + len(body)) + head + body


def compact_bytes(data: bytes) -> bytes:
    """Encodes compact bytes or a compact string of the flexible versions (KIP-482)."""
    return unsigned_varint(len(data) + 1) + data


def unsigned_varint(number: int) -> bytes:
    """Encodes an unsigned varint (KIP-482)."""
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
