"""The source in a session: transactions in batches and streams, and what older versions of Spark refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from korvet.spark.versions import features
from tests.spark.direct import source_error
from tests.spark.test_transactions import Log

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.keyspace import Keyspace

pytestmark = pytest.mark.spark

QUERY_TIMEOUT_S = 120


def values(frame: DataFrame) -> list[str]:
    """The values of a topic as sorted strings."""
    return sorted(row["value"].decode() for row in frame.select("value").collect())


class Following:
    """A stream of topic t into files; each run reads what is new."""

    def __init__(self, spark: SparkSession, keyspace: Keyspace, folder: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"redis": keyspace.url, "topic": "t", **options}
        self._out, self._checkpoint = str(folder / "out"), str(folder / "checkpoint")

    def run(self) -> list[str]:
        """Returns the values of all runs."""
        frame = self._spark.readStream.format("korvet").options(**self._options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self._checkpoint)
        query = writer.trigger(availableNow=True).start(self._out)
        assert query.awaitTermination(QUERY_TIMEOUT_S)
        return values(self._spark.read.parquet(self._out))


@pytest.mark.long
@pytest.mark.parametrize("open_transactions", ["wait", "pass"])
def test_transactions(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, open_transactions: str
) -> None:
    log = Log(keyspace)
    log.record(b"alone")
    for producer, outcome in ((1, "commit"), (2, "abort")):
        log.record(outcome.encode(), producer)
        log.marker(producer, outcome)
    log.record(b"open", 3)
    log.record(b"behind")
    seen = ["alone", "commit"] if open_transactions == "wait" else ["alone", "behind", "commit"]
    option = {"openTransactions": open_transactions}
    stream = Following(spark, keyspace, tmp_path, **option)
    assert values(keyspace.read(spark, "t", **option)) == seen
    assert stream.run() == seen
    log.marker(3, "commit")
    whole = ["alone", "behind", "commit", "open"]
    assert values(keyspace.read(spark, "t", **option)) == whole
    assert stream.run() == whole


@pytest.mark.skipif(features().read_limits, reason="this Spark has limits of a trigger")
def test_limits_are_refused(
    spark: SparkSession, keyspace: Keyspace, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    keyspace.topic("t")
    stream = Following(spark, keyspace, tmp_path, maxRecordsPerTrigger="30")
    with pytest.raises(PySparkException, match=r"maxRecordsPerTrigger needs Spark 4\.2 or newer") as caught:
        stream.run()
    record_property("refused", source_error(caught.value))


@pytest.mark.skipif(features().filter_pushdown, reason="this Spark passes filters to data sources in Python")
def test_pushdown_is_refused(
    spark: SparkSession, keyspace: Keyspace, record_property: Callable[[str, object], None]
) -> None:
    keyspace.topic("t")
    with pytest.raises(PySparkException, match=r"pushdown needs Spark 4\.1 or newer") as caught:
        keyspace.read(spark, "t", pushdown="true").collect()
    record_property("refused", source_error(caught.value))
