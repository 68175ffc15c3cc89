"""Draws the results of several runs as one picture.

./dev bench picture PICTURE RESULTS.json... [--only REGEX]
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click

from benchmarks.rig.measuring import Row
from benchmarks.rig.picture import write_picture

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("picture", type=_FILE)
@click.argument("results", nargs=-1, required=True, type=_FILE)
@click.option("--only", default="", metavar="REGEX", help="Draw only rows whose benchmark and figure match.")
def main(picture: Path, results: tuple[Path, ...], only: str) -> None:
    """Draw the rows of results in their order. Each row keeps the references of its own run."""
    rows = [row for path in results for row in rows_of(path)]
    write_picture(picture, [row for row in rows if re.search(only, f"{row.benchmark}: {row.figure}")])


def rows_of(path: Path) -> list[Row]:
    """Returns the rows of a run's JSON file."""
    return [
        Row(row["benchmark"], row["figure"], row["unit"], row["samples"])
        for row in json.loads(path.read_text("utf-8"))["rows"]
    ]


if __name__ == "__main__":
    main()
