"""A process that reads `__consumer_offsets` again and again, as the task of a Spark job does, without Spark.

    python -m benchmarks.rig.scanner URL KEYSPACE [maxRedisCpu]

It prints "ready", and when its input ends, the number of records and of seconds.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time

from pyspark.sql.types import BinaryType, StructField, StructType

from korvet.spark.source.source import KorvetDataSource
from korvet.spark.source.topics import OFFSETS_TOPIC

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


def main(url: str, keyspace: str, *bound: str) -> None:
    """Read until the input ends."""
    options = {"redis": url, "keyspace": keyspace, "topic": OFFSETS_TOPIC}
    reader = KorvetDataSource({**options, **({"maxRedisCpu": bound[0]} if bound else {})}).reader(SCHEMA)
    tasks = reader.partitions()
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,)).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    records, began_s = 0, time.monotonic()
    batches = (batch for task in itertools.cycle(tasks) for batch in reader.read(task))
    while not ended.is_set():
        records += next(batches).num_rows
    sys.stdout.write(f"{records} {time.monotonic() - began_s}\n")


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
