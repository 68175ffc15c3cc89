"""The forecast of memory: what retention needs, and when a server is full."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from korvet.outlook.memory_forecast import (
    PERIOD_MS,
    Forecast,
    Keeping,
    describe,
    forecast,
    growth_of,
    memory_findings,
    usage,
)

GB, HOUR_S, DAY_MS = 10**9, 3_600, 86_400_000
NOW_MS = int(datetime(2026, 11, 28, 18, 10, tzinfo=UTC).timestamp() * 1000)
WEEK = Keeping(7 * DAY_MS, None)


def info(used: float, limit: float = 16 * GB, dataset: float | None = None) -> dict[str, str]:
    return {
        "used_memory": str(int(used)),
        "used_memory_dataset": str(int(used if dataset is None else dataset)),
        "mem_not_counted_for_evict": "0",
        "maxmemory": str(int(limit)),
        "total_system_memory": str(64 * GB),
    }


def simulated(rate: float, keeping: Keeping, age_s: int, factor: float = 1.5) -> tuple[float, list[int]]:
    """A partition that has taken `rate` bytes in a second for `age_s`: its memory, korvet_rate's reply."""
    kept_s = min(age_s, (keeping.retention_ms or 10**15) / 1000)
    live = min(rate * kept_s, keeping.retention_bytes or math.inf)
    hour_s = min(live / rate, HOUR_S)
    return factor * live, [int(rate * hour_s), NOW_MS - int(hour_s * 1000), int(live), 0]


def of_partitions(*partitions: tuple[float, Keeping, int], limit: float = 16 * GB) -> Forecast:
    found = [simulated(*each) for each in partitions]
    growths = [
        growth_of(f"t{number}", each[1], reply, NOW_MS)
        for number, (each, (_, reply)) in enumerate(zip(partitions, found, strict=True))
    ]
    return forecast(info(sum(memory for memory, _ in found), limit), growths, 0)


def test_a_growing_topic() -> None:
    """1.5 x 52 kB/s: 5 GB after 18 h, 16 GB after 57 h, 47 GB after 7 days."""
    found = of_partitions((52_000, WEEK, 18 * HOUR_S))
    assert found.full_s == pytest.approx(16 * GB / 1.5 / 52_000 - 18 * HOUR_S, rel=0.01)
    assert found.needed_bytes == pytest.approx(1.5 * 52_000 * 7 * 86_400, rel=0.01)
    assert found.is_short
    assert describe(found, NOW_MS) == (
        "5.05 GB of 16 GB; at the last hour's rate full in 39 h (Mon 09:08 UTC). Retention needs 47.2 GB: "
        "t0 47.2 GB (7 d at 52 kB/s). Set retention.bytes, a shorter retention.ms, or create topics with "
        "storage.layout=batch and compress"
    )
    assert [each.state for each in memory_findings({"a": found}, NOW_MS)] == ["warning"]


def test_a_steady_topic() -> None:
    """It has what retention keeps, whether by time or by size: the server stays 95 % full."""
    by_time = of_partitions((1.5e4, WEEK, 30 * 86_400), limit=14.3 * GB)
    by_size = of_partitions((1e6, Keeping(None, 9 * GB), 86_400), limit=14.3 * GB)
    for found in (by_time, by_size):
        assert math.isinf(found.full_s)
        assert found.needed_bytes == pytest.approx(found.used_bytes, rel=0.01)
        assert not found.is_short
        assert "full" not in describe(found, NOW_MS)


def test_a_topic_that_reaches_its_retention_first() -> None:
    found = of_partitions((1e5, Keeping(DAY_MS, None), 12 * HOUR_S), (1e4, WEEK, 12 * HOUR_S), limit=22 * GB)
    assert 1.5 * (1e5 + 1e4) * 86_400 < 22 * GB < 1.5 * (1e5 * 86_400 + 1e4 * 7 * 86_400)
    after_a_day = (22 * GB / 1.5 - 1e5 * 86_400) / 1e4
    assert found.full_s == pytest.approx(after_a_day - 12 * HOUR_S, rel=0.01)


def test_a_burst_of_a_young_topic_is_no_alarm() -> None:
    found = of_partitions((2e6, WEEK, 60))
    assert found.needed_bytes > found.limit_bytes
    assert not found.is_short
    assert "at the rate of 1 min, which is short for a forecast, full in" in describe(found, NOW_MS)
    assert memory_findings({"a": found}, NOW_MS)[0].state == "ok"


