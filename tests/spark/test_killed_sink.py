"""Streams into the sink that are killed at random while records are added: each record is there once."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from korvet.spark.source.sink.kafka_client import KafkaTopics
from korvet.spark.source.sink.kafka_cluster import KafkaCluster
from tests.spark.direct import batch
from tests.spark.keyspace import Keyspace
from tests.spark.killing import Writer, killed_runs, planned, run_to_the_end
from tests.support.admin import create_topic
from tests.support.confluent import read_all

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.servers import KorvetServer

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3000)]

PARTITIONS = 3
LONGEST_RUN_S = 4.0


def test_every_record_is_there_once(server: KorvetServer, tmp_path: Path) -> None:
    """Drivers with and without their JVM are killed, and the first attempt of each large task fails.

    Readers of Kafka's protocol, of Redis and of Spark's source find the same records.
    """
    keyspace = Keyspace(server.redis, f"unix://{server.socket_path()}")
    for name in ("in", "t"):
        # The writer's times are old.
        create_topic(server.bootstrap, name, PARTITIONS, {"retention.ms": "-1"})
    writer = Writer(keyspace, "in")
    # Transactions of 500 records.
    sink = {
        "kafka.bootstrap.servers": server.bootstrap,
        "maxRecordsPerSecond": "1000",
        "concurrentTasks": "2",
    }
    checkpoint = tmp_path / "checkpoint"
    command = [sys.executable, "-m", "tests.spark.sink_job", keyspace.url, str(checkpoint), json.dumps(sink)]
    partial = 0
    for _ in killed_runs(command, tmp_path, writer, LONGEST_RUN_S):
        newest = planned(checkpoint)
        finished = (checkpoint / "commits" / str(newest)).exists()
        partial += not finished and newest in noted(server, checkpoint)
    run_to_the_end([*command, "available-now"], tmp_path)
    found = [kafka_values(server, "t", partition) for partition in range(PARTITIONS)]
    assert sorted(int(value or b"") for values in found for value in values) == list(range(writer.count))
    # In the order of the source.
    assert found == [kafka_values(server, "in", partition) for partition in range(PARTITIONS)]
    assert found == source_values(keyspace)
    entries = [redis_values(keyspace, partition) for partition in range(PARTITIONS)]
    # Redis also has the records of aborted transactions.
    assert list(map(set, entries)) == list(map(set, found))
    assert partial, "no kill came after a part of a batch was written"


def kafka_values(server: KorvetServer, topic: str, partition: int) -> list[bytes | None]:
    return [one.record.value for one in read_all(server.bootstrap, topic, partition)]


def source_values(keyspace: Keyspace) -> list[list[bytes | None]]:
    found: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    rows = batch(keyspace, topic="t")
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        found[row["partition"]].append(row["value"])
    return found


def redis_values(keyspace: Keyspace, partition: int) -> list[bytes]:
    entries = keyspace.client.xrange(f"korvet:t:{partition}")
    return [fields[b"value"] for _, fields in entries if b"value" in fields]


def noted(server: KorvetServer, checkpoint: Path) -> set[int]:
    """The newest batch of each task of which records were committed."""
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    found = set()
    for task in range(PARTITIONS):
        group = f"korvet-sink-{query}-{task}"
        with closing(KafkaTopics(KafkaCluster(server.bootstrap), group, 20)) as topics:
            text = topics.noted("korvet-sink-progress")
        if text:
            found.add(int(text.partition(" ")[0]))
    return found
