"""The read of one partition's log for a fetch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from korvet.api.common.errors import Asked, error_code_of
from korvet.log.committed import Committed
from korvet.redis.errors import OffsetOutOfRange, StorageError, StorageFault

if TYPE_CHECKING:
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.log.values import Fetched


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
            partition.failed(error_code_of(outcome, Asked.READ))
            if isinstance(outcome, OffsetOutOfRange):
                partition.high_watermark, partition.log_start = outcome.log_end, outcome.log_start
        elif isinstance(outcome, Committed):
            found_committed(partition, outcome)
        else:
            partition.found([outcome.data], outcome.ends)
        waiter.read_done()

    def __del__(self) -> None:
        if self._waiter is not None:
            self(StorageFault("the reply of Redis could not be handled"))


def found_committed(partition: FetchedPartition, outcome: Committed) -> None:
    """Set what was read with isolation level read_committed."""
    partition.found(outcome.batches, outcome.ends)
    partition.last_stable_offset = outcome.last_stable_offset
    partition.aborted = outcome.aborted
