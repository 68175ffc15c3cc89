"""Counts what clients fetch from a Kafka: a proxy that reads the Fetch responses that pass through it."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.support.frame_proxy import FrameProxy

if TYPE_CHECKING:
    from tests.support.frame_proxy import Take

_FETCH: Final = 1
# The first version that names topics by their IDs. All later ones have the same fields before the records.
_LEAST_VERSION: Final = 13
# A record batch: base offset and length, then the rest of which 45 bytes precede the number of records.
_BATCH_HEAD: Final = struct.Struct(">qi")
_COUNT_AT: Final = 57
_ID_BYTES: Final = 16


class FetchMeter:
    """Listens on `port` and passes everything on; see `pass_to`.

    records and record_bytes: in complete batches of Fetch responses, by topic ID. response_bytes: of all
    responses of any kind.
    """

    def __init__(self) -> None:
        self.records: Counter[bytes] = Counter()
        self.record_bytes: Counter[bytes] = Counter()
        self.response_bytes = 0
        self._lock = threading.Lock()
        self._proxy = FrameProxy(self._takes)
        self.port = self._proxy.port

    def pass_to(self, target_port: int) -> None:
        """Pass everything on to this port from now on."""
        self._proxy.target_port = target_port

    def reset(self) -> None:
        """Count from 0 again."""
        with self._lock:
            self.records.clear()
            self.record_bytes.clear()
            self.response_bytes = 0

    def close(self) -> None:
        self._proxy.close()

    def _takes(self) -> tuple[Take, Take]:
        asked: dict[int, int] = {}
        return partial(_note, asked), partial(self._count, asked)

    def _count(self, asked: dict[int, int], frame: bytes) -> bool:
        version = asked.pop(int.from_bytes(frame[:4], "big"), None)
        with self._lock:
            self.response_bytes += len(frame)
            if version is not None:
                for topic, size, records in _fetched(frame):
                    self.records[topic] += records
                    self.record_bytes[topic] += size
        return True


def _note(asked: dict[int, int], frame: bytes) -> bool:
    """Note the version of a Fetch request by its correlation ID."""
    api, version, correlation = struct.unpack_from(">hhi", frame)
    if api == _FETCH:
        if version < _LEAST_VERSION:
            raise ValueError(f"Fetch requests of version {version} name topics by their names")
        asked[correlation] = version
    return True


class _Cursor:
    """Reads the fields of a flexible message."""

    def __init__(self, frame: bytes) -> None:
        self.frame = frame
        self.at = 0

    def skip(self, size: int) -> None:
        self.at += size

    def take(self, size: int) -> bytes:
        self.at += size
        return self.frame[self.at - size : self.at]

    def number(self) -> int:
        """An unsigned varint."""
        value = shift = 0
        while True:
            byte = self.frame[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def length(self) -> int:
        """The length of a compact array or of compact bytes; 0 if it is null."""
        return max(0, self.number() - 1)

    def skip_tags(self) -> None:
        for _ in range(self.number()):
            self.number()
            self.skip(self.number())


def _fetched(frame: bytes) -> list[tuple[bytes, int, int]]:
    """Topic ID, bytes and records of each partition in a Fetch response."""
    cursor, found = _Cursor(frame), []
    # Correlation ID; throttle time, error and session.
    cursor.skip(4)
    cursor.skip_tags()
    cursor.skip(10)
    for _ in range(cursor.length()):
        topic = cursor.take(_ID_BYTES)
        for _ in range(cursor.length()):
            # Partition and error; high watermark, last stable offset and log start.
            cursor.skip(30)
            for _ in range(cursor.length()):
                cursor.skip(16)
                cursor.skip_tags()
            cursor.skip(4)
            data = cursor.take(cursor.length())
            cursor.skip_tags()
            found.append((topic, len(data), _records(data)))
        cursor.skip_tags()
    return found


def _records(data: bytes) -> int:
    """The number of records in the complete batches. Kafka may cut the last one."""
    at = records = 0
    while at + _BATCH_HEAD.size <= len(data):
        _, size = _BATCH_HEAD.unpack_from(data, at)
        end = at + _BATCH_HEAD.size + size
        if end > len(data):
            break
        records += int.from_bytes(data[at + _COUNT_AT : at + _COUNT_AT + 4], "big")
        at = end
    return records
