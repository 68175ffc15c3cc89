"""A process that writes the rows of one task again and again, until it is killed or has nothing to write.

python -m tests.spark.sink_child URL SEED ROWS PARTITIONS
"""

from __future__ import annotations

import sys

from korvet.spark.source.sink.progress import Job
from korvet.spark.source.sink.task import write_task
from tests.spark.sinking import random_rows, sink_options


def main(url: str, seed: str, rows: str, partitions: str) -> None:
    """Write the rows once, in chunks of a few, which takes about a second."""
    options = sink_options(url, maxRecordsPerSecond=str(int(rows)))
    write_task(options, Job("j", 0, 0), random_rows(int(seed), int(rows), int(partitions)))


main(*sys.argv[1:])
