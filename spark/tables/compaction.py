"""Fewer and larger files: the rows that many updates wrote for a day, in one set of files.

Each update writes its rows of a day into a folder of its own, a part. Compaction copies the rows of a day's
parts 0 .. M into part -(M + 1), then writes the marker `_state/compacted/<table>/<day>/<M>`. Only the copy of
the newest marker counts, and parts after M, so an interrupted compaction changes nothing. The next compaction
deletes what copies have replaced, so that running queries keep their files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as sf

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import DataFrame

    from korvet.spark.session.folders import Folder

COMPACTED: Final = "compacted"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a stored table. day, part: the columns by which its files are partitioned.

    markers: the folder of the table's markers, which need not exist.
    """

    table: Folder
    markers: Folder
    day: str
    part: str

    def counted(self, frame: DataFrame) -> DataFrame:
        """Return the rows that count, of a frame of all files."""
        through = self._through()
        if not through:
            return frame.where(sf.col(self.part) >= 0)
        pairs = [sf.lit(each) for day, part in sorted(through.items()) for each in (day, part)]
        last = sf.coalesce(sf.element_at(sf.create_map(*pairs), sf.col(self.day)), sf.lit(-1))
        return frame.where((sf.col(self.part) > last) | (sf.col(self.part) == -(last + 1)))

    def compact(self, frame: DataFrame, before: date, newest: int) -> list[date]:
        """Merge the parts 0 .. newest of each day before `before`; return the days that had several.

        frame: of all files, with both columns. All these parts must be complete.
        """
        self._delete_replaced()
        through = self._through()
        days = sorted(
            day
            for day, parts in self._existing().items()
            if day < before and sum(_counts(part, through.get(day, -1), newest) for part in parts) > 1
        )
        if not days:
            return []
        chosen = self.counted(frame).where(sf.col(self.day).isin(days) & (sf.col(self.part) <= newest))
        merged = chosen.withColumn(self.part, sf.lit(-(newest + 1)).cast("bigint")).hint(
            "rebalance", self.day
        )
        writer = merged.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(self.day, self.part).parquet(self.table.location)
        for day in days:
            self.markers.child(str(day)).child(str(newest)).write_text("")
        return days

    def _through(self) -> Mapping[date, int]:
        """The last part that the copy of each day replaces."""
        newest: dict[date, int] = {}
        for uri in self.markers.files():
            _, day, part = uri.rsplit("/", 2)
            newest[date.fromisoformat(day)] = max(newest.get(date.fromisoformat(day), -1), int(part))
        return newest

    def _existing(self) -> Mapping[date, Collection[int]]:
        """The parts of each day that have files."""
        pattern = re.compile(rf"/{self.day}=(\d{{4}}-\d\d-\d\d)/{self.part}=(-?\d+)/[^/]+$")
        found: dict[date, set[int]] = defaultdict(set)
        for uri in self.table.files():
            match = pattern.search(uri)
            if match is not None:
                found[date.fromisoformat(match[1])].add(int(match[2]))
        return found

    def _delete_replaced(self) -> None:
        """Delete the parts, copies and markers that don't count any more."""
        through = self._through()
        for day, parts in self._existing().items():
            last = through.get(day, -1)
            for part in parts:
                if part <= last and part != -(last + 1):
                    self.table.child(f"{self.day}={day}").child(f"{self.part}={part}").delete()
        for uri in list(self.markers.files()):
            _, name, number = uri.rsplit("/", 2)
            if int(number) < through[date.fromisoformat(name)]:
                self.markers.child(name).child(number).delete()


def _counts(part: int, last: int, newest: int) -> bool:
    return last < part <= newest or part == -(last + 1)
