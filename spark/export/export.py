"""Exports: any frame to files, Delta, Iceberg or a database, once or continuously with a checkpoint.

However an export ends, what it leaves never looks complete while it is not: folders appear under their name
when they are whole, tables change in one commit. A continuous export has each row exactly once, killed and
started again as often as you like.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]

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
from korvet.spark.session.folders import Folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Below a folder that is exported to; hidden from readers of the folder.
CHECKPOINT_NAME = "_checkpoint"
SINK_LOG, DELTA_LOG, DONE = "_spark_metadata", "_delta_log", "_SUCCESS"
# CSV that gives back what was written, whoever reads it (RFC 4180): quotes are doubled, where Spark puts a
# backslash in front, spaces are kept, and an empty text is not a null.
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

    Raises ExportError when the target exists and the mode is `error`, or it can't be written so.
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
    """A query that writes the rows of a streaming frame as they come; stopped at the end of the block.

    `what` names the rows' origin: a checkpoint goes on only with the same. `trigger` is as for Spark's
    DataStreamWriter, `{"availableNow": True}` unless given. The checkpoint lies in the folder that is
    written to unless it is given; tables need one. Raises ExportError when the checkpoint and the target do
    not belong together.
    """
    target.check_columns(frame)
    folder = checkpoint_folder(frame, target, checkpoint)
    if target.mode == OVERWRITE:
        raise ExportError("a continuous export adds to what is there: choose another target, or remove it")
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
    """Where the checkpoint lies. Raises ExportError when a table is the target and none is given."""
    if checkpoint is not None:
        return Folder(frame.sparkSession, checkpoint)
    if target.table is not None:
        raise ExportError("a continuous export to a table needs a folder for its checkpoint: --checkpoint")
    return Folder(frame.sparkSession, target.location).child(CHECKPOINT_NAME)


@dataclass(frozen=True, slots=True)
class _FolderSink:
    """Spark's own sinks of files and of Delta: exactly once by their logs, which name batches by number."""

    target: Target

    def check_start(self, checkpoint: Folder, *, fresh: bool) -> None:
        """Raises ExportError when the folder and the checkpoint are not of one export.

        The sinks skip batches that their log has: a new checkpoint would count from 0 again, and lose rows.
        """
        target, folder, is_delta = self.target, self._folder(checkpoint), self.target.form == DELTA
        log = self._log(checkpoint)
        if is_delta:
            _check_delta(checkpoint.spark)
        if fresh and log.exists() and not is_delta:
            raise ExportError(
                f"{target.location} was exported with another checkpoint: go on from that one "
                "(--checkpoint), or choose another target"
            )
        may_add = is_delta and target.mode == APPEND
        if fresh and not may_add and (log.exists() or any(folder.files())):
            raise _exists(target, "remove it, or choose another")
        if not fresh and not log.exists() and has_progress(checkpoint):
            raise ExportError(
                f"{target.location} is not what the checkpoint {checkpoint.location} goes on from: "
                "remove both, or bring it back"
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
    """A sink that takes batches one by one and knows by their numbers which ones it has."""

    table: IcebergSink | JdbcSink

    def check_start(self, checkpoint: Folder, *, fresh: bool) -> None:
        """Raises ExportError when the table and the checkpoint are not of one export."""
        target, exists = self.table.target, self.table.exists(checkpoint.spark)
        if fresh and exists and target.mode == ERROR:
            raise ExportError(f"table {target.table} exists; choose the mode append, or another table")
        if not exists and has_progress(checkpoint):
            raise ExportError(
                f"table {target.table} is gone, which the checkpoint {checkpoint.location} goes on from: "
                "start again with another checkpoint"
            )

    def start(self, writer: DataStreamWriter, identity: Identity, checkpoint: Folder) -> StreamingQuery:
        """Start the query."""

        def append(batch: DataFrame, batch_id: int) -> None:
            self.table.append(batch, identity.export_id, batch_id)

        return writer.foreachBatch(append).start()


_SINKS: dict[str, Callable[[Target], _FolderSink | _BatchSink]] = {
    ICEBERG: lambda target: _BatchSink(IcebergSink(target)),
    JDBC: lambda target: _BatchSink(JdbcSink(target)),
}


def _remove_strays(folder: Folder, log: Folder) -> None:
    """Remove what a killed run left of an unfinished batch, which only Spark passes over, by its log."""
    strays = {uri for uri in folder.files() if uri.rpartition("/")[2].startswith("part-")}
    if strays and log.exists():
        committed = folder.spark.read.format("text").load(folder.location).inputFiles()
        strays -= {Folder.of_uri(folder.spark, uri).location for uri in committed}
    for uri in strays:
        Folder(folder.spark, uri).delete()


def _write_files(frame: DataFrame, target: Target) -> None:
    """A folder that appears, whole, under its name. Appending removes the mark of completeness first."""
    folder = Folder(frame.sparkSession, target.location)
    if target.mode == APPEND:
        if folder.child(SINK_LOG).exists():
            raise ExportError(f"{target.location} is a continuous export's; rows added so would be hidden")
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
    _check_delta(frame.sparkSession)
    folder = Folder(frame.sparkSession, target.location)
    if target.mode == ERROR and (folder.child(DELTA_LOG).exists() or any(folder.files())):
        raise _exists(target, HOW_TO_REPLACE)
    _save(frame, target, target.location, target.mode)


def _check_delta(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    if isinstance(jvm.io.delta.sql.DeltaSparkSessionExtension, JavaPackage):
        raise ExportError(
            "this Spark session has no Delta: start it with the jars that `korvet jars delta` fetches"
        )


def _exists(target: Target, advice: str) -> ExportError:
    return ExportError(f"{target.location} exists; {advice}")
