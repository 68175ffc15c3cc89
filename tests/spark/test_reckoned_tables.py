"""Every column of every table over random histories equals what plain Python reckons."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Row

from korvet.offsets.group_status import STATUSES
from korvet.spark.export.all_tables import update_tables
from korvet.spark.export.tables import topic_names
from korvet.spark.session.tuning import keeping, tuned_for
from korvet.spark.source.address import Address
from korvet.spark.tables import queues, readers
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import ANSWERS, TABLES
from korvet.spark.tables.decode import group_records, offset_commits
from korvet.spark.tables.membership import with_topic_names
from korvet.spark.tables.questions import answer
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.stored_tables import StoredTables
from tests.spark.reckoning.history import History
from tests.spark.reckoning.queues import IDLE_MS
from tests.spark.reckoning.tables import reckoned

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

STEPS = 1500
LATER_MS = 60_000
Rows = list[dict[str, Any]]
ASKED = ("owners", "rebalance_costs")
KINDS = {"rewind", "gap", "lost_records", "past_end", "unknown_partition"}


@pytest.fixture(autouse=True)
def _workers_that_never_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis's clock is not that of the history."""
    look_up = readers.redis_queues

    def found(*arguments: Any) -> list[queues.Queue]:
        return [
            queue._replace(workers=[each._replace(idle_ms=IDLE_MS) for each in queue.workers or ()] or None)
            for queue in look_up(*arguments)
        ]

    monkeypatch.setattr(readers, "redis_queues", found)


def plain(value: Any) -> Any:
    """A value of Spark as the model has it: times in ms, dates as text, structs as dicts."""
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, bytearray) else value


def differences(found: Rows, reckoned: Rows) -> list[str]:
    """The rows that only one side has."""
    texts = [Counter(repr(sorted(row.items())) for row in rows) for rows in (found, reckoned)]
    sides = {"found": texts[0] - texts[1], "reckoned": texts[1] - texts[0]}
    return sorted(f"{row}: only {side}" for side, rows in sides.items() for row in rows.elements())


def tables_of(spark: SparkSession, keyspace: Keyspace, as_of_ms: int) -> Tables:
    """The tables as a report computes them, from Redis."""
    reader = RedisReader(Address(keyspace.url))
    source = reader.offsets_topic(spark)
    assert source is not None
    source.persist()
    names = topic_names(spark, reader, source)
    records = with_topic_names(group_records(source), names)
    tables = Tables(
        source,
        None,
        as_of_ms,
        share_queues=reader.queues(spark, queues.places(records), as_of_ms),
        pending=reader.open_transactions(spark),
        sizes=reader.sizes(spark),
        names=names,
    )
    needs = tables.needs()
    topics = {
        *needs.starts,
        *(row["topic"] for row in offset_commits(source, ("topic",)).distinct().collect()),
    }
    return tables.with_logs(
        reader.logs(spark, needs, as_of_ms).persist(), reader.ends(spark, topics).persist()
    )


def compare(frames: Mapping[str, DataFrame], expected: Mapping[str, Rows]) -> dict[str, Rows]:
    """Compare tables with what is reckoned. Returns their rows."""
    found, wrong = {}, []
    for name, frame in frames.items():
        found[name] = [plain(row) for row in frame.collect()]
        different = differences(found[name], expected[name])
        wrong += [f"{name}:", *different[:8]] if different else []
    assert not wrong, "\n".join(wrong)
    return found


def check(spark: SparkSession, keyspace: Keyspace, seed: int, folder: Path) -> dict[str, Rows]:
    """Compare all tables of a history. Returns their rows. folder: of frames that tables share."""
    history = History(keyspace, seed)
    history.run(STEPS)
    as_of_ms = history.now_ms + LATER_MS
    history.after(as_of_ms)
    expected = reckoned(history, as_of_ms)
    assert set(expected) == {*TABLES, *ASKED}
    tables = tables_of(spark, keyspace, as_of_ms)
    with tuned_for(spark, len(expected["offset_commits"])), keeping(folder) as keep:
        tables.share(keep)
        frames = {name: tables.view(name) for name in TABLES}
        return compare({**frames, **{name: answer(name, frames.__getitem__) for name in ASKED}}, expected)


def check_variety(rows: dict[str, Rows]) -> None:
    """No column is always null, and each status, anomaly and type of group occurs."""
    for name, table in {**TABLES, **ANSWERS}.items():
        if name not in rows:
            continue
        seen: dict[str, set[str]] = defaultdict(set)
        for row in rows[name]:
            for column, value in row.items():
                seen[column] |= set() if value is None else {repr(value)}
        missing = [column.name for column in table.columns if not seen[column.name]]
        assert not missing, (name, missing)
    assert {row["status"] for row in rows["partition_status"]} == set(STATUSES)
    assert {row["kind"] for row in rows["anomalies"]} == KINDS
    types = {row["group_type"] for row in rows["group_generations"]}
    assert types == {"classic", "consumer", "share", "streams"}


def test_every_column_as_reckoned(spark: SparkSession, keyspace: Keyspace, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    check_variety(check(spark, keyspace, 1, shared))
    assert not shared.exists()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 22))
def test_every_column_of_many_histories(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, seed: int
) -> None:
    check(spark, keyspace, seed, tmp_path / "shared")


@pytest.mark.long
@pytest.mark.usefixtures("own_driver")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 4))
def test_every_column_of_stored_tables(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Without anomalies, which compare commits with the ends of partitions at the time of each update."""
    history, address, folder = History(keyspace, seed), Address(keyspace.url), str(tmp_path / "tables")
    # Topics are deleted between the updates, and their assignments with them.
    monkeypatch.setattr(RedisReader, "topic_names", lambda *_: history.names)
    as_of_ms = 0
    for _ in history.stages(STEPS):
        as_of_ms = history.now_ms + LATER_MS
        monkeypatch.setattr("time.time_ns", lambda now_ms=as_of_ms: now_ms * 1_000_000)
        update_tables(spark, address, folder)
    stored = StoredTables(spark, folder)
    found = {
        name: stored.read(name, as_of_ms if table.kind == "snapshot" else None)
        for name, table in TABLES.items()
        if name != "anomalies"
    }
    found |= {name: answer(name, stored.read) for name in ASKED}
    compare(found, reckoned(history, as_of_ms, history.names))
