"""What differs between full and incremental fetches (KIP-227)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from korvet.api.fetching.params import FetchParams
    from korvet.api.fetching.partition import FetchedPartition


class FetchStrategy(Protocol):
    """Which partitions a fetch reads, and what its response holds."""

    @property
    def partitions(self) -> Collection[FetchedPartition]:
        """The partitions of the request at work. A log that changes may add its partition."""

    def select(self, params: FetchParams) -> Sequence[FetchedPartition] | None:
        """Begin a request. Returns the partitions to read at once; None to wait for a log to change."""

    def repeats(self, request: object) -> bool:
        """Whether this is the same request again, whose partitions stay as they are."""

    def on_log_changed(self, partition: FetchedPartition) -> None:
        """The log of a partition has changed that is listened to."""

    def answer(self, params: FetchParams, *, has_read: bool) -> list[bytes]:
        """The response body. Afterwards the partitions hold no records any more."""

    def empty_throttled_response(self, params: FetchParams) -> list[bytes]:
        """The body that a throttled client gets instead of the last `answer`: no partitions (KIP-219)."""

    def release(self) -> None:
        """Stop listening to logs."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is kept for the next request."""
