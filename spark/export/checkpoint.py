"""The identity of a continuous export in its checkpoint, and the lock on the checkpoint."""

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
from korvet.spark.session.driver_calls import is_connect
from korvet.spark.session.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from korvet.spark.session.folders import Folder

IDENTITY = "korvet-export.json"
LOCK = "korvet.lock"
# Longest wait for the lock. A killed driver's JVM ends within seconds, and may write until then.
LOCK_WAIT_S = 60.0
# Pause between two attempts.
LOCK_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Identity:
    """The export that a checkpoint belongs to. is_locked: no other export can use the checkpoint now."""

    export_id: str
    is_locked: bool


@contextmanager
def claimed(folder: Folder, what: str, check: Callable[[bool], None]) -> Iterator[Identity]:
    """Return the checkpoint's identity, created if it has none, and locked if it is on a local disk.

    what: origin and target of the export, without passwords. check: called with True for a new checkpoint,
    before anything is written; it raises to refuse the export. Raises ExportError if the checkpoint belongs
    to another export or is damaged, or if it is in use for longer than a killed export takes to end.
    """
    file = folder.child(IDENTITY)
    fresh = not file.exists()
    if fresh and folder.child("metadata").exists():
        raise ExportError(f"{folder.location} is the checkpoint of another program")
    # Checkpoints of earlier releases may contain passwords.
    if not fresh and (former := redacted(_identity(file)["what"])) != what:
        raise ExportError(f"the checkpoint {folder.location} is of another export ({former}, not {what})")
    check(fresh)
    with _locked(folder) as is_locked:
        if fresh:
            # Raises FileExistsError if another export has started with the checkpoint in between.
            file.write_text(json.dumps({"export_id": uuid.uuid4().hex, "what": what}))
        yield Identity(_identity(file)["export_id"], is_locked)


def _identity(file: Folder) -> Mapping[str, str]:
    """What the file of an identity contains. Raises ExportError if it is damaged."""
    try:
        found = json.loads(file.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), str) for key in ("export_id", "what")
    ):
        raise ExportError(f"{file.location} is damaged: it doesn't name the export of the checkpoint")
    return found


def has_progress(folder: Folder) -> bool:
    """Return whether a batch of this checkpoint is complete."""
    return any(folder.child("commits").files())


@contextmanager
def _locked(folder: Folder) -> Iterator[bool]:
    """Lock the checkpoint in the JVM, because the JVM writes and outlives a killed driver for a moment.

    The server of Spark Connect outlives its clients for longer, with their queries. There, a query that
    starts from a checkpoint stops the former one (spark.sql.streaming.stopActiveRunOnRestart).
    """
    path = None if is_connect(folder.spark) else folder.local_path()
    if path is None:
        yield False
        return
    Path(path).mkdir(parents=True, exist_ok=True)
    jvm: Any = folder.spark._jvm
    channel = jvm.java.io.RandomAccessFile(f"{path}/{LOCK}", "rw").getChannel()
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        # The variable keeps the lock: the JVM forgets one that nothing refers to.
        lock = _lock_of(channel)
        while lock is None:
            if time.monotonic() > deadline:
                raise ExportError(f"another export is running from the checkpoint {folder.location}")
            time.sleep(LOCK_PAUSE_S)
            lock = _lock_of(channel)
        yield True
    finally:
        channel.close()


def _lock_of(channel: Any) -> Any:
    """A lock on the whole file of a Java channel; None if another process or thread has one."""
    try:
        return channel.tryLock()
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "OverlappingFileLockException":
            raise
        return None
