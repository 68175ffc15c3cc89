"""Fewer and larger files: the rows that many updates wrote for a day, in one set of files.

Each update writes its rows of a day into a folder of its own, a part. Compaction copies the rows of a day's
parts 0 .. M into part -(M + 1), then writes the marker `_state/compacted/<table>/<day>/<M>`. Only the copy of
the newest marker counts, and parts after M, so an interrupted compaction changes nothing. The next compaction
deletes what copies have replaced, so that running queries keep their files. A table that isn't partitioned by
day is one day, named `all`.
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
ALL: Final = "all"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a stored table.

    day, part: the columns by which its files are partitioned; a table without days has no `day`.
    markers: the folder of the table's markers, which need not exist.
    """

    table: Folder
    markers: Folder
    day: str | None
    part: str

    def counted(self, frame: DataFrame) -> DataFrame:
        """Return the rows that count, of a frame of all files."""
        through = self._through()
        if not through:
            return frame.where(sf.col(self.part) >= 0)
        if self.day is None:
            last = sf.lit(through[None])
        else:
            pairs = [sf.lit(each) for day, part in sorted(through.items()) for each in (day, part)]
            last = sf.coalesce(sf.element_at(sf.create_map(*pairs), sf.col(self.day)), sf.lit(-1))
        return frame.where((sf.col(self.part) > last) | (sf.col(self.part) == -(last + 1)))

    def days(self) -> Collection[date]:
        """Return the days that have files."""
        return [day for day in self._existing() if day is not None]

    def compact(self, frame: DataFrame, before: date, newest: int) -> list[date | None]:
        """Merge the parts 0 .. newest of each day before `before`; return the days that had several.

        A table without days is merged as a whole. frame: of all files, with the columns of the partitions.
        All these parts must be complete.
        """
        self._delete_replaced()
        through = self._through()
        days = [
            day
            for day, parts in self._existing().items()
            if (day is None or day < before)
            and sum(_counts(part, through.get(day, -1), newest) for part in parts) > 1
        ]
        if not days:
            return []
        by = [] if self.day is None else [self.day]
        chosen = self.counted(frame).where(sf.col(self.part) <= newest)
        for column in by:
            chosen = chosen.where(sf.col(column).isin(days))
        merged = chosen.withColumn(self.part, sf.lit(-(newest + 1)).cast("bigint")).hint("rebalance", *by)
        writer = merged.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*by, self.part).parquet(self.table.location)
        for day in days:
            self.markers.child(_name(day)).child(str(newest)).write_text("")
        return sorted(days, key=_name)

    def _through(self) -> Mapping[date | None, int]:
        """The last part that the copy of each day replaces."""
        newest: dict[date | None, int] = {}
        for uri in self.markers.files():
            _, name, part = uri.rsplit("/", 2)
            newest[_day(name)] = max(newest.get(_day(name), -1), int(part))
        return newest

    def _existing(self) -> Mapping[date | None, Collection[int]]:
        """The parts of each day that have files."""
        folder = "" if self.day is None else rf"/{self.day}=(?P<day>\d{{4}}-\d\d-\d\d)"
        pattern = re.compile(rf"{folder}/{self.part}=(?P<part>-?\d+)/[^/]+$")
        found: dict[date | None, set[int]] = defaultdict(set)
        for uri in self.table.files():
            match = pattern.search(uri)
            if match is not None:
                found[_day(match.groupdict().get("day", ALL))].add(int(match["part"]))
        return found

    def _delete_replaced(self) -> None:
        """Delete the parts, copies and markers that don't count any more."""
        through = self._through()
        for day, parts in self._existing().items():
            last = through.get(day, -1)
            for part in parts:
                if part <= last and part != -(last + 1):
                    folder = self.table if day is None else self.table.child(f"{self.day}={day}")
                    folder.child(f"{self.part}={part}").delete()
        for uri in list(self.markers.files()):
            _, name, number = uri.rsplit("/", 2)
            if int(number) < through[_day(name)]:
                self.markers.child(name).child(number).delete()


def _name(day: date | None) -> str:
    return ALL if day is None else str(day)


def _day(name: str) -> date | None:
    return None if name == ALL else date.fromisoformat(name)


def _counts(part: int, last: int, newest: int) -> bool:
    return last < part <= newest or part == -(last + 1)
