"""What a continuous export keeps besides Spark's own checkpoint: its identity, and a lock on it."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from korvet.spark.export.target import ExportError
from korvet.spark.session.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from korvet.spark.session.folders import Folder

IDENTITY = "korvet-export.json"
LOCK = "korvet.lock"
# A killed driver's JVM ends by itself within seconds, and may write until then.
LOCK_PATIENCE_S = 60.0
LOCK_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Identity:
    """Which export a checkpoint belongs to.

    `export_id` is made once, `fresh` says that it was made just now, `is_locked` that nobody else can go on
    from the checkpoint meanwhile.
    """

    export_id: str
    fresh: bool
    is_locked: bool


@contextmanager
def claimed(folder: Folder, what: str, check: Callable[[bool], None]) -> Iterator[Identity]:
    """The checkpoint's identity, made when it has none, and locked where it is on a local disk.

    `what` says what is exported to where, without passwords; `check` is told whether the checkpoint is fresh
    before anything is written, and raises to keep it so. Raises ExportError when the checkpoint is another
    export's, or in use for longer than a killed one would take to end.
    """
    file = folder.child(IDENTITY)
    fresh = not file.exists()
    if fresh and folder.child("metadata").exists():
        raise ExportError(f"{folder.location} is the checkpoint of something else")
    # Earlier releases noted passwords, too.
    if not fresh and (former := redacted(json.loads(file.read_text())["what"])) != what:
        raise ExportError(f"the checkpoint {folder.location} is of another export ({former}, not {what})")
    check(fresh)
    with _locked(folder) as is_locked:
        if fresh:
            # FileExistsError when another export has begun from it meanwhile.
            file.write_text(json.dumps({"export_id": uuid.uuid4().hex, "what": what}))
        yield Identity(json.loads(file.read_text())["export_id"], fresh, is_locked)


def has_progress(folder: Folder) -> bool:
    """Whether a batch has been finished from this checkpoint."""
    return any(folder.child("commits").files())


@contextmanager
def _locked(folder: Folder) -> Iterator[bool]:
    """The lock is the JVM's: it is what writes, and it outlives a killed driver for a moment."""
    path = folder.local_path()
    if path is None:
        yield False
        return
    Path(path).mkdir(parents=True, exist_ok=True)
    jvm: Any = folder.spark._jvm
    file = jvm.java.io.RandomAccessFile(str(Path(path) / LOCK), "rw")
    try:
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise ExportError(f"another export is running from the checkpoint {folder.location}")
            time.sleep(LOCK_PAUSE_S)
        yield True
    finally:
        file.close()


def _try_lock(file: Any) -> bool:
    try:
        return file.getChannel().tryLock() is not None
    except Py4JJavaError as error:
        if "OverlappingFileLockException" not in str(error.java_exception.getClass().getName()):
            raise
        return False
