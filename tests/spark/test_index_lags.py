"""Lags that the index in Redis tells equal those of records that are read and counted, row by row."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as sf

from korvet.offsets.packing import offset_of, pack
from korvet.spark.session.tuning import keeping
from korvet.spark.source.address import Address, Secret
from korvet.spark.source.connection import connected
from korvet.spark.tables import redis_logs, trends
from korvet.spark.tables.batch_tables import Tables
from korvet.spark.tables.catalog import NEED_RECORDS
from korvet.spark.tables.needs import Needs, first_bursts
from korvet.spark.tables.readers import RedisReader
from korvet.spark.tables.views import DAY_MS, as_runs, record_lag
from tests.spark.test_kafka_lags import COMMITS
from tests.support.admin import create_topic
from tests.support.confluent import producer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.tables.runs import Logs
    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("own_driver", "few_rows")]

BATCH = {"storage.layout": "batch"}
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "batches": BATCH,
    "appended": {"message.timestamp.type": "LogAppendTime"},
    "trimmed": {},
    "trimmed-batches": BATCH,
    "native": {},
    "dense": {"offset.assignment": "dense"},
    "ledger": {},
    "ledger-batches": BATCH,
    "open": {},
}
# Topics with records that the index counts whatever groups have committed.
BY_INDEX = ("plain", "batches", "appended", "native", "open")
GROUPS = ("one", "two", "three", "four")
ROUNDS = 24
RECORD_BYTES = 1000


class History:
    """What producers, native applications, administrators and groups did on a live korvet."""

    def __init__(self, server: KorvetServer, seed: int) -> None:
        self.server, self.chance = server, random.Random(seed)
        self.topics = {topic: f"{topic}-{seed}" for topic in TOPICS}
        for topic, configs in TOPICS.items():
            create_topic(server.bootstrap, self.topics[topic], 1, configs)
        self.admin = AdminClient({"bootstrap.servers": server.bootstrap})
        self.plain = producer(server.bootstrap, linger_ms=1000, batch_num_messages=30)
        # The last transaction stays open during the test.
        self.writer = producer(
            server.bootstrap, transactional_id=f"books-{seed}", transaction_timeout_ms=600_000
        )
        self.writer.init_transactions(30)
        self.offsets: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.groups = {
            name: Consumer(
                {
                    "bootstrap.servers": server.bootstrap,
                    "group.id": f"{name}-{seed}",
                    "enable.auto.commit": False,
                }
            )
            for name in GROUPS
        }

    def run(self) -> None:
        for number in range(ROUNDS):
            for topic in TOPICS:
                self.send(self.plain, topic, self.chance.choice((1, 3, 90)))
            assert self.plain.flush(30) == 0
            for topic in ("native", "trimmed"):
                self.add_native(topic, self.chance.randrange(5))
            if number < ROUNDS // 2:
                for topic in ("ledger", "ledger-batches"):
                    self.transaction(topic)
            if number % 8 == 5:
                self.trim(number)
            for topic in TOPICS:
                self.commit(topic)
        self.writer.begin_transaction()
        self.produce(self.writer, "open", 3)

    def close(self) -> None:
        for client in self.groups.values():
            client.close()

    def produce(self, client: Any, topic: str, count: int) -> None:
        self.send(client, topic, count)
        assert client.flush(30) == 0

    def send(self, client: Any, topic: str, count: int) -> None:
        def sent(_: object, message: Any) -> None:
            self.offsets[topic].append(message.offset())

        now_ms = time.time_ns() // 1_000_000
        for number in range(count):
            made_ms = now_ms - self.chance.choice((0, 0, 7, 3_600_000, -50, now_ms + 1))
            client.produce(
                self.topics[topic],
                b"%d" % number,
                partition=0,
                timestamp=max(0, made_ms),
                on_delivery=sent,
            )

    def transaction(self, topic: str) -> None:
        self.writer.begin_transaction()
        self.produce(self.writer, topic, 1 + self.chance.randrange(4))
        if self.chance.random() < 0.5:
            self.produce(self.plain, topic, 2)
        aborts = self.chance.random() < 0.5
        (self.writer.abort_transaction if aborts else self.writer.commit_transaction)(30)

    def add_native(self, topic: str, count: int) -> None:
        for number in range(count):
            added = self.server.redis.xadd(self.stream(topic), {"field": str(number)})
            self.offsets[topic].append(offset_of(added))

    def stream(self, topic: str) -> str:
        return f"korvet:{self.topics[topic]}:0"

    def trim(self, number: int) -> None:
        """Records are deleted from the log start, the last time by a native client."""
        for topic in ("trimmed", "trimmed-batches"):
            known = self.offsets[topic]
            place = TopicPartition(self.topics[topic], 0, known[len(known) // 4])
            self.admin.delete_records([place])[place].result(20)
        if number > ROUNDS // 2:
            self.server.redis.xtrim(self.stream("trimmed"), maxlen=len(self.offsets["trimmed"]) // 2)

    def commit(self, topic: str) -> None:
        """To any offset, so that groups also go back, and beyond the end."""
        known = self.offsets[topic]
        ahead = known[-1] + self.chance.choice((1, 5_000_000))
        offset = self.chance.choice([0, known[-1], ahead, *self.chance.choices(known, k=9)])
        offset += self.chance.choice((0, 0, 1, -1 if offset else 0))
        place = TopicPartition(self.topics[topic], 0, offset)
        self.groups[self.chance.choice(GROUPS)].commit(offsets=[place], asynchronous=False)

    def any_commits(self, as_of_ms: int) -> Iterator[tuple[str, str, int, int, int]]:
        """Topic, partition, offset and time of commits, which need not have been possible then."""
        for topic, known in self.offsets.items():
            for _ in range(40):
                offset = self.chance.choice(known) + self.chance.choice((0, 1, -1, 700))
                yield self.topics[topic], 0, offset, as_of_ms - self.chance.randrange(-100, 12_000), 1


@pytest.fixture
def all_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few records there are."""
    monkeypatch.setattr(redis_logs, "_READ", -1)
    monkeypatch.setattr(redis_logs, "_LOOKUP_RECORDS", 0)


