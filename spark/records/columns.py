"""The columns of a page of entries, and what the records of a partition share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    from numpy.typing import NDArray

Header = tuple[str, bytes | None]

# Values of the column `timestampType`.
CREATE_TIME = 0
LOG_APPEND_TIME = 1
# Spark's timestamps, as those of Python and SQL, are in the years 1 to 9999.
MIN_SPARK_MS = -62_135_596_800_000
MAX_SPARK_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Origin:
    """What all records of one partition share.

    bias: an entry's packed ID minus its offset, 1 on topics with dense offsets, else 0.
    native_field: name of the field that is the value of a native application's entry; None if a JSON object
    of all fields is the value.
    append_times: all timestamps are the times in the entries' IDs. This holds on topics with LogAppendTime
    whose entry IDs are times, if no entry is a batch.
    """

    topic: str
    partition: int
    bias: int
    timestamp_type: int
    native_field: bytes | None = None
    append_times: bool = False

    @property
    def has_append_time(self) -> bool:
        """Whether an entry that is no batch has the time in its ID as timestamp, whatever its fields are."""
        return self.timestamp_type == LOG_APPEND_TIME and not self.bias


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """The headers of all rows, one row after the other. Row n has the headers ends[n] .. ends[n + 1] - 1."""

    names: pa.Array
    values: pa.Array
    ends: NDArray[np.int32]


@dataclass(slots=True)
class Columns:
    """The columns of one page. `timestamps_ms` also holds times that Spark doesn't have."""

    keys: Sequence[bytes | None] | pa.Array
    values: Sequence[bytes | None] | pa.Array
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64] | list[int]
    headers: list[list[Header] | None] | HeaderColumns | None
    timestamp_types: list[int] | NDArray[np.int64] | None = None
    """None if all rows have the topic's timestamp type."""
    producers: list[int] | None = None
    """Producer ID of each row's transaction, -1 for a row outside transactions; None if all rows are."""
    same_headers: Sequence[tuple[str, Sequence[bytes | None] | pa.Array]] = ()
    """Name and values of headers that every row has, in order. If set, `headers` is None."""
    damaged: Sequence[int] = ()
    """Offsets of entries that are damaged record batches. They have no rows."""
