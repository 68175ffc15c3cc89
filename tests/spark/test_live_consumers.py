"""The rules of statuses on simulated consumers: live ones are never critical, others are found by name.

The rules are those of tests.spark.reckoning.status, which Spark has to equal.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sf

from korvet.spark.report.alerts import KINDS
from korvet.spark.report.thresholds import CRITICAL
from korvet.spark.tables.health import Rules, partition_lag, partition_status, recent_commits
from korvet.spark.tables.readers import ENDS
from tests.spark.reckoning.consumers import (
    DAY,
    END,
    HOUR,
    LIVE,
    Consumer,
    daily,
    restarting,
    rewound,
    steady,
    stopped,
    stuck,
)
from tests.spark.reckoning.status import MINUTE, STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

COMMITS = (
    "group string, topic string, partition int, committed_offset bigint, commit_ms bigint, "
    "tombstone boolean, src_offset bigint"
)
RECORDS = "topic string, partition int, offset bigint, ms bigint"
UNCOMMITTED = "group string, topic string, partition int, assigned_ms bigint"
CRITICALS = {status for status in STATUSES if KINDS.get(status.lower()) == CRITICAL}


def live_consumers(count: int, seed: int) -> list[Consumer]:
    """Consumers of every kind."""
    return [
        LIVE[number % len(LIVE)](
            random.Random(seed * 100_000 + number), f"{LIVE[number % len(LIVE)].__name__}-{number}"
        )
        for number in range(count)
    ]


def moments(chance: random.Random, count: int) -> list[int]:
    """Times of the last day, spread over it."""
    step_ms = DAY // count
    return [END - DAY + number * step_ms + chance.randrange(step_ms) for number in range(count)]


def check_live(count: int, seed: int, times: int) -> Counter[tuple[str, str]]:
    """Returns how often each kind had each status."""
    wrong, seen = [], Counter()
    for number, consumer in enumerate(live_consumers(count, seed)):
        kind = consumer.name.partition("-")[0]
        for now_ms in moments(random.Random(number), times):
            found = consumer.status(now_ms)
            seen[kind, found] += 1
            if found in CRITICALS:
                wrong.append((consumer.name, found, (now_ms - END + DAY) / HOUR))
    assert not wrong, (len(wrong), wrong[:20])
    return seen


def test_no_live_consumer_is_critical() -> None:
    seen = check_live(1000, 1, 24)
    # Most are OK or wait for their next run; some of the slow ones never catch up.
    by_status: Counter[str] = Counter()
    for (_, found), times in seen.items():
        by_status[found] += times
    assert by_status["OK"] > 12_000, seen
    assert {kind for kind, found in seen if found == "WARNING"} <= {"slow", "new"}
    assert seen["slow", "WARNING"] > 0
    assert seen["daily", "BEHIND"] > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_live_consumer_of_many_days_is_critical(seed: int) -> None:
    check_live(2000, seed, 96)


def broken_consumers() -> dict[str, list[Consumer]]:
    """Consumers with a fault at noon of the last day, by the name that is expected."""
    noon = END - 12 * HOUR
    chance = random.Random(7)
    found: dict[str, list[Consumer]] = defaultdict(list)
    for number, kind in enumerate((steady, restarting, restarting, restarting, *LIVE[:2])):
        found["STOPPED"].append(stopped(_busy(kind(chance, f"stopped-{number}")), noon))
    found["STOPPED"].append(stopped(_busy(daily(chance, "stopped-daily")), END - 6 * DAY))
    for number in range(3):
        back = rewound(_busy(restarting(chance, f"rewound-{number}")), noon, 400, goes_on=number > 0)
        found["REWIND"].append(back)
    for number in range(2):
        lost = stopped(_busy(steady(chance, f"lost-{number}")), noon)
        found["LOST"].append(replace(lost, log_start=lost.positions[-1] + 5))
    for number in range(4):
        found["STALLED"].append(stuck(_busy(restarting(chance, f"stuck-{number}")), noon))
    for number in range(2):
        # Its clients commit only what has changed: the group is alive, but not here.
        silent = stopped(_busy(restarting(chance, f"silent-{number}")), noon)
        found["STALLED"].append(replace(silent, mate=restarting(chance, f"mate-{number}")))
    ahead = restarting(chance, "ahead")
    found["AHEAD"].append(replace(ahead, positions=[position + 10**6 for position in ahead.positions]))
    return found


def _busy(consumer: Consumer) -> Consumer:
    """The consumer, with a record a minute at least."""
    extra = range(END - 36 * HOUR, END, MINUTE)
    appended = sorted([*consumer.appended, *extra])
    positions = [bisect_right(appended, at_ms) for at_ms in consumer.times]
    return replace(consumer, appended=appended, positions=positions)


def moment_of(consumer: Consumer) -> int:
    """When the fault is looked for: in the evening, but before a rewound consumer is back where it was."""
    return END - 12 * HOUR + 10 * MINUTE if consumer.name.startswith("rewound") else END - 1


def test_each_fault_is_found_by_its_name() -> None:
    broken = broken_consumers()
    assert sum(map(len, broken.values())) == 19
    wrong = [
        (consumer.name, expected, consumer.status(moment_of(consumer)))
        for expected, consumers in broken.items()
        for consumer in consumers
        if consumer.status(moment_of(consumer)) != expected
    ]
    assert not wrong


def frames(spark: SparkSession, consumers: Sequence[Consumer], now_ms: int) -> tuple[DataFrame, ...]:
    """The commits, records and ends as of a time. Each consumer is a group, and has a topic of its name."""
    commits, records, ends = [], [], []
    for consumer in consumers:
        for part in filter(None, (consumer, consumer.mate)):
            kept = part.kept(now_ms)
            commits += [
                (consumer.name, part.name, 0, one.offset, one.at_ms, False, number)
                for number, one in enumerate(kept)
            ]
            facts = part.facts(now_ms)
            assert facts is not None
            first = max(part.log_start, min(one.offset for one in facts.habits.window))
            end = facts.log_end
            records += [(part.name, 0, offset, part.appended[offset]) for offset in range(first, end or 0)]
            ends.append((part.name, 0, end, part.log_start, 0))
    return (
        spark.createDataFrame(commits, COMMITS).withColumn("src_ts", sf.timestamp_millis("commit_ms")),
        spark.createDataFrame(records, RECORDS).withColumn("timestamp", sf.timestamp_millis("ms")),
        spark.createDataFrame(ends, ENDS),
    )


@pytest.mark.spark
def test_spark_finds_the_same(spark: SparkSession) -> None:
    """Also partitions without a commit: assigned for long, for a moment, for an unknown time, and of a topic
    without records.
    """
    consumers = [*live_consumers(40, 2), *(one for same in broken_consumers().values() for one in same)]
    now_ms, rules = END - 1, Rules()
    commits, records, ends = frames(spark, consumers, now_ms)
    busy = next(one.name for one in consumers if one.log_start == 0 and one.name.startswith("steady"))
    empty = spark.createDataFrame([("empty", 0, 0, 0, 0)], ENDS)
    assigned = [("never", busy), ("joining", busy), ("unclear", busy)]
    assigned += [("waiting", "empty"), ("lost-topic", "deleted")]
    # Coordinators don't tell since when.
    since: dict[str, int | None] = {"joining": now_ms - MINUTE, "unclear": None}
    uncommitted = [(group, topic, 0, since.get(group, now_ms - HOUR)) for group, topic in assigned]
    lag = partition_lag(
        recent_commits(commits, rules.window_commits),
        records,
        now_ms,
        ends.union(empty),
        spark.createDataFrame(uncommitted, UNCOMMITTED),
    )
    rows = partition_status(lag, now_ms, rules).collect()
    mates = {one.mate.name for one in consumers if one.mate}
    found = {row["group"]: row["status"] for row in rows if row["topic"] not in mates}
    expected = {one.name: one.status(now_ms) for one in consumers}
    unknown = dict.fromkeys(("joining", "unclear"), "UNKNOWN")
    assert found == {**expected, **unknown, "never": "UNCOMMITTED", "waiting": "OK"}
    assert {*found.values()} >= {"OK", "BEHIND", *CRITICALS}
