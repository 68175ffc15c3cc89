"""One partition of a fetch: what is asked, what was found, and what a session's client was told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.transactions import Aborted

# No log starts or ends there: whatever is found is news.
_UNTOLD: Final = -1

TopicKey: TypeAlias = "str | UUID | None"
"""A topic as the request names it: by name, or by id, where None is the id of zeros."""


class FetchedPart:
    """One partition of a fetch and what was found there. Offsets are packed ones."""

    __slots__ = (
        "aborted",
        "batches",
        "error",
        "heard",
        "high_watermark",
        "index",
        "last_stable_offset",
        "leader_epoch",
        "listener",
        "log",
        "log_start",
        "max_bytes",
        "offset",
        "size_bytes",
        "told_high_watermark",
        "told_log_start",
        "topic",
        "turn",
    )

    def __init__(
        self, topic: TopicKey, index: int, offset: int, max_bytes: int, leader_epoch: int = -1
    ) -> None:
        self.topic = topic
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        """The partition's, as the client knows it; -1 where it does not say."""
        self.log: PartitionLog | None = None
        self.reset()
        self.told_high_watermark = _UNTOLD
        self.told_log_start = _UNTOLD
        self.turn = 0
        """Its place among a session's partitions, see FetchSession."""
        self.heard: PartitionLog | None = None
        """The log that has `listener`, where the partition is in a session."""
        self.listener: Callable[[], None] | None = None

    def copy(self) -> FetchedPart:
        """The same in a session, with nothing found yet and not located."""
        copy = FetchedPart(self.topic, self.index, self.offset, self.max_bytes, self.leader_epoch)
        copy.told_high_watermark, copy.told_log_start = self.told_high_watermark, self.told_log_start
        copy.turn = self.turn
        return copy

    def reset(self) -> None:
        """Nothing found yet."""
        self.error = ErrorCode.none
        self.batches: Sequence[bytes] = ()
        self.size_bytes = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start = -1
        self.aborted: Sequence[Aborted] = ()

    def take(self, batches: Sequence[bytes], log_end: int, log_start: int, last_stable_offset: int) -> None:
        """Record batches were found, in any number of pieces."""
        self.batches = batches
        self.size_bytes = sum(map(len, batches))
        self.high_watermark = log_end
        self.last_stable_offset = last_stable_offset
        self.log_start = log_start

    def replace(self, batches: Sequence[bytes]) -> None:
        """These are given instead of what was found."""
        self.batches = batches
        self.size_bytes = sum(map(len, batches))

    def told(self) -> None:
        """A session's client is told what was found; an error has to be news again when it is over."""
        self.told_high_watermark = self.high_watermark if self.error is ErrorCode.none else _UNTOLD
        self.told_log_start = self.log_start

    def hand_over(self) -> None:
        """For the next fetch in a session: nothing found yet, and to be located again after an error."""
        if self.error is not ErrorCode.none:
            self.log = None
        self.reset()

    @property
    def is_news(self) -> bool:
        """Whether a session's client has to be told what was found."""
        return (
            self.size_bytes > 0
            or self.high_watermark != self.told_high_watermark
            or self.log_start != self.told_log_start
            or self.error is not ErrorCode.none
        )