def found_in(reader: RedisReader, needs: Needs, as_of_ms: int) -> Logs:
    with connected(reader.address) as connection:
        return redis_logs.logs_by_index(connection, reader.address, needs, as_of_ms)


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.collect())


def tables_of(tables: Tables) -> dict[str, list[str]]:
    with keeping() as keep:
        tables.share(keep)
        return {name: rows_of(tables.view(name)) for name in NEED_RECORDS}


def check(spark: SparkSession, server: KorvetServer, seed: int) -> None:
    history = History(server, seed)
    history.run()
    as_of_ms = time.time_ns() // 1_000_000
    # Later records don't count.
    for topic in TOPICS:
        history.produce(history.plain, topic, 2)
    history.close()
    reader = RedisReader(Address(f"unix://{server.socket_path()}"))
    source = reader.offsets_topic(spark)
    assert source is not None
    tables = Tables(source.persist(), None, as_of_ms, sizes=reader.sizes(spark))
    commits = tables.view("offset_commits").persist()
    span = trends.Span.over(as_of_ms - 10_000, as_of_ms, DAY_MS)
    positions = trends.positions_over_time(commits, span).persist()
    needs = tables.needs().with_lags(trends.at_steps(positions, span))
    logs = reader.logs(spark, needs, as_of_ms).persist()
    counted = reader.records(spark, needs.starts).persist()
    ends = reader.ends(spark, needs.starts).persist()
    used = {topic for topic, _ in found_in(reader, needs, as_of_ms).runs}
    assert {history.topics[topic] for topic in BY_INDEX} <= used
    assert history.topics["dense"] not in used
    by_index, by_records = (tables_of(tables.with_logs(log, ends)) for log in (logs, counted))
    for name in NEED_RECORDS:
        assert (name, by_index[name]) == (name, by_records[name])
    assert rows_of(trends.lag_over_time(positions, logs, span)) == rows_of(
        trends.lag_over_time(positions, as_runs(counted), span)
    )
    # As if groups had committed anything at any time.
    made = spark.createDataFrame(
        [(f"g{n}", *commit) for n, commit in enumerate(history.any_commits(as_of_ms))], COMMITS
    )
    needs = Needs.of_commits(made).with_lags(first_bursts(made.withColumn("is_burst", sf.lit(True))))
    logs, counted = reader.logs(spark, needs, as_of_ms), reader.records(spark, needs.starts)
    until = sf.col("offset") < pack(as_of_ms + 1, 0)
    behind = sf.col("record_lag") > 0
    lags = [record_lag(made, log.where(until), as_of_ms).where(behind) for log in (logs, counted)]
    assert rows_of(lags[0]) == rows_of(lags[1])


def test_tables_as_counted(spark: SparkSession, server: KorvetServer, all_by_index: None) -> None:
    check(spark, server, 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 8))
def test_tables_of_many_histories(
    spark: SparkSession, server: KorvetServer, all_by_index: None, seed: int
) -> None:
    check(spark, server, seed)


def test_what_is_fetched(spark: SparkSession, server: KorvetServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record for each committed offset; all records if they are few, or without the right to count."""
    records = 6000
    create_topic(server.bootstrap, "large", 1)
    client, offsets = producer(server.bootstrap, batch_num_messages=100), []
    for _ in range(records):
        client.produce(
            "large",
            bytes(RECORD_BYTES),
            partition=0,
            on_delivery=lambda _, message: offsets.append(message.offset()),
        )
        client.poll(0)
    assert client.flush(30) == 0
    now_ms = time.time_ns() // 1_000_000
    places = [offsets[records * share // 20] for share in range(20)]
    made = [
        (f"g{number % 4}", "large", 0, offset, (offset >> 10) + 1000, number)
        for number, offset in enumerate(places)
    ]
    needs = Needs.of_commits(spark.createDataFrame(made, COMMITS))
    reader = RedisReader(Address(f"unix://{server.socket_path()}"))
    place = ("large", 0)
    assert found_in(reader, needs, now_ms).read == {place: offsets[0]}
    monkeypatch.setattr(redis_logs, "_READ", records // 2)
    before = server.redis.info("stats")["total_net_output_bytes"]
    log = reader.logs(spark, needs, now_ms)
    assert log.groupBy().sum("records").collect()[0][0] == records
    fetched = (server.redis.info("stats")["total_net_output_bytes"] - before) / RECORD_BYTES
    # The broker's own traffic is in it, which grows with the time that the machine needs.
    assert fetched < records / 20
    for right, runs in (("+eval_ro", {place}), ("-eval_ro", set())):
        server.redis.execute_command(
            "ACL", "SETUSER", "reader", "on", "nopass", "~*", "+@read", "+@connection", "+xinfo", right
        )
        limited = RedisReader(Address(reader.address.url, user="reader", password=Secret(value="any")))
        assert found_in(limited, needs, now_ms).runs.keys() == runs
    monkeypatch.setattr(redis_logs, "_LOOKUP_RECORDS", records)
    assert found_in(reader, needs, now_ms).read == {place: offsets[0]}
