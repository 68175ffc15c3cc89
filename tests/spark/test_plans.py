"""Plans: how often the tables read their sources, and how often they exchange rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from korvet.spark.export.tables import batch_table
from korvet.spark.source.address import Address
from korvet.spark.tables.readers import RedisReader
from tests.spark.conftest import configured
from tests.spark.test_views import NOW, scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

PARTITIONS = "spark.sql.shuffle.partitions"


@dataclass(frozen=True, slots=True)
class Shape:
    """The exchanges of a plan, broadcasts included, and the scans of topics."""

    exchanges: int
    scans: int


def shape_of(frame: DataFrame) -> Shape:
    """Returns the shape of the physical plan. A cached frame that is used twice is scanned once."""
    lines = frame._jdf.queryExecution().executedPlan().toString().splitlines()
    words = [re.sub(r"^[\s:|+*()\d-]*", "", line) for line in lines]
    return Shape(
        sum(word.startswith(("Exchange", "BroadcastExchange")) for word in words),
        len({word for word in words if word.startswith("BatchScan")}),
    )


@pytest.fixture
def several_partitions(spark: SparkSession) -> Iterator[None]:
    """With a single partition, Spark exchanges nothing."""
    with configured(spark, PARTITIONS, "4"):
        yield


@pytest.mark.usefixtures("own_driver", "few_rows", "several_partitions")
def test_status_reads_each_topic_once(spark: SparkSession, keyspace: Keyspace) -> None:
    scenario(keyspace)
    reader = RedisReader(Address(keyspace.url))
    shapes = {
        name: shape_of(batch_table(spark, reader, name, NOW))
        for name in ("record_lag", "time_lag", "partition_status", "group_status", "anomalies")
    }
    spark.catalog.clearCache()
    # `__consumer_offsets`, and the records of the topics. The last commits and the states of
    # groups, which tell the assigned partitions, are exchanged before they meet the records.
    lag = Shape(exchanges=5, scans=2)
    assert shapes == {
        "record_lag": lag,
        "time_lag": lag,
        # Whether a partition is silent depends on its group.
        "partition_status": Shape(exchanges=6, scans=2),
        "group_status": Shape(exchanges=6, scans=2),
        # The ends of partitions are broadcast.
        "anomalies": Shape(exchanges=2, scans=1),
    }
