"""One loaded life of a partition of `__transaction_state`: what every coordinator's partition does, and the
markers, which are written once the decision is safe.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from korvet.coordinator.served import Claim, ServedPartition, Step
from korvet.offsets.transaction_log import encode_transaction_key, encode_transaction_value
from korvet.transactions.messages import (
    AddReply,
    AddRequest,
    DescribedTransaction,
    DescribeReply,
    DescribeRequest,
    EndReply,
    EndRequest,
    InitReply,
    InitRequest,
    ListReply,
    ListRequest,
)
from korvet.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from collections.abc import Callable

    from kio.schema.errors import ErrorCode

    from korvet.coordinator.served import EncodedRecord
    from korvet.transactions.messages import Markers, Outcome, Record, Reply

TransactionRequest: TypeAlias = InitRequest | AddRequest | EndRequest | DescribeRequest | ListRequest
Handler: TypeAlias = "Callable[[TransactionShard, Any, Any, int], Outcome]"
"""A request handler of TransactionShard, unbound."""


def refuse_transaction(request: TransactionRequest, error: ErrorCode) -> Reply:
    """The reply that says `error` for all that `request` asks."""
    if isinstance(request, InitRequest):
        return InitReply(error)
    if isinstance(request, AddRequest):
        return AddReply(error)
    if isinstance(request, EndRequest):
        return EndReply(error)
    if isinstance(request, DescribeRequest):
        return DescribeReply(tuple(DescribedTransaction(name, error) for name in request.transactional_ids))
    return ListReply((), error)


class TransactionTerm(ServedPartition[TransactionShard, Step]):
    """A served partition. on_markers(term, markers) is called for what is to be marked; `written` says what
    came of it.
    """

    def __init__(
        self,
        shard: TransactionShard,
        claim: Claim,
        on_markers: Callable[[TransactionTerm, Markers], None],
    ) -> None:
        super().__init__(shard, claim)
        self._on_markers = on_markers

    @property
    def leader_epoch(self) -> int:
        """The epoch that markers carry."""
        return self._log.leader_epoch

    def written(self, markers: Markers) -> None:
        """These markers are written."""
        if not self.closed:
            self._handle_event(partial(self._shard.markers_written, markers))

    def _step(self, outcome: Outcome) -> Step:
        return Step(outcome)

    def _replay(self, outcome: Outcome) -> None:
        for transactional_id, value in outcome.records:
            self._shard.replay(transactional_id, value)

    def _encode(self, record: Record) -> EncodedRecord:
        transactional_id, value = record
        encoded = None if value is None else encode_transaction_value(value)
        return encode_transaction_key(transactional_id), encoded

    def _refuse(self, request: TransactionRequest, error: ErrorCode) -> Reply:
        return refuse_transaction(request, error)

    def _release(self, step: Step) -> None:
        self._finish(step)
        for markers in step.outcome.markers:
            self._on_markers(self, markers)
