"""The program for `spark-submit`: `korvet export`, `korvet report` and `korvet tables` in its session.

    spark-submit --master spark://host:7077 .../korvet/spark/submit.py export orders --redis URL --to DIR

korvet must be installed on the driver. Executors get their part of korvet from the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python searches the program's folder first. Its modules are not top-level modules, so remove the folder.
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != here]

import click

from korvet.spark.cli import export, report, tables

main = click.Group(
    "korvet",
    commands=[export, report, tables],
    help="Exports, reports and tables.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

if __name__ == "__main__":
    main()
