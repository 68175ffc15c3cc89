"""Spark's data source on a Redis Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from redis.cluster import RedisCluster as Client

from korvet.offsets.packing import entry_id, pack
from korvet.spark.source.address import Address
from korvet.spark.source.connection import SourceConnection, connected
from korvet.spark.source.extents import StreamRange, extents
from korvet.spark.source.pages import pages
from korvet.spark.source.topics import load_topics
from tests.spark.keyspace import Keyspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from tests.support.cluster import ClusterNode, RedisCluster

PARTITIONS = 12
FIRST = pack(1_700_000_000_000, 0)


@pytest.fixture
def keyspace(redis_cluster: RedisCluster) -> Iterator[Keyspace]:
    """A topic with numbered records in each partition; the first node of the URL is unreachable."""
    for node in redis_cluster.nodes:
        node.client.flushall()
    client: Any = Client.from_url(redis_cluster.nodes[0].url, protocol=2)
    made = Keyspace(client, f"redis://127.0.0.1:1,127.0.0.1:{redis_cluster.nodes[0].port}")
    made.topic("t", PARTITIONS)
    for partition in range(PARTITIONS):
        for number in range(100):
            made.record("t", partition, FIRST + number, b"%d-%d" % (partition, number))
    yield made
    client.close()


def test_all_nodes_are_read(spark: SparkSession, keyspace: Keyspace) -> None:
    frame = keyspace.read(spark, "t")
    found = [(row.partition, row.offset, bytes(row.value)) for row in frame.collect()]
    assert sorted(found) == [
        (partition, FIRST + number, b"%d-%d" % (partition, number))
        for partition in range(PARTITIONS)
        for number in range(100)
    ]


def entries_of(connection: SourceConnection, address: Address, partition: int) -> list[str]:
    part = range_of(connection, address, partition)
    return [entry[0].decode() for page in pages(connection, part) for entry in page]


def range_of(connection: SourceConnection, address: Address, partition: int) -> StreamRange:
    topics = [load_topics(connection, address)["t"]]
    (one,) = extents(connection, address, topics, {("t", partition)})
    return StreamRange(one.stream, one.origin, 0, one.log_end, one.records)


def test_a_slot_that_moves_is_followed(redis_cluster: RedisCluster, keyspace: Keyspace) -> None:
    address = Address(keyspace.url)
    stream = address.stream("t", 3).encode()
    expected = [entry_id(FIRST + number) for number in range(100)]

    def other() -> ClusterNode:
        owner = redis_cluster.owner(stream)
        return next(node for node in redis_cluster.running if node is not owner)

    with connected(address) as connection:
        assert entries_of(connection, address, 3) == expected
        for _ in redis_cluster.migrating(stream, other()):
            # Before the key moves and after: the old node redirects (ASK).
            assert entries_of(connection, address, 3) == expected
        assert entries_of(connection, address, 3) == expected
        redis_cluster.move(stream, other())
        part = range_of(connection, address, 3)
        redis_cluster.move(stream, other())
        assert [entry[0].decode() for page in pages(connection, part) for entry in page] == expected
