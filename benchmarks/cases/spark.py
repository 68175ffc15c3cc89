"""Spark reads stored records on one core, with the source `korvet` and with Spark's Kafka connector.

The reference of both is the connector on Kafka. Without the connector's jars (`korvet jars`), only the source
is measured.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from benchmarks.cases.fetch import filled_topic, suffix
from benchmarks.cases.produce import RECORDS_PER_SECOND
from benchmarks.rig.measuring import KORVET, Sample
from benchmarks.rig.records import LAYOUTS, Shape
from korvet.spark.session.session import build_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.rig.measuring import Row
    from benchmarks.rig.rig import Rig
    from benchmarks.rig.servers import Cluster, Store

SHAPE = Shape(100, 64 << 10)
RECORDS = 1_000_000
BY_SOURCE, BY_CONNECTOR = "by the source", "by the connector"


def measure(rig: Rig) -> Iterator[Row]:
    """Measure rows per second, for both layouts."""
    jars = rig.connector_jars()
    spark = build_session("korvet benchmark", "local[1]", jars=jars, conf={"spark.driver.memory": "1g"})
    try:
        with rig.clusters_reading() as clusters:
            for layout in LAYOUTS:
                yield from measure_layout(rig, clusters, spark, layout, connector=bool(jars))
    finally:
        spark.stop()


def measure_layout(
    rig: Rig, clusters: Mapping[str, Cluster], spark: SparkSession, layout: str, *, connector: bool
) -> Iterator[Row]:
    """Measure the same records in each cluster: one read to warm up, then rounds."""
    sides: dict[str, Callable[[], Sample]] = {}
    topics = []
    for name, cluster in clusters.items():
        topic, records = filled_topic(cluster.in_layout(layout), SHAPE, rig.scaled(RECORDS))
        topics.append((cluster, topic))
        frames = {}
        if name == KORVET:
            frames[BY_SOURCE] = by_source(spark, rig.store, cluster.keyspace, topic)
        if connector:
            frames[BY_CONNECTOR] = by_connector(spark, cluster, topic)
        if frames:
            sides[name] = functools.partial(read, frames, records)
            sides[name]()
    figures = dict.fromkeys((BY_SOURCE, BY_CONNECTOR) if connector else (BY_SOURCE,), RECORDS_PER_SECOND)
    yield from rig.rows(f"Spark reads stored records, 100 B{suffix(layout)}", sides, figures)
    for cluster, topic in topics:
        cluster.drop_topic(topic)


def by_source(spark: SparkSession, store: Store, keyspace: str, topic: str) -> DataFrame:
    """Returns the topic, read from Redis."""
    options = {"redis": store.url, "keyspace": keyspace, "topic": topic, "includeHeaders": "false"}
    return spark.read.format("korvet").options(**options).load()


def by_connector(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    """Returns the topic, read with Kafka's protocol."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic}
    return spark.read.format("kafka").options(**options).load()


def read(frames: dict[str, DataFrame], records: int) -> Sample:
    """Read all rows and columns once with each reader, without writing them.

    A side without the source uses the connector's figure for both.
    """
    rates = {}
    for reader, frame in frames.items():
        began = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        rates[reader] = records / (time.monotonic() - began)
    rates.setdefault(BY_SOURCE, rates.get(BY_CONNECTOR, 0.0))
    return Sample(rates)
