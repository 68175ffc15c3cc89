"""A week of consumer groups on a simulated clock: every status, anomaly and lag, computed by hand.

Topics `orders` (clock offsets) and `ledger` (dense) get a record every full hour in each partition. Groups
commit a minute later. Record h is the record of hour h; a week has 168 hours.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.packing import pack
from korvet.offsets.partition import partition_for
from korvet.offsets.schema import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.readers import ENDS
from tests.spark.test_views import member, stable

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from korvet.offsets.schema import GroupMetadataValue

pytestmark = pytest.mark.spark

MINUTE, HOUR = 60_000, 3_600_000
DAY = 24 * HOUR
MONDAY = 1_699_833_600_000
NOW = MONDAY + 7 * DAY
HOURS = 168


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def clock(hour: int) -> int:
    """Returns the offset of record `hour` of orders."""
    return pack(MONDAY + hour * HOUR, 0)


def after(count: int) -> int:
    """The committed offset after this number of records of orders/0."""
    return clock(count - 1) + 1 if count else 0


@dataclass
class Week:
    """The records of `__consumer_offsets`, out of order."""

    written: list[tuple[int, str, bytes, bytes | None]] = field(default_factory=list)

    def commit(self, group: str, at_ms: int, topic: str, partition: int, offset: int | None) -> None:
        key = encode_key(OffsetCommitKey(group, topic, partition))
        value = OffsetCommitValue(offset or 0, commit_timestamp_ms=at_ms)
        self.written.append((at_ms, group, key, None if offset is None else encode_value(value)))

    def hourly(self, group: str, position: Callable[[int], int], hours: range = range(HOURS)) -> None:
        """Commit on orders/0 every hour, after reading `position(hour)` records."""
        for hour in hours:
            self.commit(group, MONDAY + hour * HOUR + MINUTE, "orders", 0, after(max(0, position(hour))))

    def state(self, group: str, value: GroupMetadataValue) -> None:
        key = encode_key(GroupMetadataKey(group))
        self.written.append((value.current_state_timestamp_ms, group, key, encode_value(value)))

    def rows(self) -> list[tuple[Any, ...]]:
        ends: dict[int, int] = defaultdict(int)
        rows = []
        for at_ms, group, key, value in sorted(self.written, key=lambda record: record[0]):
            partition = partition_for(group)
            rows.append(
                (key, value, "__consumer_offsets", partition, ends[partition], moment(at_ms), 0, None)
            )
            ends[partition] += 1
        return rows


def the_week() -> Week:
    week = Week()
    week.hourly("steady", lambda hour: hour + 1)
    week.hourly("slow", lambda hour: hour // 2)
    week.hourly("catching-up", lambda hour: 2 * hour - 177)
    week.hourly("stuck", lambda hour: min(hour, 100))
    week.hourly("stopped", lambda hour: hour + 1, range(81))
    week.hourly("rewound", lambda hour: 50 if hour == 167 else hour - 5)
    week.hourly("recovered", lambda hour: 10 if hour == 30 else hour - 5)
    week.hourly("on-holiday", lambda hour: hour + 1, range(60))
    week.hourly("on-holiday", lambda hour: hour + 1, range(72, HOURS))
    for hour in range(HOURS):
        week.commit("book-keeper", MONDAY + hour * HOUR + MINUTE, "ledger", 0, max(0, hour - 7))
    week.commit("fresh", NOW - 30 * MINUTE, "orders", 1, 0)
    week.commit("just-done", NOW - 10 * MINUTE, "quick", 0, 0)
    week.commit("ahead", NOW - HOUR, "orders", 1, pack(NOW + DAY, 0))
    week.commit("huge", NOW - HOUR, "ledger", 0, 2**63 - 1)
    week.commit("negative", NOW - HOUR, "orders", 1, -5)
    week.commit("orphan", MONDAY + 10 * HOUR, "no-such-topic", 3, 5)
    week.commit("deleted", MONDAY + HOUR, "orders", 0, after(1))
    week.commit("deleted", MONDAY + 2 * HOUR, "orders", 0, None)
    week.commit("empty", MONDAY + HOUR, "orders", 1, after(HOURS))
    week.commit("far", NOW - HOUR, "ledger", 0, 169)
    # Removed with their topic, and a topic that was created again.
    week.commit("former", MONDAY + HOUR, "no-such-topic", 3, 5)
    week.commit("former", MONDAY + HOUR, "ledger", 0, 170)
    week.commit("former", MONDAY + 2 * HOUR, "no-such-topic", 3, None)
    week.commit("former", MONDAY + 2 * HOUR, "ledger", 0, None)
    a, b = member("a", 0), member("b", 0, 1)
    week.state("steady", stable(1, MONDAY, [a]))
    week.state("steady", stable(2, MONDAY + DAY, [a, member("b", 1)]))
    week.state("steady", stable(3, MONDAY + 2 * DAY, [b]))
    week.state("empty", stable(4, MONDAY, [member("e", 1)]))
    week.state("empty", stable(5, MONDAY + 2 * HOUR, []))
    week.state("idle", stable(1, MONDAY, [member("i")]))
    return week


def topic_records() -> list[tuple[str, int, int, datetime]]:
    hours = range(HOURS)
    records = [("orders", part, clock(h), moment(MONDAY + h * HOUR)) for part in (0, 1) for h in hours]
    records += [("ledger", 0, hour, moment(MONDAY + hour * HOUR)) for hour in hours]
    # One record of 50 s ago, and one of tomorrow, which doesn't count.
    return [
        *records,
        ("quick", 0, pack(NOW - 50_000, 0), moment(NOW - 50_000)),
        ("orders", 0, pack(NOW + 1, 0), moment(NOW + 1)),
    ]


def topic_ends() -> list[tuple[str, int, int, int, int]]:
    ends = [("orders", 0, clock(167) + 1), ("orders", 1, clock(167) + 1), ("ledger", 0, 168)]
    return [(*end, 0, 0) for end in (*ends, ("quick", 0, pack(NOW - 50_000, 1)))]


# Status, unread records, wait of the first one in ms, computed by hand.
EXPECTED = {
    ("steady", "orders", 0): ("OK", 0, 0),
    # Member b has had this partition for days.
    ("steady", "orders", 1): ("UNCOMMITTED", 168, None),
    # Records 83 to 167 are unread.
    ("slow", "orders", 0): ("WARNING", 85, 85 * HOUR),
    # Record 157 is next, and the lag decreases from commit to commit.
    ("catching-up", "orders", 0): ("BEHIND", 11, 11 * HOUR),
    ("stuck", "orders", 0): ("STALLED", 68, 68 * HOUR),
    # The window's ten commits span nine hours, the last was 87 hours ago.
    ("stopped", "orders", 0): ("STOPPED", 87, 87 * HOUR),
    ("rewound", "orders", 0): ("REWIND", 118, 118 * HOUR),
    # The lag is always six records: it doesn't decrease.
    ("recovered", "orders", 0): ("WARNING", 6, 6 * HOUR),
    ("on-holiday", "orders", 0): ("OK", 0, 0),
    ("book-keeper", "ledger", 0): ("WARNING", 8, 8 * HOUR),
    # One commit says nothing about habits.
    ("fresh", "orders", 1): ("BEHIND", 168, 168 * HOUR),
    ("just-done", "quick", 0): ("UNKNOWN", 1, 50_000),
    ("ahead", "orders", 1): ("AHEAD", 0, 0),
    ("huge", "ledger", 0): ("AHEAD", 0, 0),
    ("far", "ledger", 0): ("AHEAD", 0, 0),
    ("negative", "orders", 1): ("BEHIND", 168, 168 * HOUR),
    ("orphan", "no-such-topic", 3): ("OK", 0, 0),
    ("empty", "orders", 1): ("OK", 0, 0),
}


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Tables:
    source = spark.createDataFrame(the_week().rows(), SCHEMA).cache()
    columns = "topic string, partition int, offset bigint, timestamp timestamp"
    records = spark.createDataFrame(topic_records(), columns).cache()
    return Tables(source, records, NOW, ends=spark.createDataFrame(topic_ends(), ENDS))


def test_status_and_lag(tables: Tables) -> None:
    rows = tables.view("partition_status").collect()
    got = {
        (r["group"], r["topic"], r["partition"]): (r["status"], r["record_lag"], r["lag_ms"]) for r in rows
    }
    assert got == EXPECTED
    complete = {(r["group"], r["partition"]): (r["complete"], r["usual_ms"]) for r in rows}
    assert complete["steady", 0] == (1.0, HOUR)
    assert complete["steady", 1] == (0.0, None)
    assert complete["fresh", 1] == (0.1, None)


def test_status_of_groups(tables: Tables) -> None:
    rows = {row["group"]: row for row in tables.view("group_status").collect()}
    assert {name: row["status"] for name, row in rows.items()} == {
        **{group: status for (group, _, _), (status, _, _) in EXPECTED.items()},
        "idle": "OK",
    }
    slow, idle = rows["slow"], rows["idle"]
    assert (slow["record_lag"], slow["time_lag_ms"], slow["commit_age_ms"]) == (85, 85 * HOUR, 59 * MINUTE)
    assert (slow["partitions_warning"], slow["worst_topic"], slow["worst_partition"]) == (1, "orders", 0)
    assert (idle["partitions"], idle["record_lag"], idle["member_count"]) == (0, 0, 1)


def test_anomalies(tables: Tables) -> None:
    found = {
        (r["group"], r["kind"], r["commit_ms"]): (r["previous_offset"], r["interval_ms"])
        for r in tables.view("anomalies").collect()
    }
    assert found == {
        ("rewound", "rewind", NOW - 59 * MINUTE): (after(161), HOUR),
        ("recovered", "rewind", MONDAY + 30 * HOUR + MINUTE): (after(24), HOUR),
        ("on-holiday", "gap", MONDAY + 72 * HOUR + MINUTE): (after(60), 13 * HOUR),
        ("ahead", "past_end", NOW - HOUR): (None, None),
        ("huge", "past_end", NOW - HOUR): (None, None),
        ("far", "past_end", NOW - HOUR): (None, None),
        # All records of the week, as of Monday.
        ("empty", "past_end", MONDAY + HOUR): (None, None),
        ("orphan", "unknown_partition", MONDAY + 10 * HOUR): (None, None),
    }


def test_who_is_stale_and_what_expires(tables: Tables) -> None:
    stale = {row["group"]: row["idle_ms"] for row in tables.view("stale_groups").collect()}
    assert stale == {
        "stopped": 88 * HOUR - MINUTE,
        "orphan": 158 * HOUR,
        "empty": 167 * HOUR,
    }
    expiring = {row["group"]: row["expires_in_ms"] for row in tables.view("expiring_offsets").collect()}
    # A week after the commit; for the group that had members, a week after it became empty.
    assert expiring == {"orphan": 10 * HOUR, "empty": 2 * HOUR}


def test_rebalances_and_members(tables: Tables) -> None:
    rows = tables.view("rebalances").where("group = 'steady'").orderBy("src_offset").collect()
    assert [(r["kind"], r["joined"], r["left"], r["previous_lasted_ms"]) for r in rows] == [
        ("formed", 1, 0, None),
        ("rebalanced", 1, 0, DAY),
        ("rebalanced", 0, 1, DAY),
    ]
    seen = {
        r["member_id"]: (r["active"], r["assigned_partitions"], r["first_seen_ts"], r["last_seen_ts"])
        for r in tables.view("members").where("group = 'steady'").collect()
    }
    # Spark's rows contain local times without a zone.
    days = (moment(MONDAY + day * DAY).astimezone().replace(tzinfo=None) for day in range(3))
    monday, tuesday, wednesday = days
    assert seen == {"a": (False, 1, monday, tuesday), "b": (True, 2, tuesday, wednesday)}
