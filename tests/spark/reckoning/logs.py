"""Partitions as a coordinator, clients and Redis applications write them, and what their readers may see."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from korvet.offsets.packing import entry_id, pack

if TYPE_CHECKING:
    from tests.spark.keyspace import Keyspace

COMMIT, ABORT = "commit", "abort"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a stream. outcome: of a transaction marker."""

    offset: int
    appended_ms: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    producer: int | None = None
    outcome: str | None = None


@dataclass
class Log:
    """One partition, in Redis and as a list of entries. Entries are added in the order of time."""

    keyspace: Keyspace
    topic: str
    partition: int
    dense: bool
    entries: list[Entry] = field(default_factory=list)
    end: int = 0
    added: int = 0
    begun: dict[int, int] = field(default_factory=dict)
    """Where each open transaction began, by producer, also if its first record was deleted since."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producers, first offsets and markers."""

    @property
    def stream(self) -> str:
        return f"korvet:{self.topic}:{self.partition}"

    @property
    def start(self) -> int:
        """0 until an entry is deleted, then the offset of the first one that remains."""
        if self.added == len(self.entries):
            return 0
        return self.entries[0].offset if self.entries else self.end

    def append(
        self,
        at_ms: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int | None = None,
        producer: int | None = None,
    ) -> int:
        """Add a record, of a transaction if it has a producer. Returns its offset."""
        ms = at_ms if timestamp_ms is None else timestamp_ms
        fields: list[bytes | str] = []
        for name, data in ((b"key", key), (b"value", value)):
            fields += [] if data is None else [name, data]
        if producer is not None:
            fields += [b"pid", str(producer), b"epoch", b"0"]
        offset = self._next(at_ms)
        fields += [b"ts", str(ms - int(self._id(offset).partition("-")[0]))]
        if producer is not None:
            self.keyspace.begin(self.topic, self.partition, producer, offset)
            self.begun.setdefault(producer, offset)
        return self._add(Entry(offset, at_ms, ms, key, value, producer), *fields)

    def mark(self, at_ms: int, producer: int, outcome: str) -> None:
        """Add the marker that ends a producer's transaction."""
        entry = Entry(self._next(at_ms), at_ms, at_ms, producer=producer, outcome=outcome)
        self._add(entry, b"ctl", outcome, b"pid", str(producer), b"epoch", b"0")
        self.keyspace.end(self.topic, self.partition, producer, entry.offset, outcome)
        first = self.begun.pop(producer, None)
        if first is not None and outcome == ABORT:
            self.aborted.append((producer, first, entry.offset))

    def native(self, at_ms: int) -> int:
        """Add an entry as a Redis application does. Its timestamp is the time in its ID."""
        offset = self._next(at_ms)
        return self._add(Entry(offset, at_ms, offset >> 10), b"sku", b"42")

    def trim(self, keep: int) -> None:
        """Delete all but the newest entries, as retention does."""
        self.keyspace.client.xtrim(self.stream, maxlen=keep, approximate=False)
        self.entries = self.entries[-keep:] if keep else []

    def delete(self, offset: int) -> None:
        """Delete one entry, as XDEL does."""
        assert self.keyspace.client.xdel(self.stream, self._id(offset)) == 1
        self.entries = [entry for entry in self.entries if entry.offset != offset]

    def open_producers(self) -> set[int]:
        """Returns the producers with an open transaction."""
        return {entry.producer for entry in self.opened() if entry.producer is not None}

    def committed(self) -> list[Entry]:
        """Returns the records that count, also those after open transactions."""
        return self._judged()[0]

    def opened(self) -> list[Entry]:
        """Returns the records of transactions without a marker."""
        return self._judged()[1]

    def stable(self) -> list[Entry]:
        """Returns the records that a consumer with read_committed gets: it waits for open transactions."""
        limit = min([self.end, *self.begun.values()])
        return [entry for entry in self.committed() if entry.offset < limit]

    def _judged(self) -> tuple[list[Entry], list[Entry]]:
        """The records that count, and those of open transactions. Deleted markers change nothing."""
        counted, opened = [], []
        for entry in self.entries:
            if entry.outcome is not None:
                continue
            ranges = [found for found in self.aborted if found[0] == entry.producer]
            if entry.producer in self.begun and entry.offset >= self.begun[entry.producer]:
                opened.append(entry)
            elif not any(first <= entry.offset < marker for _, first, marker in ranges):
                counted.append(entry)
        return counted, opened

    def _next(self, at_ms: int) -> int:
        return self.end if self.dense else max(self.end, pack(at_ms, 0))

    def _id(self, offset: int) -> str:
        return entry_id(offset, bias=int(self.dense))

    def _add(self, entry: Entry, *fields: bytes | str) -> int:
        self.keyspace.add(self.topic, self.partition, self._id(entry.offset), *fields)
        self.entries.append(entry)
        self.end = entry.offset + 1
        self.added += 1
        return entry.offset
