"""What the official Kafka connector reads of a running broker, decoded by SQL expressions.

Also runs without the conftest.py files, in Spark 3.5: `python -m tools.spark_versions 3.5`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from korvet.spark.expressions import current_offsets, offset_commits
from tests.support.admin import create_topic
from tests.support.servers import KorvetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

PARTITIONS = 50


@pytest.fixture
def served() -> Iterator[KorvetServer]:
    server = KorvetServer()
    try:
        yield server.start()
    finally:
        server.discard()


def commit(bootstrap: str, group: str, offsets: list[int]) -> None:
    """Commit each offset for partition 0 of topic t, one after the other."""
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    for offset in offsets:
        client.commit(offsets=[TopicPartition("t", 0, offset)], asynchronous=False)
    client.close()


@pytest.mark.usefixtures("connector")
def test_commits_of_a_running_broker(spark: SparkSession, served: KorvetServer) -> None:
    create_topic(served.bootstrap, "t", 1)
    commit(served.bootstrap, "one", [1, 5, 3])
    commit(served.bootstrap, "two", [8])
    spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", served.bootstrap)
        .option("assign", json.dumps({"__consumer_offsets": list(range(PARTITIONS))}))
        .load()
    )
    commits = offset_commits(records).where("topic = 't'").orderBy("src_offset").collect()
    found = {
        group: [row["committed_offset"] for row in commits if row["group"] == group]
        for group in ("one", "two")
    }
    assert found == {"one": [1, 5, 3], "two": [8]}
    current = current_offsets(records).collect()
    assert {(row["group"], row["topic"], row["committed_offset"]) for row in current} == {
        ("one", "t", 3),
        ("two", "t", 8),
    }
