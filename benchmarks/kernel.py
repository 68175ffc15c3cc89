"""Measures the record kernel in both directions, in ns per record: `python benchmarks/kernel.py`."""

from __future__ import annotations

import os
import struct
import sys
import time
from typing import TYPE_CHECKING

from kafka.record.default_records import DefaultRecordBatchBuilder

from korvet.records import kernel
from korvet.records.native import native_json

if TYPE_CHECKING:
    from collections.abc import Callable

BASE_MS = 1_700_000_000_000
BATCH_BYTES = 64 * 1024
ROUNDS = 7


def batch_of(value_bytes: int, with_header: bool) -> tuple[bytes, int]:
    """Returns a record batch of about 64 KB, and its number of records."""
    count = BATCH_BYTES // (value_bytes + 30)
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 24)
    headers = [("trace", b"0123456789abcd")] if with_header else []
    for i in range(count):
        builder.append(i, BASE_MS + i // 8, b"%016d" % i, os.urandom(value_bytes), headers)
    return bytes(builder.build()), count


def stream_reply(data: bytes) -> bytes:
    """Returns the XRANGE reply for the entries of this batch."""
    arguments = kernel.encode_append(data, 0, kernel.parse_batch(data, 0), None, True).resp
    heads, *strings = _bulk_strings(arguments)
    entries: list[bytes] = []
    at = 0
    for sequence, (half_count, half_place) in enumerate(struct.iter_unpack(">HB", heads)):
        fields = strings[at : at + 2 * half_count]
        timestamp_at = 2 * half_place - 1
        fields[timestamp_at] = b"%d" % (int(fields[timestamp_at]) - BASE_MS)
        entry_id = b"%d-%d" % (BASE_MS + sequence // 1024, sequence % 1024)
        body = b"".join(b"$%d\r\n%s\r\n" % (len(field), field) for field in fields)
        entries.append(b"*2\r\n$%d\r\n%s\r\n*%d\r\n%s" % (len(entry_id), entry_id, len(fields), body))
        at += 2 * half_count
    return b"*%d\r\n%s" % (len(entries), b"".join(entries))


def _bulk_strings(resp: bytes) -> list[bytes]:
    strings: list[bytes] = []
    at = 0
    while at < len(resp):
        line = resp.index(b"\r\n", at)
        length = int(resp[at + 1 : line])
        strings.append(resp[line + 2 : line + 2 + length])
        at = line + 2 + length + 2
    return strings


def nanoseconds(run: Callable[[], object], records: int) -> float:
    """Returns the best of several rounds, in ns per record."""
    repeats = max(1, (200_000 if kernel.ACCELERATED else 5_000) // records)
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter_ns()
        for _ in range(repeats):
            run()
        best = min(best, (time.perf_counter_ns() - begin) / repeats / records)
    return best


def measure(value_bytes: int, with_header: bool) -> str:
    """Print one line of the table."""
    data, count = batch_of(value_bytes, with_header)
    reply = stream_reply(data)
    scanner = kernel.ReplyScanner()

    def records() -> object:
        return kernel.encode_append(data, 0, kernel.parse_batch(data, 0), None, True)

    def packed() -> object:
        return kernel.check_entries(data, 0, kernel.parse_batch(data, 0), None, True)

    def fetch() -> object:
        return kernel.entries_to_batches(
            reply,
            0,
            len(reply),
            bias=0,
            max_bytes=1 << 30,
            leader_epoch=0,
            log_append_time=False,
            native=native_json,
        )

    def scan() -> object:
        return scanner.feed(reply, 0, len(reply))

    figures = [nanoseconds(run, count) for run in (records, packed, fetch, scan)]
    return f"{value_bytes:>6} B  {'yes' if with_header else 'no':>7}" + "".join(
        f"{n:>10.0f}" for n in figures
    )


def main() -> None:
    form = "compiled" if kernel.ACCELERATED else "uncompiled"
    lines = [f"record kernel, {form}; ns per record, batches of {BATCH_BYTES // 1024} KB"]
    columns = ("records", "packed", "fetch", "scan")
    lines.append(f"{'value':>8}  {'header':>7}" + "".join(f"{column:>10}" for column in columns))
    lines += [measure(value_bytes, header) for value_bytes in (100, 1024) for header in (False, True)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
