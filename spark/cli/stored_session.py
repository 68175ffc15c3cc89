"""What a session needs for stored tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from korvet.spark.cli.options import is_this_machine
from korvet.spark.session.delta import delta_session
from korvet.spark.tables.store import NOTE, STATE, check_note

if TYPE_CHECKING:
    from collections.abc import Mapping

# By default Delta reads its log in 50 tasks, for tables of millions of files. To list all files of a table
# beside each commit takes a job for the first commit, and outside UTC one for each, to verify the list.
_SMALL_LOGS: Final = {
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}


def stored_session(location: str, master: str) -> tuple[list[Path], Mapping[str, str]]:
    """Return the jars and settings of a session for the tables in a folder.

    Raises SourceError for a folder of this machine that is damaged or of an earlier release, and JarsMissing
    as delta_session does.
    """
    if is_this_machine(master) and "://" not in location and not location.startswith("file:"):
        note = Path(location) / STATE / NOTE
        if note.exists():
            check_note(note.read_text("utf-8", "replace"), location)
    jars, settings = delta_session(master)
    return jars, {**settings, **_SMALL_LOGS} if jars else settings
