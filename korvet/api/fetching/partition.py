"""One partition of a fetch: what is requested, what was found, and what a session's client knows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.log.committed import cut_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.log.state import LogState
    from korvet.log.transactions import Aborted
    from korvet.log.values import Ends
    from korvet.protocol.fetch_request import RequestedPartition, TopicKey

# Sentinel: nothing advertised to the client yet.
_NOT_ADVERTISED: Final = -1


class FetchedPartition:
    """One partition of a fetch. Offsets are packed (korvet.offsets.packing)."""

    __slots__ = (
        "_end_before_read",
        "_listener",
        "aborted",
        "advertised_high_watermark",
        "advertised_log_start",
        "batches",
        "encoded",
        "error",
        "high_watermark",
        "index",
        "last_stable_offset",
        "leader_epoch",
        "listened_log",
        "log",
        "log_start",
        "lru_sequence",
        "max_bytes",
        "offset",
        "size_bytes",
        "topic",
    )

    def __init__(
        self, topic: TopicKey, index: int, offset: int, max_bytes: int, leader_epoch: int = -1
    ) -> None:
        """leader_epoch: the partition's leader epoch as the client knows it, -1 if the client sends none."""
        self.topic = topic
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.log: PartitionLog | None = None
        """The partition's log; None before it is located, and if it cannot be read."""
        self.advertised_high_watermark = _NOT_ADVERTISED
        self.advertised_log_start = _NOT_ADVERTISED
        self.lru_sequence = 0
        """Orders the partitions of a session, see FetchSession."""
        self.listened_log: PartitionLog | None = None
        """The log whose changes are reported to the listener."""
        self._listener: Callable[[FetchedPartition], None] | None = None
        self._clear()

    def move(self, asked: RequestedPartition) -> None:
        """Take over what the next request asks of this partition."""
        self.offset, self.max_bytes, self.leader_epoch = asked.offset, asked.max_bytes, asked.leader_epoch

    def copy(self) -> FetchedPartition:
        """The partition as its client knows it, not located and with nothing found."""
        copy = FetchedPartition(self.topic, self.index, self.offset, self.max_bytes, self.leader_epoch)
        copy.advertised_high_watermark = self.advertised_high_watermark
        copy.advertised_log_start = self.advertised_log_start
        copy.lru_sequence = self.lru_sequence
        return copy

    def _clear(self) -> None:
        self.error = ErrorCode.none
        self.batches: Sequence[bytes] = ()
        self.size_bytes = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start = -1
        self.aborted: Sequence[Aborted] = ()
        self._end_before_read = -1
        self.encoded = b""
        """What was found as it is in the response, if that stays the same until the log changes."""

    def reset_for_next(self) -> None:
        """Forget what was found, before the next fetch. After an error the log is located again."""
        if self.error is not ErrorCode.none:
            self.log = None
        self._clear()

    def found(self, batches: Sequence[bytes], ends: Ends) -> None:
        """Set what was read: record batches in any number of pieces, and the bounds of the log."""
        self.replace(batches)
        self.log_start, self.last_stable_offset, self.high_watermark = ends.visible

    def found_nothing(self, state: LogState) -> None:
        """Set the bounds of the log, which was not read."""
        self.found((), state.ends)

    def failed(self, error: ErrorCode) -> None:
        """Set the error of a read. An earlier read of this request may have found records."""
        self.replace(())
        self.log_start = self.last_stable_offset = self.high_watermark = -1
        self.error = error

    def replace(self, batches: Sequence[bytes]) -> None:
        """Return these record batches in place of the ones found."""
        self.batches = batches
        self.size_bytes = sum(map(len, batches))

    def is_at_end(self, state: LogState, *, is_committed: bool) -> bool:
        """Whether the log holds nothing more for this reader yet, as far as this broker knows. A closed log
        has no end: it has to be located again.
        """
        known, ends = state.known, state.ends
        if state.refusal is not None or not known.has_watermark:
            return False
        if not is_committed:
            return ends.high_watermark <= self.offset <= ends.log_end
        return known.is_stable_current and ends.last_stable_offset <= self.offset <= ends.log_end

    def begin_read(self, state: LogState) -> None:
        """Note the high watermark before a read, for `was_cut`."""
        self._end_before_read = state.ends.high_watermark

    def was_cut(self, *, is_committed: bool) -> bool:
        """Whether the log held more for this reader than what was found, already before the read."""
        # The last stable offset is always that before the read.
        end = self.last_stable_offset if is_committed else self._end_before_read
        if not self.size_bytes:
            return self.offset < end
        _, found_end = cut_batches([self.batches[-1]], end)
        # -1 if all of it was appended during the read.
        return 0 <= found_end < end

    def shows(self, state: LogState) -> bool:
        """Whether the offsets that were found are those of the log now."""
        return state.ends.visible == (self.log_start, self.last_stable_offset, self.high_watermark)

    def mark_advertised(self) -> None:
        """The client of the session gets what was found. The end of an error is news again."""
        failed = self.error is not ErrorCode.none
        self.advertised_high_watermark = _NOT_ADVERTISED if failed else self.high_watermark
        self.advertised_log_start = self.log_start

    @property
    def has_news(self) -> bool:
        """Whether the client of a session does not know yet what was found."""
        return (
            self.size_bytes > 0
            or self.high_watermark != self.advertised_high_watermark
            or self.log_start != self.advertised_log_start
            or self.error is not ErrorCode.none
        )

    def listen(self, listener: Callable[[FetchedPartition], None]) -> None:
        """Have `listener` called with this partition whenever its log changes, until `unlisten`."""
        self.unlisten()
        if self.log is not None:
            self.listened_log, self._listener = self.log, listener
            self.log.listen(self._on_log_changed)

    def unlisten(self) -> None:
        """Stop the calls of `listen`."""
        if self.listened_log is not None:
            self.listened_log.unlisten(self._on_log_changed)
            self.listened_log = self._listener = None

    def _on_log_changed(self) -> None:
        if self._listener is not None:
            self._listener(self)


def allowed_bytes(partitions: Iterable[FetchedPartition], *, is_committed: bool) -> int:
    """The size of what was found, in which each partition whose log held more counts with its limit."""
    return sum(
        max(partition.size_bytes, partition.max_bytes)
        if partition.was_cut(is_committed=is_committed)
        else partition.size_bytes
        for partition in partitions
    )
