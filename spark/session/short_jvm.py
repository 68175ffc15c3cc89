"""Options of a JVM that runs queries of few rows and ends, such as that of one refresh of tables.

Most of its time goes into starting: loading classes and compiling them. Therefore it has only the first
compiler, and maps an archive of classes that the first such JVM writes when it ends. Nobody waits for it: the
command has ended then. Without the archive, a report takes 1.2 to 1.4 times the CPU time. To write it takes
tens of seconds of CPU time, so only one JVM at a time does.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.find_spark_home import _find_spark_home

from korvet.spark.session.jars import jars_folder
from korvet.spark.session.session import java_command, runs_in_driver

if TYPE_CHECKING:
    from collections.abc import Mapping

_QUICK: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
# An archive that doesn't fit, or isn't complete, is ignored with a warning on the standard output.
_SILENT: Final = "-Xlog:disable -Xlog:all=error:stderr"
# A JVM that hasn't written the archive within this time was killed.
_WRITING_S: Final = 1800


def short_session(master: str) -> Mapping[str, str]:
    """Return the settings of such a session. A cluster has settings of its own. Raises JavaMissing."""
    if not runs_in_driver(master):
        return {}
    return {"spark.driver.extraJavaOptions": f"{_QUICK} {_archive_options()}".strip()}


def _archive_options() -> str:
    """The options that map the archive, or write it; none while another JVM writes it, or if nobody can."""
    folder = jars_folder()
    archive = folder / f"korvet-classes-{_identity()}.jsa"
    if archive.exists():
        return f'"-XX:SharedArchiveFile={archive}" {_SILENT}'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not _is_claimed(archive.with_suffix(".begun")):
            return ""
    except OSError:
        return ""
    return f'"-XX:ArchiveClassesAtExit={archive}" {_SILENT}'


def _is_claimed(note: Path) -> bool:
    """Note that a JVM is going to write the archive, unless another one is. Raises OSError."""
    if note.exists() and time.time() - note.stat().st_mtime < _WRITING_S:
        return False
    note.touch()
    return True


def _identity() -> str:
    """What an archive is made of: the Java, and the jars of Spark."""
    files = (Path(java_command()).resolve(), Path(_find_spark_home()) / "jars")
    seen = [f"{file} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(seen).encode()).hexdigest()[:16]
