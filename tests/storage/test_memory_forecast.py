"""The forecast of memory, beside what a server really needs in the hours after it (its clock is moved)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from korvet.outlook.memory_forecast import PERIOD_MS, Forecast, Keeping, forecast, growth_of
from korvet.records.kernel import encode_append_records
from tests.storage.test_clock_steps import Shifted, shifted
from tests.support.logs import append_own

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from korvet.log.partition_log import PartitionLog

__all__ = ["shifted"]

MINUTE_MS = 60_000
# 200 kB in a minute.
RECORDS, RECORD_BYTES = 200, 1_000


async def result_of(call: Callable[[], Awaitable[Any]]) -> Any:
    return await call()


class Growing:
    """A partition to which records are appended every minute."""

    def __init__(self, shifted: Shifted, keeping: Keeping) -> None:
        self._shifted = shifted
        self._keeping = keeping
        self._minutes = 0
        self.log: PartitionLog = shifted.bench.log("t")

    @property
    def now_ms(self) -> int:
        seconds, microseconds = self._shifted.bench.client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    def run(self, minutes: int) -> None:
        bench = self._shifted.bench
        for _ in range(minutes):
            self._minutes += 1
            self._shifted.set_clock(self._minutes * 60)
            records = [(None, b"v" * RECORD_BYTES, self.now_ms)] * RECORDS
            bench.run(append_own(self.log, encode_append_records(records)))
            if self._keeping.retention_ms is not None:
                bench.run(self.log.trimming.trim(self._keeping.retention_ms, None, self.now_ms))

    def info(self) -> dict[str, str]:
        found: Any = self._shifted.bench.client.info("memory")
        return {name: str(value) for name, value in found.items()}

    def forecast(self, limit_bytes: int) -> Forecast:
        bench, now_ms = self._shifted.bench, self.now_ms
        keys = bench.store.commands.keyspace.partition_keys("t", 0)[:3]
        commands, from_ms = bench.store.commands, now_ms - PERIOD_MS
        reply = bench.run(result_of(lambda: commands.fcall("korvet_rate", keys, 0, from_ms, read=True)))
        found = forecast(
            self.info() | {"maxmemory": str(limit_bytes)}, [growth_of("t", self._keeping, reply, now_ms)], 0
        )
        assert found is not None
        return found


def test_a_growing_topic_within_a_tenth(shifted: Shifted) -> None:
    growing = Growing(shifted, Keeping(None, None))
    growing.run(100)
    limit_bytes = 2 * int(growing.info()["used_memory"])
    found = growing.forecast(limit_bytes)
    assert math.isinf(found.needed_bytes)
    assert found.is_short
    minutes = 0
    while int(growing.info()["used_memory"]) < limit_bytes:
        growing.run(1)
        minutes += 1
    assert 60 * minutes == pytest.approx(found.full_s, rel=0.1)


def test_what_retention_needs_within_a_tenth(shifted: Shifted) -> None:
    """Of a topic of which retention has deleted nothing yet."""
    growing = Growing(shifted, Keeping(200 * MINUTE_MS, None))
    growing.run(100)
    found = growing.forecast(10**12)
    growing.run(110)
    assert int(growing.info()["used_memory"]) == pytest.approx(found.needed_bytes, rel=0.1)


def test_no_alarm_for_a_steady_topic(shifted: Shifted) -> None:
    growing = Growing(shifted, Keeping(90 * MINUTE_MS, None))
    growing.run(100)
    for _ in range(10):
        growing.run(5)
        limit_bytes = int(1.1 * int(growing.info()["used_memory"]))
        found = growing.forecast(limit_bytes)
        assert math.isinf(found.full_s)
        assert not found.is_short


def test_a_young_topic(shifted: Shifted) -> None:
    growing = Growing(shifted, Keeping(None, None))
    growing.run(10)
    found = growing.forecast(10**12)
    assert found.age_ms == pytest.approx(9 * MINUTE_MS, abs=MINUTE_MS)
    assert not found.is_short
