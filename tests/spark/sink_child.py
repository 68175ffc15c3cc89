"""A process that writes the rows of one task, until it is killed or has nothing to write.

python -m tests.spark.sink_child BOOTSTRAP TOPIC JOB SEED ROWS PARTITIONS
"""

from __future__ import annotations

import sys

from korvet.spark.source.sink.options import parse_sink_options
from korvet.spark.source.sink.progress import Job
from korvet.spark.source.sink.task import write_task
from tests.spark.sinking import random_rows


def main(bootstrap: str, topic: str, job_id: str, seed: str, rows: str, partitions: str) -> None:
    """Write the rows once, in ten transactions, which takes several seconds."""
    rate = {"maxRecordsPerSecond": str(int(rows) // 10), "concurrentTasks": "1"}
    options = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": topic, **rate})
    write_task(options, Job(job_id, 0, 0), random_rows(int(seed), int(rows), int(partitions)))


main(*sys.argv[1:])
