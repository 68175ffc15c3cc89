"""The command `korvet jars`."""

from __future__ import annotations

from pathlib import Path

import click

from korvet.spark.cli.options import progress, user_errors
from korvet.spark.session.jars import JARS, KAFKA, fetch_jars, jars_folder


@click.command()
@click.argument("names", nargs=-1, metavar="[kafka|delta]...")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the jars.  [default: KORVET_JARS_DIR, else the user's cache]",
)
def jars(names: tuple[str, ...], folder: Path | None) -> None:
    """Download jars for Spark, pinned and verified.

    \b
    kafka (default): Spark's Kafka connector, for report --source kafka.
    delta: for stored tables, and export --format delta.

    Existing jars are verified and kept.
    """
    unknown = [name for name in names if name not in JARS]
    if unknown:
        raise click.UsageError(f"unknown jars {', '.join(unknown)}; choose from {', '.join(JARS)}")
    with user_errors(), progress() as notify:
        for name in names or (KAFKA,):
            notify(f"Downloading jars: {name}")
            for jar, outcome in fetch_jars(folder, name):
                click.echo(f"{outcome:8} {jar.file_name}")
    click.echo(f"Verified by SHA-256, in {folder or jars_folder()}")
