"""The report's numbers on a real korvet, from Redis and through the official Kafka connector: they equal
numbers computed by hand, counted by plain XRANGE, and returned to Kafka clients.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

from korvet.offsets.partition import partition_for
from korvet.spark.session import kafka_cluster
from korvet.spark.session.jars import JarsMissing
from korvet.spark.source.address import Address
from korvet.spark.source.errors import SourceError
from korvet.spark.tables import readers, views
from korvet.spark.tables.decode import group_metadata, offset_commits, quarantine
from korvet.spark.tables.needs import smallest_offsets
from korvet.spark.tables.readers import KafkaReader, RedisReader
from tests.spark.conftest import CONNECT
from tests.spark.scenario import METADATA, Expected, Place, Scenario, play
from tests.support.confluent import read_all
from tests.support.ports import free_port
from tests.support.processes import run
from tests.support.servers import KAFKA_VARIABLE, KorvetServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from korvet.spark.tables.readers import TopicReader
    from tests.spark.conftest import Connector

pytestmark = pytest.mark.spark

DENSE = {"ledger"}
OFFSETS_PARTITIONS = 50
REPORT_TIMEOUT_S = 400


@pytest.fixture(scope="module")
def live() -> Iterator[Scenario]:
    if os.environ.get(KAFKA_VARIABLE):
        pytest.skip("needs korvet: looks into Redis")
    server = KorvetServer()
    try:
        scenario = play(server.start())
        yield scenario
        scenario.member.close()
    finally:
        server.discard()


@dataclass(frozen=True, slots=True)
class Readout:
    """The tables from one reader, row by row."""

    raw: list[tuple[Any, ...]]
    commits: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    lag: dict[Place, Expected]
    lag_ms: dict[Place, int]
    ends: list[tuple[Any, ...]]
    refused: int


def ordered(frame: DataFrame, *columns: str) -> list[Any]:
    return frame.orderBy(*columns).collect()


def read_out(spark: SparkSession, reader: TopicReader, as_of_ms: int) -> Readout:
    found = reader.offsets_topic(spark)
    assert found is not None
    # One read for all tables, as in a report.
    source = found.cache()
    commits, groups = offset_commits(source), group_metadata(source)
    current = views.current_offsets(commits)
    records = reader.records(spark, smallest_offsets(current))
    lag = [row.asDict() for row in views.record_lag(current, records, as_of_ms).collect()]
    for row in lag:
        row["place"] = (row["group"], row["topic"], row["partition"])
    places = ("src_partition", "src_offset")
    readout = Readout(
        raw=[tuple(row) for row in ordered(source, "partition", "offset")],
        commits=[row.asDict() for row in ordered(commits, *places)],
        groups=[row.asDict(recursive=True) for row in ordered(groups, *places)],
        lag={row["place"]: expected_of(row) for row in lag},
        lag_ms={row["place"]: row["lag_ms"] for row in lag},
        ends=sorted(map(tuple, reader.ends(spark, {row["topic"] for row in lag}).collect())),
        refused=quarantine(source).count(),
    )
    source.unpersist()
    return readout


def expected_of(row: dict[str, Any]) -> Expected:
    first = row["first_unread_ts"]
    first_ms = None if first is None else round(first.timestamp() * 1000)
    return Expected(row["committed_offset"], row["record_lag"], first_ms)


@pytest.fixture(scope="module")
def from_redis(spark: SparkSession, live: Scenario) -> Readout:
    return read_out(spark, RedisReader(Address(f"unix://{live.server.socket_path()}")), live.as_of_ms)


@pytest.fixture(scope="module")
def from_kafka(own_driver: None, spark: SparkSession, live: Scenario, connector: Connector) -> Readout:
    before = written(live.server)
    readout = read_out(spark, KafkaReader(live.server.bootstrap), live.as_of_ms)
    assert written(live.server) == before, "reading wrote into the topic that was read"
    return readout


def written(server: KorvetServer) -> dict[int, bytes]:
    """Returns the last entry of every partition of `__consumer_offsets`."""
    tails = {
        part: server.redis.xrevrange(f"korvet:__consumer_offsets:{part}", count=1)
        for part in range(OFFSETS_PARTITIONS)
    }
    return {part: tail[0][0] for part, tail in tails.items() if tail}


@pytest.fixture(params=["from_redis", "from_kafka"])
def readout(request: pytest.FixtureRequest) -> Readout:
    found: Readout = request.getfixturevalue(request.param)
    return found


def test_lag_is_what_was_worked_out_by_hand(live: Scenario, readout: Readout) -> None:
    assert readout.lag == live.lag
    assert readout.lag_ms == {place: live.lag_ms(place) for place in live.lag}
    assert readout.refused == 0


def test_commits_are_those_that_clients_made(live: Scenario, readout: Readout) -> None:
    made: dict[str, tuple[int, int]] = {}
    for row in readout.commits:
        assert row["src_partition"] == partition_for(row["group"])
        commits, tombstones = made.get(row["group"], (0, 0))
        made[row["group"]] = (commits + (not row["tombstone"]), tombstones + row["tombstone"])
    assert made == live.commits
    offsets: dict[Place, int] = {}
    rewound = []
    for row in readout.commits:
        place = (row["group"], row["topic"], row["partition"])
        if not row["tombstone"]:
            rewound += [row["group"]] if row["committed_offset"] < offsets.get(place, 0) else []
            offsets[place] = row["committed_offset"]
    assert rewound == ["rewound"]
    # This client's binding adds a NUL to the text.
    assert {row["metadata"] for row in readout.commits if row["group"] == "lagging"} == {METADATA + "\0"}


def test_the_running_member_is_seen(readout: Readout) -> None:
    states = [row for row in readout.groups if row["group"] == "caught-up"]
    (member,) = states[-1]["members"]
    assert (states[-1]["generation"], states[-1]["protocol"]) == (1, "range")
    assert (member["client_id"], member["topics"]) == ("packer", ["orders"])
    assert member["assigned"] == [{"topic": "orders", "partitions": [0, 1, 2]}]
    assert [row["tombstone"] for row in readout.groups if row["group"] == "deleted"] == [True]


def test_both_ways_give_the_same_tables(from_redis: Readout, from_kafka: Readout) -> None:
    assert from_kafka.raw == from_redis.raw
    assert from_kafka.commits == from_redis.commits
    assert from_kafka.groups == from_redis.groups
    assert from_kafka == from_redis
    assert len(from_redis.ends) > 3


def test_plain_xrange_counts_the_same(live: Scenario) -> None:
    sparse = 0
    for (_, topic, partition), expected in live.lag.items():
        position = expected.committed + (1 if topic in DENSE else 0)
        stream = f"korvet:{topic}:{partition}"
        entries = live.server.redis.xrange(stream, min=f"{position >> 10}-{position & 1023}")
        assert len(entries) == expected.unread
        sparse += bool(entries) and topic not in DENSE
    assert sparse >= 5


def test_kafka_clients_are_told_the_same(live: Scenario) -> None:
    admin = AdminClient({"bootstrap.servers": live.server.bootstrap})
    committed: dict[Place, int] = {}
    for group in live.commits:
        asked = [ConsumerGroupTopicPartitions(group)]
        answer = admin.list_consumer_group_offsets(asked)[group].result(20)
        committed.update(((group, p.topic, p.partition), p.offset) for p in answer.topic_partitions)
    assert committed == {place: expected.committed for place, expected in live.lag.items()}

    places = sorted({(topic, partition) for _, topic, partition in live.lag})
    offsets = {place: [read.offset for read in read_all(live.server.bootstrap, *place)] for place in places}
    ends = {
        (place.topic, place.partition): future.result().offset
        for place, future in admin.list_offsets(
            {TopicPartition(*place): OffsetSpec.latest() for place in places},
            isolation_level=IsolationLevel.READ_COMMITTED,
        ).items()
    }
    for (_, topic, partition), expected in live.lag.items():
        unread = [offset for offset in offsets[topic, partition] if offset >= expected.committed]
        assert len(unread) == expected.unread
        assert all(offset < ends[topic, partition] for offset in unread)
        assert expected.committed < ends[topic, partition] or expected.unread == 0
    # Differences of offsets are not the lag: the topic is sparse, and deleted last records keep the log end.
    assert ends["orders", 1] - live.lag["on-deleted", "orders", 1].committed == 1
    assert ends["orders", 0] - live.lag["lagging", "orders", 0].committed > 10_000


@pytest.mark.usefixtures("own_driver")
def test_the_report_through_kafka(
    spark: SparkSession, live: Scenario, connector: Connector, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "korvet", "report", "--source", "kafka", "--master", "local[2]"]
    command += ["--bootstrap", live.server.bootstrap, "--out", str(tmp_path)]
    environment = {**os.environ, "KORVET_JARS_DIR": str(connector.folder)}
    done = run(command, REPORT_TIMEOUT_S, env=environment)
    assert done.returncode == 0, done.stderr.decode()
    assert "Traceback" not in done.stderr.decode()
    assert f"Report: {tmp_path / 'report.html'}" in done.stdout.decode()

    def table(name: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.parquet(str(tmp_path / name)).collect()]

    waits = {(row["group"], row["topic"], row["partition"]): row for row in table("time_lag")}
    lag = {(row["group"], row["topic"], row["partition"]): row for row in table("record_lag")}
    assert {place: expected_of({**waits[place], **row}) for place, row in lag.items()} == live.lag
    groups = {row["group"]: row for row in table("group_status")}
    assert set(groups) >= live.groups
    for group in live.groups:
        unread = sum(expected.unread for place, expected in live.lag.items() if place[0] == group)
        assert groups[group]["record_lag"] == unread
        # `caught-up` has running members; the other groups committed without members.
        assert groups[group]["member_count"] == (1 if group == "caught-up" else 0)
    assert groups["caught-up"]["status"] == "OK"
    assert len(table("offset_commits")) == sum(map(sum, live.commits.values()))
    assert table("quarantine") == []
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(group in page for group in live.groups)


@pytest.mark.usefixtures("own_driver")
def test_what_is_gone_is_left_out(
    spark: SparkSession, live: Scenario, connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = KafkaReader(live.server.bootstrap)
    some = live.lag["lagging", "orders", 1]
    # Topic old was deleted, partition 9 never existed, and partition 2 is empty.
    starts = {"old": {0: 7}, "orders": {1: some.committed, 2: 0, 9: 3}, "ledger": {0: 10**9}}
    rows = reader.records(spark, starts).collect()
    assert [(row["topic"], row["partition"]) for row in rows] == [("orders", 1)] * some.unread
    assert reader.records(spark, {"old": {0: 7}}).collect() == []
    assert reader.records(spark, {}).collect() == []
    monkeypatch.setattr(readers, "OFFSETS_TOPIC", "no-such-topic")
    told = reader.offsets_topic(spark)
    assert told is not None
    answers = {
        (row["group"], row["topic"], row["partition"]): row["committed_offset"]
        for row in offset_commits(told).collect()
    }
    assert answers == {place: expected.committed for place, expected in live.lag.items()}
    topics = AdminClient({"bootstrap.servers": live.server.bootstrap}).list_topics(timeout=10).topics
    assert set(topics) == {"__consumer_offsets", "orders", "ledger"}


@pytest.mark.usefixtures("own_driver")
def test_no_kafka_is_a_clear_error(
    spark: SparkSession, connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_cluster, "API_TIMEOUT_MS", 1000)
    monkeypatch.setattr(kafka_cluster, "REQUEST_TIMEOUT_MS", 1000)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(SourceError, match=f"no usable Kafka at {address}: Timed out"):
        KafkaReader(address).offsets_topic(spark)
    with pytest.raises(SourceError, match=r"no usable Kafka at nowhere: Invalid url"):
        KafkaReader("nowhere").records(spark, {"orders": {0: 0}})


@pytest.mark.skipif(not CONNECT, reason="needs a session of Spark Connect")
def test_connect_has_no_admin_client(
    spark: SparkSession, record_property: Callable[[str, object], None]
) -> None:
    with pytest.raises(SourceError, match="can't be asked through Spark Connect") as caught:
        KafkaReader("HOST:PORT").offsets_topic(spark)
    record_property("refused", str(caught.value))


def test_a_session_without_the_connector_is_a_clear_error() -> None:
    missing = JavaPackage("org.apache.kafka.clients.admin.AdminClient", None)
    admin = SimpleNamespace(AdminClient=missing)
    kafka_package = SimpleNamespace(clients=SimpleNamespace(admin=admin))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(kafka=kafka_package)))
    session: Any = SimpleNamespace(_jvm=jvm)
    with pytest.raises(JarsMissing, match="korvet jars"):
        KafkaReader("h:1").offsets_topic(session)
