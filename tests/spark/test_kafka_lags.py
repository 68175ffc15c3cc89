"""Lags that a report on a real Kafka looks up, against the records that another client reads."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as sf

from korvet.spark.tables import kafka_logs
from korvet.spark.tables.needs import Needs, first_bursts
from korvet.spark.tables.readers import KafkaReader
from korvet.spark.tables.trends import Span, at_steps, lag_over_time
from korvet.spark.tables.views import record_lag
from tests.spark.test_real_kafka import authority
from tests.support.confluent import read_all
from tests.support.java import JavaTools
from tests.support.real_kafka import RealKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Connector
    from tests.support.certificates import Authority

__all__ = ["authority"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_driver")]

HOUR = 3_600_000
STEP = HOUR // 2
COMMITS = (
    "group string, topic string, partition int, committed_offset bigint, commit_ms bigint, src_offset bigint"
)
POSITIONS = (
    "group string, topic string, partition int, committed_offset bigint, first_step int, last_step int"
)
Place = tuple[str, int]


@dataclass(frozen=True)
class Cluster:
    kafka: RealKafka
    now_ms: int

    @property
    def reader(self) -> KafkaReader:
        return KafkaReader(self.kafka.bootstrap)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(20)

    def producer(self, **settings: str) -> Producer:
        return Producer({"bootstrap.servers": self.kafka.bootstrap, **settings})

    def records(self, topic: str, partition: int = 0) -> list[tuple[int, int]]:
        """Offsets and timestamps, as a consumer with read_committed gets them."""
        found = read_all(self.kafka.bootstrap, topic, partition)
        return [(read.offset, read.record.timestamp_ms) for read in found]


@pytest.fixture(scope="module")
def cluster(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Topic orders: records of three days in two partitions, seldom and often."""
    kafka = RealKafka(JavaTools.resolve(), tmp_path_factory.mktemp("kafka"), authority)
    try:
        made = Cluster(kafka.start(), time.time_ns() // 1_000_000)
        made.create("orders", 2)
        producer, chance = made.producer(), random.Random(1)
        for partition, pause_ms in ((0, 200_000), (1, 7 * HOUR)):
            at_ms = made.now_ms - 72 * HOUR
            while at_ms < made.now_ms - 1000:
                producer.produce("orders", b"value", partition=partition, timestamp=at_ms)
                at_ms += chance.choice((0, pause_ms // 2, 2 * pause_ms))
        assert producer.flush(20) == 0
        yield made
    finally:
        kafka.stop()


@pytest.fixture(scope="module")
def with_transactions(cluster: Cluster) -> Cluster:
    """Topic ledger: committed and aborted transactions; topic states is compacted."""
    cluster.create("ledger")
    cluster.create("states", **{"cleanup.policy": "compact"})
    producer = cluster.producer(**{"transactional.id": "books"})
    producer.init_transactions(30)
    for number in range(30):
        producer.begin_transaction()
        for _ in range(1 + number % 4):
            producer.produce("ledger", b"value", partition=0)
        producer.flush(20)
        (producer.abort_transaction if number % 3 == 0 else producer.commit_transaction)(30)
    plain = cluster.producer()
    for number in range(40):
        plain.produce("states", b"value", key=str(number % 7))
    assert plain.flush(20) == 0
    return cluster


def commits_of(spark: SparkSession, places: dict[str, tuple[Place, list[tuple[int, int]]]]) -> DataFrame:
    """Commits of groups, each with its partition and its commits: offset and time."""
    rows = [
        (group, *place, offset, at_ms, number)
        for group, (place, made) in places.items()
        for number, (offset, at_ms) in enumerate(made)
    ]
    return spark.createDataFrame(rows, COMMITS)


def lags(spark: SparkSession, reader: KafkaReader, commits: DataFrame, now_ms: int) -> list[Any]:
    bursts = first_bursts(commits.withColumn("is_burst", sf.lit(True)))
    log = reader.logs(spark, Needs.of_commits(commits).with_lags(bursts), now_ms)
    return record_lag(commits, log, now_ms).collect()


def test_lags_of_dense_offsets_are_looked_up(
    spark: SparkSession, connector: Connector, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As counted, without reading what is counted."""
    chance, now_ms = random.Random(2), cluster.now_ms
    logs = {("orders", partition): cluster.records("orders", partition) for partition in (0, 1)}
    made: dict[str, tuple[Place, list[tuple[int, int]]]] = {}
    for number, (place, records) in enumerate([*logs.items()] * 4):
        offsets = sorted(chance.choices(range(len(records) + 1), k=3))
        times = sorted(now_ms - chance.randrange(72 * HOUR) for _ in offsets)
        made[f"g{number}"] = (place, list(zip(offsets, times, strict=True)))
    made["done"] = (("orders", 0), [(len(logs["orders", 0]), now_ms)])
    made["read-up"] = (("orders", 0), [(3, now_ms - 60 * HOUR), (len(logs["orders", 0]), now_ms - HOUR)])
    made["odd"] = (("orders", 1), [(-5, -1), (2**62, 2**62)])

    def read(*_: object) -> DataFrame:
        raise AssertionError("records were read")

    monkeypatch.setattr(KafkaReader, "records", read)
    rows = lags(spark, cluster.reader, commits_of(spark, made), now_ms)
    assert len(rows) == sum(len(commits) for _, commits in made.values())
    for row in rows:
        records, commits = logs[row["topic"], row["partition"]], made[row["group"]][1]
        unread = [each for each in records if each[0] >= row["committed_offset"]]
        is_behind = commits[-1][0] < len(records)
        if row["src_offset"] == len(commits) - 1:
            assert row["lag_ms"] == (now_ms - unread[0][1] if unread else 0)
        elif not is_behind and row["src_offset"] > 0:
            # These lags of a group that has read everything don't matter; its rates begin at the first one.
            continue
        assert (row["record_lag"], row["exact"]) == (len(unread), True)
        if row["commit_ms"] > 0 and (is_behind or row["src_offset"] == 0):
            assert row["lag_then"] == sum(at_ms <= row["commit_ms"] for _, at_ms in unread)


def test_charts_are_looked_up(spark: SparkSession, connector: Connector, cluster: Cluster) -> None:
    """Unread records as counted; waits within a step, or within a factor of two before the first one."""
    now_ms, steps = cluster.now_ms, 48
    logs = {partition: cluster.records("orders", partition) for partition in (0, 1)}
    span = Span(now_ms - steps * STEP, now_ms, STEP)
    positions = [
        (f"g{share}", "orders", partition, offset, step, step)
        for partition, records in logs.items()
        for share in (0, 30, 60, 90)
        for step in range(steps)
        for offset in [(len(records) * (share + step // 8)) // 100]
    ]
    frame = spark.createDataFrame(positions, POSITIONS)
    needs = Needs.of_commits(spark.createDataFrame([], COMMITS)).with_lags(at_steps(frame, span))
    rows = lag_over_time(frame, cluster.reader.logs(spark, needs, now_ms), span).collect()
    assert len(rows) == len(positions)
    for row in rows:
        at_ms = now_ms - (steps - 1 - row["step"]) * STEP
        unread = [each for each in logs[row["partition"]] if each[0] >= row["committed_offset"]]
        then = [each for each in unread if each[1] <= at_ms]
        assert row["record_lag"] == len(then)
        wait_ms = at_ms - then[0][1] if then else 0
        before_steps_ms = max(0, now_ms - (steps - 1) * STEP - then[0][1]) if then else 0
        assert abs(row["lag_ms"] - wait_ms) <= max(STEP, before_steps_ms)
        assert row["lag_ms"] >= 0


@pytest.mark.parametrize(("read", "exact"), [(50_000, False), (12, False), (12, True)])
def test_gaps_make_lags_bounds(
    spark: SparkSession,
    connector: Connector,
    with_transactions: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    read: int,
    exact: bool,
) -> None:
    """Markers, aborted records, and compaction. The last records are read and counted; with `exact`, all."""
    monkeypatch.setattr(kafka_logs, "_READ", read)
    cluster, now_ms = with_transactions, time.time_ns() // 1_000_000
    logs = {topic: cluster.records(topic) for topic in ("ledger", "states")}
    ends = {topic: log[-1][0] + 1 for topic, log in logs.items()}
    made = {
        f"{topic}-{offset}": ((topic, 0), [(offset, now_ms)])
        for topic, log in logs.items()
        for offset in (0, 7, log[-1][0] - 5, log[-1][0], ends[topic])
    }
    inexact = 0
    reader = KafkaReader(cluster.kafka.bootstrap, exact=exact)
    for row in lags(spark, reader, commits_of(spark, made), now_ms):
        unread = [each for each in logs[row["topic"]] if each[0] >= row["committed_offset"]]
        assert row["lag_ms"] == (max(0, now_ms - unread[0][1]) if unread else 0)
        if row["exact"]:
            assert row["record_lag"] == len(unread)
        else:
            # The marker of the last transaction is after the last record.
            most = ends[row["topic"]] + 1 - row["committed_offset"]
            assert len(unread) <= row["record_lag"] <= most
            inexact += 1
        assert (row["record_lag"] == 0) == (not unread)
    assert inexact == (4 if read == 12 and not exact else 0)


def test_dense_topics_beside_transactions(
    spark: SparkSession, connector: Connector, with_transactions: Cluster
) -> None:
    """Leaders know the producers of the last 24 hours: before that, there may have been transactions."""
    cluster = with_transactions
    records = cluster.records("orders", 0)
    made = {}
    for hours in (60, 30, 20, 1):
        offset = next(offset for offset, ms in records if ms > cluster.now_ms - hours * HOUR)
        made[f"{hours}"] = (("orders", 0), [(offset, cluster.now_ms)])
    rows = lags(spark, cluster.reader, commits_of(spark, made), cluster.now_ms)
    assert {row["group"]: row["exact"] for row in rows} == {"60": False, "30": False, "20": True, "1": True}
    for row in rows:
        assert row["record_lag"] == len(records) - row["committed_offset"]
