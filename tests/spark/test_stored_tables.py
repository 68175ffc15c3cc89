"""Stored tables that are updated step by step, also after an interruption, equal those of the whole topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.group_records import ConsumerAssignment, ConsumerMember, GroupEpoch, OwnedPartitions
from korvet.offsets.schema import GroupMemberKey, GroupRecordKey, OffsetCommitKey, OffsetCommitValue
from korvet.offsets.wire import uuid_text
from korvet.spark.source.errors import SourceError
from korvet.spark.source.source import SCHEMA
from korvet.spark.tables.batch_tables import Tables, shaped
from korvet.spark.tables.catalog import TABLES
from korvet.spark.tables.readers import ENDS
from korvet.spark.tables.states import States
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.test_week import DAY, MONDAY, NOW, after, moment, the_week, topic_ends, topic_records

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from korvet.offsets.schema import Key, Value

pytestmark = pytest.mark.spark

RECORDS = "topic string, partition int, offset bigint, timestamp timestamp"
TOPIC_IDS = {"orders": bytes(range(16)), "unknown": bytes(range(1, 17)), "other": bytes(range(2, 18))}
THURSDAY = MONDAY + 3 * DAY + DAY // 2


class Cut(Exception):
    """The process ends here."""


def test_nothing_stored_yet(spark: SparkSession, tmp_path: Path) -> None:
    stored = StoredTables(spark, str(tmp_path / "none"))
    assert stored.read("offset_commits").count() == 0
    with pytest.raises(KeyError):
        stored.read("no-such-table")


def test_tables_without_their_checkpoint_take_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A new query would begin with batch 0, which these tables have."""
    (tmp_path / "_state" / "done").mkdir(parents=True)
    (tmp_path / "_state" / "done" / "0").touch()
    (tmp_path / "_checkpoint").mkdir()
    source: Any = None
    with pytest.raises(SourceError, match="have no checkpoint any more: restore the folder as a whole, or"):
        StoredTables(spark, str(tmp_path)).update(source, NOW)