def test_a_young_topic_beside_large_ones_does_not_hide_the_alarm() -> None:
    assert of_partitions((1e6, WEEK, HOUR_S), (1e3, WEEK, 60)).is_short


def test_retention_shorter_than_an_hour() -> None:
    """All records are younger than an hour, and the rate is known nevertheless."""
    found = of_partitions((1e6, Keeping(600_000, None), 86_400))
    assert found.needed_bytes == pytest.approx(found.used_bytes, rel=0.01)
    assert math.isinf(found.full_s)


@pytest.mark.parametrize(
    ("kept_bytes", "said"),
    [(10**9, "t0 1.5 GB (retention.bytes, 52 kB/s)"), (10**11, "t0 47.2 GB (7 d at 52 kB/s)")],
)
def test_the_retention_that_ends_the_growth_is_named(kept_bytes: int, said: str) -> None:
    """retention.ms has a default, so topics with retention.bytes have both."""
    found = of_partitions((52_000, Keeping(WEEK.retention_ms, kept_bytes), 2 * HOUR_S))
    assert f": {said}" in describe(found, NOW_MS)


def test_no_retention() -> None:
    found = of_partitions((1e5, Keeping(None, None), 2 * HOUR_S))
    assert math.isinf(found.needed_bytes)
    assert "Retention needs no end: t0 without end (100 kB/s, no retention)" in describe(found, NOW_MS)


def test_compacted_topics_and_idle_ones_are_left_out() -> None:
    growths = [
        growth_of(
            "compacted", Keeping(None, None, grows=False), [10**9, NOW_MS - PERIOD_MS, 10**9, 0], NOW_MS
        ),
        growth_of("idle", WEEK, [0, NOW_MS - PERIOD_MS, 10**9, 0], NOW_MS),
    ]
    found = forecast(info(3 * GB), growths, 0)
    assert (found.needed_bytes, found.full_s) == (3 * GB, math.inf)
    assert describe(found, NOW_MS) == "3 GB of 16 GB"


def test_the_machines_memory_is_the_limit_without_maxmemory() -> None:
    assert forecast(info(GB, 0), [], 0).limit_bytes == 64 * GB
    assert forecast(info(GB, 0), [], 2 * GB).limit_bytes == 2 * GB


def test_the_servers_own_factor() -> None:
    """It is measured once there is enough payload, and other data on the server do not count without end."""
    reply = [10**9, NOW_MS - PERIOD_MS, 10**9, 0]
    growths = [growth_of("t", Keeping(None, 2 * 10**9), reply, NOW_MS)]
    assert forecast(info(1.2 * GB), growths, 0).needed_bytes == pytest.approx(2.4 * GB)
    assert forecast(info(14 * GB), growths, 0).needed_bytes == pytest.approx(22 * GB)
    small = [growth_of("t", Keeping(None, 2 * 10**6), [10**6, NOW_MS - PERIOD_MS, 10**6, 0], NOW_MS)]
    assert forecast(info(8e6), small, 0).needed_bytes == pytest.approx(9.5e6)


def test_a_full_server() -> None:
    assert "16 GB of 16 GB; full. " in describe(
        of_partitions((1e6, WEEK, 20_000), limit=16 * GB)._replace(used_bytes=16 * GB, full_s=0), NOW_MS
    )


@pytest.mark.parametrize(
    ("used", "state", "effect"),
    [
        (0.89, "ok", "14.2 GB of 16 GB"),
        (0.9, "warning", "; clients' records will be refused soon: raise maxmemory, lower retention, or"),
        (1, "fault", "; clients' records and new topics are refused: raise maxmemory, lower retention, or"),
    ],
)
def test_one_line_has_the_memory_in_use_and_the_forecast(used: float, state: str, effect: str) -> None:
    (found,) = memory_findings({"a": usage(int(used * 16 * GB), 16 * GB)}, NOW_MS)
    assert (found.subject, found.state) == ("memory", state)
    assert effect in found.text
    # The machine's memory is no limit at which the server refuses writes.
    unlimited = forecast(info(used * 16 * GB, limit=0), (), 16 * GB)
    assert unlimited is not None
    (found,) = memory_findings({"a": unlimited}, NOW_MS)
    assert (found.state, "refused" in found.text) == ("ok", False)
