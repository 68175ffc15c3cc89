"""The program for `spark-submit`: `korvet export` and `korvet report` in the session that it starts.

    spark-submit --master spark://host:7077 .../korvet/spark/submit.py export orders --redis URL --to DIR

The driver needs korvet installed; executors get what they need of it from the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # A program's own folder is the first that imports look into, and no module of this one is meant so.
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here]

import click

from korvet.spark.cli import export, report

main = click.Group("korvet", commands=[export, report], help="Exports and reports, by spark-submit.")

if __name__ == "__main__":
    main()
