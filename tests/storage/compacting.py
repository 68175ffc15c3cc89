"""Compacted topics for tests: appends of records with keys, compactions, and what a log then holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from korvet.log.compaction.compactor import CompactionRules, Compactor, Pace
from korvet.records.kernel import encode_append_records
from korvet.redis.commands import Commands
from tests.storage.batches import decode
from tests.support.logs import append_own, read_log

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.store import Store
    from tests.storage.conftest import Bench


DAY_MS = 86_400_000


NOW_MS = 1_800_000_000_000


RULES = CompactionRules(DAY_MS, 0, None, 0.0)


COMPACT = {"cleanup.policy": "compact"}


ALL = 1 << 24


Row = tuple[bytes | None, bytes | None, int]


assignments = pytest.mark.parametrize("assignment", ["clock", "dense"])


class Watched(Commands):
    """Calls `act` before the first call of one function."""

    def __init__(self, store: Store, before: str, act: Callable[[], None]) -> None:
        super().__init__(store.commands.keyspace, store.router)
        self.before = before
        self.act = act

    def fcall(
        self, name: str, keys: Sequence[bytes], *args: bytes | str | int, read: bool = False
    ) -> asyncio.Future[Any]:
        if name == self.before:
            self.before = ""
            self.act()
        return super().fcall(name, keys, *args, read=read)


def compacted_log(bench: Bench, assignment: str = "clock", name: str = "t") -> PartitionLog:
    return bench.log(name, configs=COMPACT, offset_assignment=assignment)


def compactor(bench: Bench, log: PartitionLog, map_bytes: int = 1 << 27) -> Compactor:
    return Compactor(bench.store.commands, log, Pace(1e12), map_bytes)


def append(bench: Bench, log: PartitionLog, rows: Sequence[Row]) -> list[int]:
    """Append records; returns their offsets."""
    base = bench.run(append_own(log, encode_append_records(rows))).base_offset
    return list(range(base, base + len(rows)))


def compact(
    bench: Bench, log: PartitionLog, rules: CompactionRules = RULES, now_ms: int = NOW_MS, **options: Any
) -> int:
    return bench.run(compactor(bench, log, **options).compact(rules, now_ms))


def contents(bench: Bench, log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Key and value by offset, as a consumer reads them from the start."""

    async def read() -> dict[int, tuple[bytes | None, bytes | None]]:
        found = {}
        bounds = await log.bounds()
        offset = bounds.log_start
        while offset < bounds.log_end:
            fetched = await read_log(log, offset, ALL)
            found |= {record.offset: (record.key, record.value) for record in decode(fetched.data)}
            offset = fetched.next_offset
        return found

    return bench.run(read())


def newest(rows: Sequence[Row], offsets: Sequence[int]) -> dict[int, tuple[bytes | None, bytes | None]]:
    last = {row[0]: offset for row, offset in zip(rows, offsets, strict=True)}
    return {offset: row[:2] for row, offset in zip(rows, offsets, strict=True) if last[row[0]] == offset}


def shadows(bench: Bench) -> list[bytes]:
    found: list[bytes] = bench.client.keys(f"{{{bench.prefix}:*:compact*")
    return found
