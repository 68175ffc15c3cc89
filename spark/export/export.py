"""Exports: any frame to files, Delta, Iceberg or a database, once or continuously with a checkpoint.

An incomplete export never looks complete: folders get their name when they are complete, and tables change in
one commit. A continuous export writes each row exactly once, even if it is killed and restarted repeatedly.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from korvet.spark.export.checkpoint import Identity, claimed, has_progress
from korvet.spark.export.iceberg import IcebergSink
from korvet.spark.export.jdbc import JdbcSink
from korvet.spark.export.target import (
    APPEND,
    CSV,
    DELTA,
    ERROR,
    HOW_TO_REPLACE,
    ICEBERG,
    JDBC,
    OVERWRITE,
    ExportError,
    Target,
)
from korvet.spark.session.delta import check_delta
from korvet.spark.session.folders import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Name in the target folder. Readers of the folder skip it, because it begins with an underscore.
CHECKPOINT_NAME = "_checkpoint"
SINK_LOG, DELTA_LOG, DONE = "_spark_metadata", "_delta_log", "_SUCCESS"
# CSV that every reader of RFC 4180 reads as written: quotes are doubled (Spark's default is a backslash),
# spaces are kept, and an empty text is not null.
CSV_OPTIONS = {
    "header": "true",
    "nullValue": "",
    "emptyValue": '""',
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}


def export_batch(frame: DataFrame, target: Target) -> None:
    """Write all rows of the frame, once.

    Raises ExportError if the target exists with the mode `error`, or if it can't be written.
    """
    target.check_columns(frame)
    held = target.as_held(frame)
    if target.form == ICEBERG:
        IcebergSink(target).write(held)
    elif target.form == JDBC:
        JdbcSink(target).write(held)
    elif target.form == DELTA:
        _write_delta(held, target)
    else:
        _write_files(held, target)


@contextmanager
def export_stream(
    frame: DataFrame,
    target: Target,
    what: str,
    *,
    checkpoint: str | None = None,
    trigger: Mapping[str, Any] | None = None,
) -> Iterator[StreamingQuery]:
    """Return a query that writes the rows of a streaming frame; stop it at the end of the block.

    what: name of the rows' origin; a checkpoint continues only with the same name. checkpoint: its folder, by
    default in the target folder; a table needs one. trigger: of Spark's DataStreamWriter, by default
    {"availableNow": True}. Raises ExportError if the checkpoint and the target are not of one export.
    """
    target.check_columns(frame)
    folder = checkpoint_folder(frame, target, checkpoint)
    if target.mode == OVERWRITE:
        raise ExportError("a continuous export only adds rows: choose another target, or delete this one")
    sink = _SINKS.get(target.form, _FolderSink)(target)

    def check(fresh: bool) -> None:
        sink.check_start(folder, fresh=fresh)

    with claimed(folder, f"{what} to {target.name}", check) as identity:
        writer = target.as_held(frame).writeStream.option("checkpointLocation", folder.location)
        writer = writer.trigger(**(trigger or {"availableNow": True}))
        query = sink.start(writer, identity, folder)
        try:
            yield query
        finally:
            query.stop()


def checkpoint_folder(frame: DataFrame, target: Target, checkpoint: str | None) -> Folder:
    """Return the folder of the checkpoint. Raises ExportError if the target is a table and none is given."""
    if checkpoint is not None:
        return Folder(frame.sparkSession, checkpoint)
    if target.table is not None:
        raise ExportError("a continuous export to a table needs a folder for its checkpoint: --checkpoint")
    return Folder(frame.sparkSession, target.location).child(CHECKPOINT_NAME)


@dataclass(frozen=True, slots=True)
class _FolderSink:
    """Spark's sinks of files and Delta. Their logs contain batch numbers, so each batch counts once."""

    target: Target

    def check_start(self, checkpoint: Folder, *, fresh: bool) -> None:
        """Raises ExportError if the folder and the checkpoint are not of one export.

        The sinks skip batches in their log. A new checkpoint would count from 0 again and lose rows.
        """
        target, folder, is_delta = self.target, self._folder(checkpoint), self.target.form == DELTA
        log = self._log(checkpoint)
        if is_delta:
            check_delta(checkpoint.spark)
        if fresh and log.exists() and not is_delta:
            raise ExportError(
                f"{target.location} was exported with another checkpoint: continue with that one "
                "(--checkpoint), or choose another target"
            )
        may_add = is_delta and target.mode == APPEND
        if fresh and not may_add and (log.exists() or any(folder.files())):
            raise _exists(target, "delete it, or choose another")
        if not fresh and not log.exists() and has_progress(checkpoint):
            raise ExportError(
                f"{target.location} is not the target of the checkpoint {checkpoint.location}: "
                "delete both, or restore the target"
            )

    def start(self, writer: DataStreamWriter, identity: Identity, checkpoint: Folder) -> StreamingQuery:
        """Start the query."""
        target = self.target
        if target.form != DELTA and identity.is_locked:
            _remove_strays(self._folder(checkpoint), self._log(checkpoint))
        if target.partition_by:
            writer = writer.partitionBy(*target.partition_by)
        return writer.format(target.form).options(**_options(target)).start(target.location)

    def _folder(self, checkpoint: Folder) -> Folder:
        return Folder(checkpoint.spark, self.target.location)

    def _log(self, checkpoint: Folder) -> Folder:
        return self._folder(checkpoint).child(DELTA_LOG if self.target.form == DELTA else SINK_LOG)