class Recorded:
    """A folder with records of `__consumer_offsets` in one partition, which tables follow."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.stored = StoredTables(spark, str(folder / "tables"))
        self._source = str(folder / "source")
        self._ends = 0

    def frame(self, *records: tuple[Key, Value | None]) -> DataFrame:
        rows = []
        for key, value in records:
            encoded = None if value is None else encode_value(value)
            at = self._ends = self._ends + 1
            rows.append((encode_key(key), encoded, "__consumer_offsets", 0, at, moment(NOW), 0, None))
        return self.spark.createDataFrame(rows, SCHEMA)

    def add(self, *records: tuple[Key, Value | None]) -> None:
        self.frame(*records).coalesce(1).write.mode("append").parquet(self._source)

    def update(self, **lookups: Any) -> None:
        stream = self.spark.readStream.schema(SCHEMA).parquet(self._source)
        self.stored.update(stream, NOW, **lookups)


def joins(group: str) -> tuple[Key, Value]:
    about = ConsumerMember(None, None, "client", "/10.0.0.2", ("orders",), None, 60_000, None)
    return GroupMemberKey(group, "m", 5), about


def begins(group: str, epoch: int) -> tuple[Key, Value]:
    return GroupRecordKey(group, 3), GroupEpoch(epoch)


def owns(group: str, **owned: Sequence[int]) -> tuple[Key, Value]:
    """owned: partitions of topics of TOPIC_IDS."""
    parts = tuple(OwnedPartitions(TOPIC_IDS[topic], tuple(owned[topic])) for topic in owned)
    return GroupMemberKey(group, "m", 8), ConsumerAssignment(1, 1, 0, parts, ())


def leaves(group: str) -> list[tuple[Key, Value | None]]:
    return [(GroupMemberKey(group, "m", 8), None), (GroupMemberKey(group, "m", 5), None)]


def committed(offset: int) -> tuple[Key, Value]:
    return OffsetCommitKey("g", "orders", 0), OffsetCommitValue(offset, commit_timestamp_ms=NOW)


@pytest.mark.usefixtures("delta", "few_rows", "own_driver")
def test_groups_in_steps(spark: SparkSession, tmp_path: Path) -> None:
    """An update may end between an epoch and its assignments.

    Names of topics stay when the topic is gone; commits after an open transaction, while they count.
    """
    recorded = Recorded(spark, tmp_path)
    ids = {topic: uuid_text(topic_id) for topic, topic_id in TOPIC_IDS.items()}
    names = {ids["orders"]: "orders"}
    at_first = dict(names)
    asked: list[set[str]] = []

    def names_of(_: object, needed: Collection[str]) -> dict[str, str]:
        asked.append(set(needed))
        return {each: names[each] for each in needed if each in names}

    def offsets() -> list[int]:
        return [row["committed_offset"] for row in recorded.stored.read("current_offsets").collect()]

    recorded.add(
        *(joins("g"), begins("g", 1), owns("g", orders=[0, 1], unknown=[2]), committed(3)),
        *(joins("first"), begins("first", 1)),
        *(joins("again"), begins("again", 1), owns("again", other=[0, 1]), begins("again", 2)),
        *(joins("leaves"), begins("leaves", 1), owns("leaves", other=[0])),
    )
    later = recorded.frame(committed(8))
    recorded.update(names=names_of, later=lambda _: later)
    assert offsets() == [8]
    recorded.update(names=names_of)
    assert offsets() == [3]
    names.clear()
    recorded.add(
        begins("g", 2),
        *(owns("first", other=[0, 1]), owns("first", other=[0]), begins("first", 2)),
        *(owns("first", other=[1]), owns("again", other=[1])),
        *(*leaves("leaves"), begins("leaves", 2)),
    )
    recorded.update(names=names_of)
    assert asked == [set(ids.values()), {ids["other"]}]
    whole = Tables(spark.read.schema(SCHEMA).parquet(str(tmp_path / "source")), None, NOW, names=at_first)
    stored = {
        name: recorded.stored.read(name).collect() for name in ("group_generations", "rebalances", "members")
    }
    for name, rows in stored.items():
        assert sorted(map(repr, rows)) == comparable(whole.view(name)), name
    parts = [("orders", [0, 1]), (ids["unknown"], [2])]
    (member,) = (row for row in stored["members"] if row["group"] == "g")
    assert [tuple(part) for part in member["assigned"]] == parts
    owners = [row["owners"] for row in stored["group_generations"] if row["group"] == "g"]
    assert [[(owner["topic"], owner["partitions"]) for owner in each] for each in owners] == [parts, parts]


def week_in_steps(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[StoredTables, Tables]:
    """The week in two steps. The first one is interrupted and runs again."""
    rows = the_week().rows()
    records = spark.createDataFrame(topic_records(), RECORDS).cache()
    asked: list[Any] = []

    def logs_of(_: SparkSession, needs: Any, as_of_ms: int) -> DataFrame:
        asked.append(needs.starts)
        return records

    places = spark.createDataFrame(topic_ends(), ENDS)

    def ends_of(_: SparkSession, topics: Collection[str]) -> DataFrame:
        return places.where(places["topic"].isin(list(topics)))

    source = str(folder / "source")
    stored = StoredTables(spark, str(folder / "tables"))

    def update(as_of_ms: int) -> None:
        stream = spark.readStream.schema(SCHEMA).parquet(source)
        stored.update(stream, as_of_ms, logs=logs_of, ends=ends_of)

    def cut(*_: object) -> None:
        raise Cut

    early = [row for row in rows if row[5] < moment(THURSDAY)]
    spark.createDataFrame(early, SCHEMA).coalesce(1).write.parquet(source)
    with monkeypatch.context() as patched:
        patched.setattr(States, "finish", cut)
        with pytest.raises(StreamingQueryException, match="Cut"):
            update(THURSDAY)
    assert stored.read("offset_commits").count() == 0
    late = [row for row in rows if row[5] >= moment(THURSDAY)]
    spark.createDataFrame(late, SCHEMA).coalesce(1).write.mode("append").parquet(source)
    update(NOW)
    # From the smallest of the last commits on, the rewound one.
    assert asked[0]["orders"] == {0: after(50), 1: 0}
    assert asked[0]["no-such-topic"] == {3: 5}
    whole = spark.createDataFrame(rows, SCHEMA).cache()
    return stored, Tables(whole, records, NOW, ends=places)


def comparable(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.long
@pytest.mark.usefixtures("delta", "own_driver")
@pytest.mark.timeout(1800)
def test_steps_come_to_the_same_as_the_whole(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, whole = week_in_steps(spark, tmp_path, monkeypatch)
    for name, table in TABLES.items():
        expected = comparable(whole.view(name))
        assert comparable(stored.read(name)) == expected, name
        if table.kind in ("history", "current"):
            # What other engines read.
            rows = spark.read.format("delta").load(str(tmp_path / "tables" / name))
            assert comparable(shaped(rows, table)) == expected, name
    days = {path.name for path in (tmp_path / "tables" / "offset_commits").glob("src_date=*")}
    assert len(days) == 7
    assert all(name.startswith("src_date=2023-11-") for name in days)
