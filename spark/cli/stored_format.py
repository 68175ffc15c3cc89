"""What a session needs for stored tables: Delta loads only when a session starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from korvet.spark.cli.options import is_this_machine
from korvet.spark.session import jars as jar_sets
from korvet.spark.session.connect import SCHEME
from korvet.spark.session.jars import JarsMissing, find_jars
from korvet.spark.session.session import is_submitted
from korvet.spark.tables.stores import DELTA, FORMAT, PARQUET, STATE, StoreFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

# By default Delta reads its log in 50 tasks, for tables of millions of files.
_SMALL_LOGS: Final = {"spark.databricks.delta.snapshotPartitions": "2"}


def tables_need(location: str, master: str, form: str | None = None) -> tuple[list[Path], Mapping[str, str]]:
    """Return the jars and settings of a session for the tables in a folder.

    form: None is the folder's. Nobody can look into a folder of another file system before Spark starts: the
    session gets Delta if its jars are there. spark-submit and a Spark Connect server have their own jars.
    Raises JarsMissing if the format is known to be Delta, and its jars are missing, SourceError for a damaged
    folder.
    """
    known = form or (_format_of(location) if is_this_machine(master) else None)
    if known == PARQUET or is_submitted() or master.startswith(SCHEME):
        return [], {}
    try:
        jars = find_jars(name=jar_sets.DELTA)
    except JarsMissing:
        if known == DELTA:
            raise
        return [], {}
    return jars, {**jar_sets.SETTINGS[jar_sets.DELTA], **_SMALL_LOGS}


def _format_of(location: str) -> str | None:
    """The format of a folder of this machine; None for a URI."""
    if "://" in location or location.startswith("file:"):
        return None
    file = Path(location) / STATE / FORMAT
    return StoreFormat.parsed(file.read_text("utf-8"), str(file)).form if file.exists() else PARQUET
