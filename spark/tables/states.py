"""The state between batches of stored tables: what the rows of later batches depend on, stored separately.

`<name>/<batch>` has the rows of a state. `done/<batch>` is written last: it marks a complete batch, and names
the batch that wrote each state. `snapshot/<ms>` is written before the first rows of the newest snapshot, and
contains the findings about the cluster.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from korvet.spark.source.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from korvet.spark.session.folders import Folder

COMMITS, GROUPS, MEMBERS, SHARES = NAMES = ("commits", "groups", "members", "shares")
DONE: Final = "done"
SNAPSHOT: Final = "snapshot"


@dataclass(frozen=True, slots=True)
class State:
    """The state after a batch. writers: the batch that wrote each part; one that is missing has no rows."""

    folder: Folder
    writers: Mapping[str, int]

    def read(self, spark: SparkSession, name: str, schema: str | StructType) -> DataFrame:
        """Return the rows of one of NAMES."""
        writer = self.writers.get(name)
        if writer is None:
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(self.folder.child(name).child(str(writer)).location)

    def count(self, spark: SparkSession, *names: str) -> int:
        """Return the number of rows of some of NAMES, from the footers of their files."""
        files = [
            self.folder.child(name).child(str(writer)).location
            for name, writer in self.writers.items()
            if name in names
        ]
        return spark.read.schema("`group` string").parquet(*files).count() if files else 0


@dataclass(frozen=True, slots=True)
class States:
    """The states after the newest batches, in a folder."""

    folder: Folder

    def complete(self) -> set[int]:
        """Return the numbers of the complete batches whose states are kept."""
        return numbers(self.folder.child(DONE))

    def newest(self) -> int | None:
        """Return the number of the newest complete batch; None before the first."""
        return max(self.complete(), default=None)

    def after(self, number: int | None) -> State:
        """Return the state after a complete batch that is kept; without rows for None.

        Raises SourceError if the note of the batch is damaged.
        """
        if number is None:
            return State(self.folder, {})
        note = self.folder.child(DONE).child(str(number))
        text = note.read_text()
        # Earlier releases wrote an empty file here, and all states in every batch.
        if not text:
            return State(self.folder, dict.fromkeys((COMMITS, GROUPS, MEMBERS), number))
        try:
            writers = json.loads(text)
        except ValueError:
            writers = None
        if not isinstance(writers, dict) or not all(type(writer) is int for writer in writers.values()):
            raise SourceError(
                f"{note.location} is damaged: it doesn't name the batches that wrote the states"
            )
        return State(self.folder, writers)

    def keep(self, frame: DataFrame, name: str, number: int) -> None:
        """Write a state of a batch. Replaces what an interrupted attempt left."""
        frame.write.mode("overwrite").parquet(self.folder.child(name).child(str(number)).location)

    def finish(self, number: int, before: State, written: Collection[str]) -> None:
        """Mark a batch as complete. before: the state before it; written: the states that it changed."""
        writers = {**before.writers, **dict.fromkeys(written, number)}
        self.folder.child(DONE).child(str(number)).write_text(json.dumps(writers))

    def forget(self, number: int, needed: State) -> None:
        """Delete the states of a complete batch that a later one, `needed`, doesn't use."""
        for name, writer in self.after(number).writers.items():
            if needed.writers.get(name) != writer:
                self.folder.child(name).child(str(writer)).delete()
        self.folder.child(DONE).child(str(number)).delete()

    def snapshot_note(self, as_of_ms: int) -> str | None:
        """Return the note of the newest snapshot; None for an earlier one."""
        note = self.folder.child(SNAPSHOT).child(str(as_of_ms))
        return note.read_text() if note.exists() else None

    def begin_snapshot(self, as_of_ms: int, note: str) -> bool:
        """Note a snapshot before its first rows are written.

        Returns whether an earlier update may have written rows of this time: it is not after the newest one.
        The first releases with Delta noted none.
        """
        notes = self.folder.child(SNAPSHOT)
        begun = numbers(notes)
        newest = max(begun, default=None)
        if newest is not None and newest >= as_of_ms:
            return True
        notes.child(str(as_of_ms)).write_text(note)
        for earlier in begun:
            notes.child(str(earlier)).delete()
        return newest is None


def numbers(folder: Folder) -> set[int]:
    """Return the numbers that files of a folder have for names."""
    names = (uri.rpartition("/")[2] for uri in folder.files())
    return {int(name) for name in names if name.isdecimal()}
