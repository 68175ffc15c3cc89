"""A Spark job that copies the topic `in` to the topic `t`, in a process that tests can kill.

    python -m tests.spark.sink_job URL CHECKPOINT SINK [available-now]

SINK is a JSON object of the sink's options. It sets a rate, so that tasks have several chunks. The first
attempt of every task fails after some rows. Tasks have four attempts.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark import TaskContext

from korvet.spark.session.session import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa  # type: ignore[import-untyped]

CONF = {
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    "spark.ui.enabled": "false",
}
BATCHES_OF_FIRST_ATTEMPT = 12


def failing_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches; the first attempt of a task fails after some of them."""
    context = TaskContext.get()
    for number, batch in enumerate(batches):
        if number == BATCHES_OF_FIRST_ATTEMPT and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        yield batch


def main(url: str, checkpoint: str, sink: str, once: str = "") -> None:
    """Copy records until the process is killed, or what is there."""
    spark = build_session("sink job", "local[2,4]", conf=CONF)
    rows = spark.readStream.format("korvet").options(redis=url, topic="in").load()
    schema = "key binary, value binary, partition int, timestamp timestamp"
    rows = rows.selectExpr("key", "value", "partition", "timestamp").mapInArrow(failing_first, schema)
    stream = rows.writeStream.format("korvet").options(topic="t", **json.loads(sink))
    stream = stream.option("checkpointLocation", checkpoint)
    trigger = {"availableNow": True} if once else {"processingTime": "200 milliseconds"}
    query = stream.trigger(**trigger).start()  # type: ignore[arg-type]
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
