"""What differs between full and incremental fetches (KIP-227)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from korvet.api.fetching.params import FetchParams
    from korvet.api.fetching.partition import FetchedPartition
    from korvet.protocol.fetch_request import FetchRequest


class FetchStrategy(Protocol):
    """Which partitions a fetch reads, and what its response holds."""

    @property
    def partitions(self) -> Collection[FetchedPartition]:
        """The partitions that the request at work looks at: those that may have something new. A log that
        changes may add its partition.
        """

    def select(self, params: FetchParams) -> Sequence[FetchedPartition] | None:
        """Begin a request. Returns the partitions to read at once; none of them to answer without a read;
        None to wait for a log to change.
        """

    def on_log_changed(self, partition: FetchedPartition) -> None:
        """The log of a partition has changed that is listened to."""

    def continues(self, request: FetchRequest, params: FetchParams) -> bool:
        """Take over the partitions of the client's next request, if only these differ. Returns whether."""

    def answer(self, params: FetchParams) -> list[bytes]:
        """The response body. Afterwards the partitions hold no records any more."""

    def empty_throttled_response(self, params: FetchParams) -> list[bytes]:
        """The body that a throttled client gets instead of the last `answer`: no partitions (KIP-219)."""

    def release(self) -> None:
        """Stop listening to logs."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is kept for the next request."""