@dataclass(frozen=True, slots=True)
class _BatchSink:
    """A sink that receives single batches and stores their numbers, so each batch counts once."""

    table: IcebergSink | JdbcSink

    def check_start(self, checkpoint: Folder, *, fresh: bool) -> None:
        """Raises ExportError if the table and the checkpoint are not of one export."""
        target, exists = self.table.target, self.table.exists(checkpoint.spark)
        if fresh and exists and target.mode == ERROR:
            raise ExportError(f"table {target.table} exists; use --mode append, or choose another table")
        if not exists and has_progress(checkpoint):
            raise ExportError(
                f"table {target.table} of the checkpoint {checkpoint.location} is gone: "
                "start again with another checkpoint"
            )

    def start(self, writer: DataStreamWriter, identity: Identity, checkpoint: Folder) -> StreamingQuery:
        """Start the query."""

        def append(batch: DataFrame, batch_id: int) -> None:
            self.table.append(batch, identity, batch_id)

        return writer.foreachBatch(append).start()


_SINKS: dict[str, Callable[[Target], _FolderSink | _BatchSink]] = {
    ICEBERG: lambda target: _BatchSink(IcebergSink(target)),
    JDBC: lambda target: _BatchSink(JdbcSink(target)),
}


def _remove_strays(folder: Folder, log: Folder) -> None:
    """Delete files of an unfinished batch after a crash. Spark skips them by its log; other readers don't."""
    strays = {uri for uri in folder.files() if uri.rpartition("/")[2].startswith("part-")}
    if strays and log.exists():
        committed = folder.spark.read.format("text").load(folder.location).inputFiles()
        strays -= {Folder.of_uri(folder.spark, uri).location for uri in committed}
    for uri in strays:
        Folder(folder.spark, uri).delete()


def _write_files(frame: DataFrame, target: Target) -> None:
    """Write a folder and rename it when it is complete. Appending deletes the file _SUCCESS first."""
    folder = Folder(frame.sparkSession, target.location)
    if target.mode == APPEND:
        if folder.child(SINK_LOG).exists():
            raise ExportError(
                f"{target.location} is of a continuous export; Spark would not read the added rows"
            )
        folder.child(DONE).delete()
        _save(frame, target, target.location, "append")
        return
    if target.mode == ERROR and folder.exists():
        raise _exists(target, HOW_TO_REPLACE)
    written = folder.scratch()
    try:
        _save(frame, target, written.location, "error")
        if folder.exists():
            former = folder.scratch()
            folder.rename(former)
            written.rename(folder)
            former.delete()
        else:
            written.rename(folder)
    finally:
        written.delete()


def _save(frame: DataFrame, target: Target, location: str, mode: str) -> None:
    writer = frame.write.mode(mode).format(target.form).options(**_options(target))
    if target.partition_by:
        writer = writer.partitionBy(*target.partition_by)
    writer.save(location)


def _options(target: Target) -> dict[str, str]:
    ours = CSV_OPTIONS if target.form == CSV else {}
    if target.form == DELTA and target.mode == OVERWRITE:
        ours = {"overwriteSchema": "true"}
    return {**ours, **target.options}


def _write_delta(frame: DataFrame, target: Target) -> None:
    check_delta(frame.sparkSession)
    folder = Folder(frame.sparkSession, target.location)
    if target.mode == ERROR and (folder.child(DELTA_LOG).exists() or any(folder.files())):
        raise _exists(target, HOW_TO_REPLACE)
    _save(frame, target, target.location, target.mode)


def _exists(target: Target, advice: str) -> ExportError:
    return ExportError(f"{target.location} exists; {advice}")
