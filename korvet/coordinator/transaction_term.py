"""One term of a partition of `__transaction_state`: the work of every coordinator's partition, and markers,
which are written once the decision is safe.

A producer of protocol version 2 continues as soon as the outcome is decided. Partitions that it adds to its
next transaction wait here, for a while and in order, for the markers of the last one: these take a few ms,
and the client would wait much longer before it retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from korvet.coordinator.served import Claim, Pending, ServedPartition, Step, call
from korvet.offsets.transaction_log import encode_transaction_key, encode_transaction_value
from korvet.transactions.messages import (
    BUMPING_PROTOCOL,
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

    from korvet.coordinator.served import Done, EncodedRecord, Token
    from korvet.transactions.messages import Markers, Outcome, Record, Reply

logger = logging.getLogger(__name__)

# Kafka's add.partitions.to.txn.retry.backoff.max.ms.
_LONGEST_HOLD_S: Final = 0.1

TransactionRequest: TypeAlias = InitRequest | AddRequest | EndRequest | DescribeRequest | ListRequest
Handler: TypeAlias = "Callable[[TransactionShard, Any, Any, int], Outcome]"
"""A request handler of TransactionShard, unbound."""


def refuse_transaction(request: TransactionRequest, error: ErrorCode) -> Reply:
    """The reply with `error` for every element of `request`."""
    if isinstance(request, InitRequest):
        return InitReply(error)
    if isinstance(request, AddRequest):
        return AddReply(error)
    if isinstance(request, EndRequest):
        return EndReply(error)
    if isinstance(request, DescribeRequest):
        return DescribeReply(tuple(DescribedTransaction(name, error) for name in request.transactional_ids))
    return ListReply((), error)


class _Held(NamedTuple):
    """A request that waits until its producer's last transaction has ended."""

    handler: Handler
    request: AddRequest
    done: Done
    timer: asyncio.TimerHandle


class TransactionTerm(ServedPartition[TransactionShard, Step]):
    """A served partition. on_markers(term, markers) is called for markers to write; `written` reports
    their results.
    """

    def __init__(
        self,
        shard: TransactionShard,
        claim: Claim,
        on_markers: Callable[[TransactionTerm, Markers], None],
    ) -> None:
        super().__init__(shard, claim)
        self._on_markers = on_markers
        # By transactional id, the oldest first.
        self._held: dict[str, deque[_Held]] = {}

    @property
    def shard(self) -> TransactionShard:
        """The shard, to look at only."""
        return self._shard

    @property
    def leader_epoch(self) -> int:
        """The epoch of the markers."""
        return self._log.leader_epoch

    def begin(self) -> None:
        """See ServedPartition. Replies and markers wait until replicas have what was loaded: a failover may
        take back what the term before appended, but neither a reply nor a marker in another partition.
        """
        loaded: list[Pending] = []

        def step_of(outcome: Outcome) -> Step:
            step = Step(outcome)
            step.unsafe += 1
            loaded.append(Pending(step, None, (b"", None, 0)))
            return step

        self._handle_event(self._shard.loaded, step_of)
        self._await_replicas(loaded, self._claim.log_end)

    def written(self, markers: Markers) -> None:
        """These markers are written."""
        if self.closed:
            return
        self._handle_event(partial(self._shard.markers_written, markers))
        transactional_id = markers.transactional_id
        while transactional_id in self._held and not self._shard.is_ending(transactional_id):
            self._let_go(transactional_id)

    def submit(self, handler: Handler, request: TransactionRequest, done: Done) -> Token:
        """See ServedPartition."""
        if isinstance(request, AddRequest) and self._has_to_wait(request):
            name = request.transactional_id
            timer = asyncio.get_running_loop().call_later(_LONGEST_HOLD_S, self._let_go, name)
            self._held.setdefault(name, deque()).append(_Held(handler, request, done, timer))
            return next(self._tokens)
        return super().submit(handler, request, done)

    def close(self, error: ErrorCode) -> None:
        """See ServedPartition."""
        super().close(error)
        held, self._held = self._held, {}
        for each in (one for queue in held.values() for one in queue):
            each.timer.cancel()
            call(each.done, self._refuse(each.request, error))

    def _has_to_wait(self, request: AddRequest) -> bool:
        name = request.transactional_id
        goes_on = request.protocol >= BUMPING_PROTOCOL and not request.verify_only
        return goes_on and (name in self._held or self._shard.is_ending(name))

    def _let_go(self, transactional_id: str) -> None:
        """Handle the oldest waiting request of a transactional id."""
        queue = self._held[transactional_id]
        held = queue.popleft()
        if not queue:
            del self._held[transactional_id]
        held.timer.cancel()
        try:
            super().submit(held.handler, held.request, held.done)
        except Exception:
            logger.exception("a transaction of %s failed", self._log.topic.name)
            call(held.done, self._refuse(held.request, ErrorCode.unknown_server_error))

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
