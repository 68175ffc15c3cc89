"""Random records in the shapes that break brokers, and a digest of a record that every client can compute."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Headers = tuple[tuple[str, bytes | None], ...]

# Create times of test records: today, because of retention.
NOW_MS = time.time_ns() // 1_000_000

MAX_VALUE_BYTES = 1_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# Of a thousand values, the number of values up to each size: mostly small, a few at the limit.
_VALUE_SIZES = ((880, 200), (100, 8_000), (18, 100_000), (2, MAX_VALUE_BYTES))
_AWKWARD = (b"", b"\x00", b"\r\n", b"$-1\r\n", b"*0\r\n", b"\xff\xfe\x00", "ключ".encode(), b"key", b"ts")
_HEADER_NAMES = ("", "trace", "trace", "a", "ключ", "header.", "nullheader.x", "key", "ts", "\t", "😀")


@dataclass(frozen=True, slots=True)
class Record:
    """One record as a producer gives it. `timestamp_ms` is its create time."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int

    def digest(self) -> str:
        return digest(self.key, self.value, self.headers, self.timestamp_ms)


def digest(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] | None,
    timestamp_ms: int,
) -> str:
    """SHA-256 over an unambiguous form of the record; `Digests.java` computes the same."""
    parts = [struct.pack(">q", timestamp_ms), *_sized(key), *_sized(value)]
    present = headers or ()
    parts.append(struct.pack(">i", len(present)))
    for name, content in present:
        parts += [*_sized(name.encode()), *_sized(content)]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _sized(content: bytes | None) -> tuple[bytes, bytes]:
    if content is None:
        return struct.pack(">i", -1), b""
    return struct.pack(">i", len(content)), content


class RecordMaker:
    """A seeded source of records: nulls, binary content, duplicate and null headers, values of 0 to 1 MB."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        # Slices of an incompressible and a compressible block: drawing bytes per record would take minutes.
        self._noise = self._random.randbytes(2 * MAX_VALUE_BYTES)
        self._text = b" ".join(b"%d" % n for n in range(300_000))[:MAX_VALUE_BYTES] * 2

    def record(self, timestamp_ms: int) -> Record:
        """The next record; its create time lies in the five days before `timestamp_ms`, often close to it."""
        jitter = self._random.choice((0, 0, 1, 1_000, 3_600_000, 5 * 86_400_000))
        return Record(
            self._key(), self._value(), self._headers(), timestamp_ms - self._random.randint(0, jitter)
        )

    def _key(self) -> bytes | None:
        draw = self._random.random()
        if draw < 0.3:
            return None
        if draw < 0.4:
            return self._random.choice(_AWKWARD)
        return self._block(self._random.randint(1, 40))

    def _value(self) -> bytes | None:
        draw = self._random.random()
        if draw < 0.1:
            return None
        if draw < 0.2:
            return self._random.choice(_AWKWARD)
        weights = [weight for weight, _ in _VALUE_SIZES]
        (limit,) = self._random.choices([size for _, size in _VALUE_SIZES], weights)
        return self._block(self._random.randint(limit // 2 if limit == MAX_VALUE_BYTES else 0, limit))

    def _headers(self) -> Headers:
        count = self._random.choice((0, 0, 0, 1, 1, 2, 5))
        return tuple((self._random.choice(_HEADER_NAMES), self._header_value()) for _ in range(count))

    def _header_value(self) -> bytes | None:
        if self._random.random() < 0.3:
            return None
        return self._random.choice((*_AWKWARD, self._block(20)))

    def _block(self, size: int) -> bytes:
        source = self._noise if self._random.random() < 0.5 else self._text
        start = self._random.randint(0, MAX_VALUE_BYTES)
        return source[start : start + size]
