"""The read of one partition's log for a fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from korvet.api.common.errors import Asked, error_code_of
from korvet.storage.errors import OffsetOutOfRange, StorageError, StorageFault
from korvet.storage.log.committed import Committed

if TYPE_CHECKING:
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.storage.log.values import Fetched


class Waiter(Protocol):
    """Waits for reads to end."""

    def read_done(self) -> None:
        """A read has ended."""


class PartitionRead:
    """Takes the outcome of a read, once.

    The callback that gets the reply of Redis may fail. Then this object is released, and the read ends with
    an error.
    """

    __slots__ = ("_partition", "_waiter")

    def __init__(self, waiter: Waiter, partition: FetchedPartition) -> None:
        self._waiter: Waiter | None = waiter
        self._partition = partition

    def __call__(self, outcome: Fetched | Committed | StorageError) -> None:
        waiter, self._waiter = self._waiter, None
        assert waiter is not None, "a read has ended twice"
        partition = self._partition
        if isinstance(outcome, StorageError):
            # An earlier read of this request may have found records.
            partition.found((), -1, -1, -1)
            partition.error = error_code_of(outcome, Asked.READ)
            if isinstance(outcome, OffsetOutOfRange):
                partition.high_watermark, partition.log_start = outcome.log_end, outcome.log_start
        elif isinstance(outcome, Committed):
            found_committed(partition, outcome)
        else:
            assert partition.log is not None
            last_stable_offset = partition.log.last_stable_offset
            partition.found([outcome.data], outcome.high_watermark, outcome.log_start, last_stable_offset)
        waiter.read_done()

    def __del__(self) -> None:
        if self._waiter is not None:
            self(StorageFault("the reply of Redis could not be handled"))


def found_committed(partition: FetchedPartition, outcome: Committed) -> None:
    """Set what was read with isolation level read_committed."""
    partition.found(outcome.batches, outcome.high_watermark, outcome.log_start, outcome.last_stable_offset)
    partition.aborted = outcome.aborted
