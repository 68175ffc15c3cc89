"""The streaming reader for Spark 4.2, which asks for the end of a batch by its start and a limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from korvet.spark.source.stream import KorvetStreamReader, Progress

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from korvet.spark.source.settings import SourceOptions


class LimitedStreamReader(KorvetStreamReader, SupportsTriggerAvailableNow):
    """Limits the records of a batch, or waits for enough of them."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._triggered_s: float | None = None

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        """Return the limit of maxRecordsPerTrigger, else of minRecordsPerTrigger."""
        if self._options.trigger_records is not None:
            return ReadMaxRows(self._options.trigger_records)
        if self._options.least_trigger_records is not None:
            return ReadMinRows(self._options.least_trigger_records)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 (Spark's name)
        """Limit the query to the records that exist now."""
        self._goal = self._ends()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the current ends of all partitions, for the query's progress."""
        return self._ends().dump()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        """Return the end of the next batch; `start` if the batch must wait. Raises SourceError, DataLoss."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = self._next(Progress.load(start), most=most, least=self._least(limit))
        if found is None or (end := found.dump()) == start:
            return start
        self._triggered_s = time.monotonic()
        return end

    def _least(self, limit: ReadLimit) -> int:
        """The number of records that the batch waits for; 0 if it has waited long enough."""
        least = self._options.least_trigger_records
        if least is None or self._goal is not None or isinstance(limit, ReadAllAvailable):
            return 0
        if self._triggered_s is None:
            return 0
        waited_s = time.monotonic() - self._triggered_s
        return least if waited_s * 1000 < self._options.trigger_delay_ms else 0
