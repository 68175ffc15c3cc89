"""The SQL views on stored history, on rows whose answers are computed by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.questions import QUESTIONS, Objectives, answer, question_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE = 60_000
MIDNIGHT = 1_700_006_400_000  # 2023-11-15T00:00:00Z
BYTES = 1 << 20


def at(minute: int) -> datetime:
    """Returns a time relative to the midnight."""
    return datetime.fromtimestamp((MIDNIGHT + minute * MINUTE) / 1000, UTC)


def table(spark: SparkSession, name: str, rows: list[dict[str, Any]]) -> None:
    """Create the view q_<name>. Columns that rows leave out are null."""
    names = [column.name for column in TABLES[name].columns]
    assert all(set(row) <= set(names) for row in rows)
    values = [tuple(row.get(column) for column in names) for row in rows]
    spark.createDataFrame(values, TABLES[name].schema).createOrReplaceTempView(f"q_{name}")


def commit(group: str, position: int, minute: int, offset: int | None) -> dict[str, Any]:
    return {
        "group": group,
        "topic": "t",
        "partition": 0,
        "committed_offset": offset,
        "commit_ts": None if offset is None else at(minute),
        "tombstone": offset is None,
        "src_offset": position,
        "src_ts": at(minute),
    }


def lag(group: str, minute: int, unread: int, wait_ms: int | None, partition: int = 0) -> dict[str, Any]:
    key = {"group": group, "topic": "t", "partition": partition, "as_of_ts": at(minute)}
    return {**key, "record_lag": unread, "lag_ms": wait_ms}


def answers(spark: SparkSession, name: str, *columns: str) -> list[tuple[Any, ...]]:
    objectives = Objectives(max_lag_ms=5 * MINUTE, target=0.75, sample_ms=60 * MINUTE, silence_ms=10 * MINUTE)
    rows = spark.sql(question_sql(name, "q_", objectives)).orderBy(*columns[:2]).collect()
    return [tuple(row[column] for column in columns) for row in rows]


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows")
def test_who_read_what_when(spark: SparkSession) -> None:
    def state(position: int, generation: int, *members: str) -> dict[str, Any]:
        return {
            "group": "g",
            "src_offset": position,
            "generation": generation,
            "member_count": len(members),
            "member_ids": list(members),
        }

    commits = [commit("g", 1, 0, 5), commit("g", 3, 1, 9), commit("g", 4, 2, 9), commit("g", 6, 3, 7)]
    commits += [commit("g", 7, 4, None), commit("g", 8, 5, 1), commit("alone", 1, 0, 3)]
    table(spark, "offset_commits", commits)
    table(spark, "group_generations", [state(2, 1, "a"), state(5, 2, "a", "b")])
    members = [("a", "one", "/h1"), ("b", "two", "/h2")]
    table(
        spark,
        "members",
        [{"group": "g", "member_id": m, "client_id": c, "client_host": h} for m, c, h in members],
    )
    one, two = ("one", "/h1"), ("two", "/h2")
    columns = ("group", "until_ts", "from_offset", "to_offset", "after_ts", "generation", "clients")
    found = [
        (*(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row[:-1]), row[-1])
        for row in answers(spark, "reads", *columns)
    ]
    assert found == [
        ("alone", at(0), None, 3, None, None, None),
        ("g", at(0), None, 5, None, None, None),
        ("g", at(1), 5, 9, at(0), 1, [one]),
        ("g", at(3), 9, 7, at(2), 2, [one, two]),
        ("g", at(5), None, 1, None, 2, [one, two]),
    ]


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows", "new_york")
def test_service_levels_and_silences(spark: SparkSession) -> None:
    long, short = 6 * MINUTE, 5 * MINUTE
    samples = [
        lag("g", -20, 0, 0),
        lag("g", -20, 3, short, 1),
        lag("g", -10, 4, long),
        # Lasts two hours, but a sample holds for one.
        lag("g", 0, 8, long + 1),
        lag("g", 120, 0, 0),
        lag("once", 0, 1, long),
        # Partitions without a commit.
        lag("new", -20, 1, None),
        lag("new", -10, 1, None),
    ]
    table(spark, "time_lag", [{k: v for k, v in row.items() if k != "record_lag"} for row in samples])
    table(spark, "record_lag", [{k: v for k, v in row.items() if k != "lag_ms"} for row in samples])
    table(
        spark,
        "offset_commits",
        [
            commit("g", 1, -15, 5),
            commit("g", 2, 110, 9),
            commit("once", 1, -5, 4),
            commit("once", 2, 1, None),
        ],
    )
    columns = (
        "group",
        "day",
        "samples",
        "worst_lag_ms",
        "measured_ms",
        "over_ms",
        "attained",
        "budget_left_ms",
    )
    assert answers(spark, "slo_days", *columns) == [
        ("g", date(2023, 11, 14), 2, long, 20 * MINUTE, 10 * MINUTE, 0.5, -5 * MINUTE),
        ("g", date(2023, 11, 15), 1, long + 1, 60 * MINUTE, 60 * MINUTE, 0.0, -45 * MINUTE),
    ]
    # The tombstone ends the silence of "once" after six minutes.
    columns = ("group", "silent_ms", "most_unread", "longest_wait_ms", "unread_hours")
    assert answers(spark, "silences", *columns) == [
        ("g", 125 * MINUTE, 8, long + 1, pytest.approx(8 + 4 / 6)),
    ]


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows", "new_york")
def test_growth_of_topics(spark: SparkSession) -> None:
    def size(minute: int, partition: int, entries: int, appended: int, megabytes: int) -> dict[str, Any]:
        return {
            "topic": "t",
            "partition": partition,
            "entries": entries,
            "appended_entries": appended,
            "memory_bytes": megabytes * BYTES,
            "as_of_ts": at(minute),
        }

    day = 24 * 60
    table(
        spark,
        "topic_sizes",
        [
            size(0, 0, 1, 1, 1),
            size(10, 0, 10, 10, 2),
            size(10, 1, 5, 5, 1),
            size(2 * day, 0, 8, 30, 1),
            size(2 * day, 1, 5, 5, 1),
            # Created again.
            size(3 * day, 0, 7, 7, 4),
        ],
    )
    columns = ("topic", "day", "days", "entries", "appended_entries", "growth_bytes")
    assert answers(spark, "topic_growth", *columns) == [
        ("t", date(2023, 11, 15), None, 15, None, None),
        ("t", date(2023, 11, 17), 2, 13, 20, -BYTES),
        ("t", date(2023, 11, 18), 1, 7, 7, 2 * BYTES),
    ]


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows")
def test_who_owned_which_partition_when(spark: SparkSession) -> None:
    """Partition 0 moves from a to b and back, with a commit of each; b keeps partition 1 all the time."""

    def owner(member: str, topic: str, *partitions: int) -> tuple[Any, ...]:
        return (member, f"client-{member}", "/h", topic, list(partitions))

    def state(position: int, generation: int | None, kind: str, *owners: tuple[Any, ...]) -> dict[str, Any]:
        return {
            "group": kind,
            "group_type": kind,
            "src_offset": position,
            "generation": generation,
            "at_ts": at(position),
            "owners": list(owners),
        }

    identity = bytes(range(16))
    table(
        spark,
        "group_generations",
        [
            state(2, 1, "classic", owner("a", "t", 0), owner("b", "t", 1)),
            state(5, 2, "classic", owner("b", "t", 0, 1)),
            state(7, 3, "classic", owner("a", "t", 0), owner("b", "t", 1)),
            state(9, None, "classic"),
            state(1, 1, "consumer", owner("c", "AAECAwQFBgcICQoLDA0ODw", 0)),
            # No commit contains the ID of this topic.
            state(3, 1, "share", owner("d", "unseen", 0)),
        ],
    )
    made = [commit("classic", 1, 1, 5), commit("classic", 3, 3, 6), commit("classic", 4, 4, 8)]
    made += [commit("classic", 6, 6, 9), commit("consumer", 2, 2, 4) | {"topic_id": identity}]
    table(spark, "offset_commits", made)
    columns = ("member_id", "from_ts", "partition", "topic", "until_ts", "generation", "last_generation")
    columns += ("commits", "from_offset", "to_offset")
    found = [
        tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)
        for row in answers(spark, "owners", *columns)
    ]
    assert found == [
        ("a", at(2), 0, "t", at(5), 1, 1, 2, 5, 8),
        ("a", at(7), 0, "t", at(9), 3, 3, 0, None, None),
        ("b", at(2), 1, "t", at(9), 1, 3, 0, None, None),
        ("b", at(5), 0, "t", at(7), 2, 2, 1, 8, 9),
        ("c", at(1), 0, "t", None, 1, 1, 1, None, 4),
        ("d", at(3), 0, "unseen", None, 1, 1, 0, None, None),
    ]


@pytest.mark.spark
@pytest.mark.usefixtures("few_rows")
def test_what_rebalances_cost(spark: SparkSession) -> None:
    def rebalance(position: int, kind: str, previous: int | None, **more: Any) -> dict[str, Any]:
        usual = {"group": "g", "group_type": "classic", "protocol": "range", "generation": position}
        times = {"src_offset": position, "src_ts": at(position), "at_ts": at(position - 1)}
        return {**usual, **times, "kind": kind, "previous_generation": previous, **more}

    table(
        spark,
        "rebalances",
        [
            rebalance(10, "formed", None),
            # The last commit was 7 minutes before, the last join 1 minute before.
            rebalance(20, "rebalanced", 10),
            # Without a commit since, the beginning has no bound.
            rebalance(30, "rebalanced", 20),
            rebalance(40, "rebalanced", 30, protocol="cooperative-sticky"),
            rebalance(50, "emptied", 40),
            rebalance(60, "formed", 50),
            rebalance(70, "formed", None),
            rebalance(80, "rebalanced", 70, group_type="consumer"),
        ],
    )
    table(spark, "offset_commits", [commit("g", place, place, 5) for place in (5, 13, 38, 55, 75)])
    columns = ("src_offset", "kind", "unowned_at_least_ms", "unowned_at_most_ms")
    assert answers(spark, "rebalance_costs", *columns) == [
        (10, "formed", None, None),
        (20, "rebalanced", MINUTE, 7 * MINUTE),
        (30, "rebalanced", MINUTE, None),
        (40, "rebalanced", 0, 2 * MINUTE),
        (50, "emptied", None, None),
        (60, "formed", 10 * MINUTE, 10 * MINUTE),
        (70, "formed", None, None),
        (80, "rebalanced", None, None),
    ]


@pytest.mark.spark
@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_have_the_documented_columns(spark: SparkSession, name: str) -> None:
    found = answer(name, lambda needed: spark.createDataFrame([], TABLES[needed].schema))
    assert ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in found.schema) == (
        ANSWERS[name].schema
    )


@pytest.mark.parametrize("numbers", [{"target": 1.0}, {"max_lag_ms": 0}, {"silence_ms": -1}])
def test_objectives_in_range(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Objectives(**numbers)


def test_every_view_is_documented() -> None:
    from pathlib import Path  # noqa: PLC0415

    text = (Path(__file__).parents[2] / "docs" / "guides" / "history.md").read_text(encoding="utf-8")
    assert [name for name in QUESTIONS if f"`{name}`" not in text] == []
