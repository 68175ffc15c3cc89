"""Drives a transaction shard as its caller must: replay at once, answer once, keep markers to be written."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from korvet.offsets.transaction_log import decode_transaction_value, encode_transaction_value
from korvet.transactions.config import TransactionConfig
from korvet.transactions.messages import (
    AddReply,
    AddRequest,
    DescribedTransaction,
    DescribeRequest,
    EndReply,
    EndRequest,
    InitReply,
    InitRequest,
    Markers,
)
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.offsets.transaction_log import TransactionLogValue
    from korvet.transactions.messages import Outcome

START_MS = 1_700_000_000_000
END_MS = START_MS + 1  # of what begins at START_MS: the end is later, although the clock stands still
TIMEOUT_MS = 60_000
PARTITION = ("orders", 0)


class Driver:
    """A shard, a clock, the log that it has written, and the markers that it wants written."""

    def __init__(
        self,
        config: TransactionConfig | None = None,
        *,
        log: Iterable[tuple[str, TransactionLogValue | None]] = (),
        now_ms: int = START_MS,
        take_producer_id: Callable[[], int | None] | None = None,
        first_producer_id: int = 0,
    ) -> None:
        numbers = count(100)
        self.take_producer_id = take_producer_id or (lambda: next(numbers))
        self.config = config or TransactionConfig()
        self.shard = TransactionShard(
            self.config,
            lambda: self.take_producer_id(),  # noqa: PLW0108
            first_producer_id=first_producer_id,
        )
        self.now_ms = now_ms
        self.log = list(log)
        self.markers: list[Markers] = []
        for key, value in self.log:
            self.shard.replay(key, value)
        self.take(self.shard.loaded(now_ms))

    def restarted(self) -> Driver:
        """What another coordinator makes of the log."""
        return Driver(self.config, log=self.log, now_ms=self.now_ms, take_producer_id=self.take_producer_id)

    def take(self, outcome: Outcome) -> Any:
        """Do with an outcome what the caller of a shard does; the reply, if there is one."""
        for key, value in outcome.records:
            if value is not None:
                assert decode_transaction_value(encode_transaction_value(value)) == value
            self.shard.replay(key, value)
            self.log.append((key, value))
        self.markers += outcome.markers
        return outcome.replies[0][1] if outcome.replies else None

    def init(self, name: str = "t", producer_id: int = -1, epoch: int = -1, **fields: int) -> InitReply:
        """InitProducerId."""
        request = InitRequest(name, fields.get("timeout_ms", TIMEOUT_MS), producer_id, epoch)
        reply = self.take(self.shard.init_producer(request, 0, self.now_ms))
        assert isinstance(reply, InitReply)
        return reply

    def add(self, producer_id: int, epoch: int, *partitions: tuple[str, int], **fields: Any) -> AddReply:
        """AddPartitionsToTxn."""
        request = AddRequest("t", producer_id, epoch, frozenset(partitions or (PARTITION,)), **fields)
        reply = self.take(self.shard.add_partitions(request, 0, self.now_ms))
        assert isinstance(reply, AddReply)
        return reply

    def end(self, producer_id: int, epoch: int, *, committed: bool = True, protocol: int = 0) -> EndReply:
        """EndTxn."""
        request = EndRequest("t", producer_id, epoch, committed, protocol)
        reply = self.take(self.shard.end(request, 0, self.now_ms))
        assert isinstance(reply, EndReply)
        return reply

    def written(self, markers: Markers) -> None:
        """Markers are in their logs."""
        self.take(self.shard.markers_written(markers, self.now_ms))

    def write_markers(self) -> list[Markers]:
        """Write all that are wanted."""
        markers, self.markers = self.markers, []
        for each in markers:
            self.written(each)
        return markers

    def advance(self, by_ms: int) -> None:
        """Let time go by, with ticks exactly when the shard wants them."""
        until_ms = self.now_ms + by_ms
        while (due_ms := self.shard.next_deadline_ms()) is not None and due_ms <= until_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.take(self.shard.tick(self.now_ms))
        self.now_ms = until_ms

    def describe(self, name: str = "t") -> DescribedTransaction:
        """DescribeTransactions of one id."""
        reply = self.take(self.shard.describe(DescribeRequest((name,)), 0, self.now_ms))
        described: DescribedTransaction = reply.transactions[0]
        return described

    @property
    def state(self) -> str:
        """The state of the id."""
        return self.describe().state
