"""Topics with unreadable catalogue entries: left out with a warning, as brokers do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from korvet.offsets.packing import pack
from korvet.spark.export.topics import check_topics
from korvet.spark.source.address import Address
from korvet.spark.source.connection import connected
from korvet.spark.source.errors import SourceError
from korvet.spark.source.topics import OFFSETS_TOPIC, load_topics
from korvet.spark.tables.readers import RedisReader
from tests.spark.test_source import MS
from tests.storage.test_shared_fields import MALFORMED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

# A bad config alone doesn't prevent reading the records.
DAMAGED = [
    *(
        (field, value)
        for name, field, value in MALFORMED
        if (name, field) == ("topics", b"bad") and b'"x"' not in value
    ),
    (b"\xff\xfe", b"{}"),
    (b"bad", b"[]"),
    (b"bad", b'{"partitions": Infinity}'),
]


@pytest.mark.parametrize(("field", "value"), DAMAGED)
def test_others_are_read(keyspace: Keyspace, field: bytes, value: bytes) -> None:
    keyspace.topic("t", 2)
    keyspace.client.hset("{korvet}:topics", field, value)
    address = Address(keyspace.url)
    with connected(address) as connection:
        assert set(load_topics(connection, address)) == {"t"}


def test_the_warning_names_the_topic_once(keyspace: Keyspace, caplog: pytest.LogCaptureFixture) -> None:
    keyspace.client.hset("{korvet}:topics", "warned-of", b"\x00")
    address = Address(keyspace.url)
    with connected(address) as connection:
        for _ in range(3):
            assert load_topics(connection, address) == {}
    (line,) = caplog.messages
    assert "{korvet}:topics" in line
    assert "'warned-of'" in line


def test_a_read_of_a_damaged_topic_says_so(keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.client.hset("{korvet}:topics", "bad", b"\x00")
    with pytest.raises(SourceError, match=r"topic 'bad' can't be read: .*korvet doctor"):
        check_topics(Address(keyspace.url), ["t", "bad"])


def test_a_report_without_its_topic_is_refused(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("t")
    keyspace.client.hset("{korvet}:topics", OFFSETS_TOPIC, b"\x00")
    with pytest.raises(SourceError, match="__consumer_offsets"):
        RedisReader(Address(keyspace.url)).offsets_topic(spark)


def test_a_pattern_reads_the_others(spark: SparkSession, keyspace: Keyspace) -> None:
    keyspace.topic("orders")
    keyspace.record("orders", 0, pack(MS, 0), b"v")
    keyspace.client.hset("{korvet}:topics", "orders-bad", b"\x00")
    source = spark.read.format("korvet").option("redis", keyspace.url).option("subscribePattern", "orders.*")
    assert [bytes(row["value"]) for row in source.load().collect()] == [b"v"]
