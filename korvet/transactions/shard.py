"""All transactional ids of one `__transaction_state` partition: the one entrance to this package.

    handler(request, token, now_ms) -> Outcome(records, replies, markers)      replay(id, value) -> None

Theory of operation. The caller passes a request to a handler. Directly after the handler has returned, and
before any other call, the caller replays the outcome's records in order; then it appends them to the log.
When all records returned so far are safe there, it sends the replies, and has the markers written by the
leaders of the partitions; `markers_written` reports each written marker. Lasting state changes by replay
alone, in the same way when a partition is loaded and when it is served. So an outcome that was decided
before a crash is still decided after `loaded`, which asks for its markers again: a marker that is written
twice does no harm. After a failed append, discard the shard and load a new one.

An id whose outcome is decided takes no requests before its last marker is written: the answer is
CONCURRENT_TRANSACTIONS, and clients retry. As in Kafka, this check precedes the check of the epoch, because
a client may use its next epoch as soon as EndTxn is answered; but EndTxn of the first protocol and
verification check the epoch first. Every producer before the newest is fenced by its epoch, which increases
with each InitProducerId, with each timeout and, in protocol version 2, with each transaction.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from korvet.groups.timers import Deadline, TimerQueue
from korvet.metrics.counted import Counted, counter, histogram, part
from korvet.metrics.declared import declare
from korvet.metrics.family import MetricType
from korvet.offsets.transaction_log import TransactionLogValue
from korvet.offsets.wire import fits_string
from korvet.transactions.messages import (
    BUMPING_PROTOCOL,
    NO_EPOCH,
    NO_PRODUCER_ID,
    AddReply,
    AddRequest,
    DescribedTransaction,
    DescribeReply,
    DescribeRequest,
    EndReply,
    EndRequest,
    InitReply,
    InitRequest,
    ListedTransaction,
    ListReply,
    ListRequest,
    Markers,
    Outcome,
    Record,
    Reply,
    Token,
    TopicPartition,
)
from korvet.transactions.state import PREPARED, TITLES, TransactionState
from korvet.transactions.transaction import LAST_CLIENT_EPOCH, MAX_EPOCH, NO_TIME_MS, Transaction, completed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from korvet.transactions.config import TransactionConfig

_SUCCESS: Final = ErrorCode.none
# Delay before a timeout is retried that found no producer id for the next transaction.
_RETRY_MS: Final = 100


class NotLoaded(Exception):
    """A request came to a shard before `loaded` was called: a defect of the caller."""


_ENDED: Final = declare(
    "korvet_transactions_ended_total",
    "Transactions by outcome: committed, aborted (by the producer), fenced (a new producer has the "
    "transactional id) or timed_out.",
    "outcome",
    kind=MetricType.COUNTER,
)


class TransactionCounts(Counted):
    """The transactions of all shards of a broker, since the start."""

    begun = counter("korvet_transactions_begun_total", "Transactions that were begun.")
    """They got their first partition."""
    committed = part(_ENDED, "committed")
    aborted = part(_ENDED, "aborted")
    fenced = part(_ENDED, "fenced")
    timed_out = part(_ENDED, "timed_out")
    expired_ids = counter(
        "korvet_transactional_ids_expired_total",
        "Transactional ids that were forgotten because nobody used them.",
    )
    duration = histogram(
        "korvet_transaction_seconds",
        "Time of transactions from the first partition to the decision, in seconds.",
    )
    marking = histogram(
        "korvet_transaction_markers_seconds",
        "Time from the decision about a transaction to its last marker, in seconds.",
    )


class TransactionShard:
    """The coordinator of the transactional ids of one partition.

    take_producer_id returns an unused id, or None while none is available: a request that needs one gets
    COORDINATOR_LOAD_IN_PROGRESS, which clients retry. All times are ms since the epoch.
    """

    __slots__ = (
        "_config",
        "_counts",
        "_expiry",
        "_first_producer_id",
        "_is_loaded",
        "_markers",
        "_now_ms",
        "_records",
        "_replies",
        "_take_producer_id",
        "_timers",
        "_transactions",
    )

    def __init__(
        self,
        config: TransactionConfig,
        take_producer_id: Callable[[], int | None],
        *,
        first_producer_id: int = 0,
        counts: TransactionCounts | None = None,
    ) -> None:
        """`first_producer_id`: producers with smaller ids are from before the data were restored from a
        backup. They are fenced, because clients may have later epochs of these ids, and parts of their
        transactions are lost. `counts`: what is counted, also after the shard's end.
        """
        self._counts = TransactionCounts() if counts is None else counts
        self._config = config
        self._first_producer_id = first_producer_id
        self._take_producer_id = take_producer_id
        self._transactions: dict[str, Transaction] = {}
        self._timers = TimerQueue()
        self._expiry = Deadline(self._expire)
        self._is_loaded = False
        self._now_ms = 0
        self._records: list[Record] = []
        self._replies: list[tuple[Token, Reply]] = []
        self._markers: list[Markers] = []

    # Requests

    def init_producer(self, request: InitRequest, token: Token, now_ms: int) -> Outcome:
        """InitProducerId -> InitReply. An open transaction of an earlier producer is aborted first; the
        client retries.
        """
        self._begin(now_ms)
        self._replies.append((token, self._init_producer(request)))
        return self.take_outcome()

    def add_partitions(self, request: AddRequest, token: Token, now_ms: int) -> Outcome:
        """AddPartitionsToTxn, AddOffsetsToTxn -> AddReply."""
        self._begin(now_ms)
        self._replies.append((token, self._add_partitions(request)))
        return self.take_outcome()

    def end(self, request: EndRequest, token: Token, now_ms: int) -> Outcome:
        """EndTxn -> EndReply when the outcome is decided; the markers follow."""
        self._begin(now_ms)
        self._replies.append((token, self._end(request)))
        return self.take_outcome()

    def time_out(self, request: EndRequest, token: Token, now_ms: int) -> Outcome:
        """An open transaction ends before its time, as by its timeout, whichever producer has it -> EndReply.
        INVALID_TXN_STATE if none is open.
        """
        self._begin(now_ms)
        transaction = self._transactions.get(request.transactional_id)
        if transaction is None or transaction.state is not TransactionState.ONGOING:
            self._replies.append((token, EndReply(ErrorCode.invalid_txn_state)))
        else:
            transaction.deadline.cancel()
            self._time_out(transaction)
            self._replies.append((token, EndReply(_SUCCESS)))
        return self.take_outcome()

    def describe(self, request: DescribeRequest, token: Token, now_ms: int) -> Outcome:
        """DescribeTransactions -> DescribeReply."""
        self._begin(now_ms)
        described = tuple(self._describe(each) for each in request.transactional_ids)
        self._replies.append((token, DescribeReply(described)))
        return self.take_outcome()

    def list_transactions(self, request: ListRequest, token: Token, now_ms: int) -> Outcome:
        """ListTransactions of this partition -> ListReply."""
        self._begin(now_ms)
        listed = tuple(
            ListedTransaction(each.transactional_id, each.value.producer_id, each.state.title)
            for each in self._transactions.values()
            if self._is_asked_for(each, request)
        )
        self._replies.append((token, ListReply(listed)))
        return self.take_outcome()

    # Events

    def markers_written(self, markers: Markers, now_ms: int) -> Outcome:
        """These markers (all that were asked for, or some) are in their logs, or not needed any more
        because the topic is deleted. Markers of a transaction that has ended are ignored.
        """
        self._begin(now_ms)
        transaction = self._transactions.get(markers.transactional_id)
        if transaction is not None and transaction.state in PREPARED:
            asked = transaction.markers
            same = (asked.producer_id, asked.producer_epoch, asked.committed)
            if same == (markers.producer_id, markers.producer_epoch, markers.committed):
                transaction.unmarked -= markers.partitions
                if not transaction.unmarked:
                    decided_ms = transaction.value.transaction_last_update_timestamp_ms
                    self._counts.marking.observe(max(now_ms - decided_ms, 0) / 1000)
                    self._record(transaction, completed(transaction.value, now_ms))
        return self.take_outcome()

    def tick(self, now_ms: int) -> Outcome:
        """Do the work that is due."""
        self._begin(now_ms)
        while (deadline := self._timers.pop_due(now_ms)) is not None:
            deadline.action()
        return self.take_outcome()

    def next_deadline_ms(self) -> int | None:
        """The latest time of the next `tick`."""
        return self._timers.next_ms()

    def shift(self, by_ms: int) -> None:
        """Move all deadlines by a step of the clock, forward or back."""
        self._timers.shift(by_ms)

    def states(self) -> Counter[TransactionState]:
        """How many transactional ids are in each state."""
        return Counter(transaction.state for transaction in self._transactions.values())

    @property
    def oldest_open_ms(self) -> int | None:
        """When the oldest open transaction began; None if none is open."""
        open_since = [
            transaction.value.transaction_start_timestamp_ms
            for transaction in self._transactions.values()
            if transaction.state is TransactionState.ONGOING
        ]
        return min(open_since, default=None)

    def is_ending(self, transactional_id: str) -> bool:
        """Whether the id's outcome is decided, and its last marker not written yet."""
        transaction = self._transactions.get(transactional_id)
        return transaction is not None and transaction.state in PREPARED

    def take_outcome(self) -> Outcome:
        """Returns the collected outcome and begins a new one; the remains of a handler that raised are
        for `discard`.
        """
        outcome = Outcome(self._records, self._replies, self._markers)
        self._records, self._replies, self._markers = [], [], []
        return outcome

    def discard(self, outcome: Outcome, tokens: Iterable[Token] = ()) -> None:
        """Drop an outcome that is not replayed. Nothing of it remains here, and no request waits in the
        shard.
        """

    # Replay

    def replay(self, transactional_id: str, value: TransactionLogValue | None) -> None:
        """Apply one record of the log; None is a tombstone. Raises ValueError if the state is not one of
        Kafka's.
        """
        transaction = self._transactions.get(transactional_id)
        if value is None or value.transaction_status == TransactionState.DEAD:
            if transaction is not None:
                transaction.deadline.cancel()
                del self._transactions[transactional_id]
            return
        if transaction is None:
            transaction = Transaction(transactional_id, value, self._time_out)
            self._transactions[transactional_id] = transaction
        else:
            transaction.take(value)
        if transaction.state is not TransactionState.ONGOING:
            transaction.deadline.cancel()
        elif self._is_loaded and not transaction.deadline.is_armed:
            self._timers.arm(transaction.deadline, transaction.due_ms(self._now_ms))

    def loaded(self, now_ms: int) -> Outcome:
        """All records are replayed: serve. Decided transactions without all markers get their markers
        again; those without partitions have ended.
        """
        self._now_ms = now_ms
        self._is_loaded = True
        self._timers.arm(self._expiry, now_ms + self._config.expiration_check_interval_ms)
        for transaction in self._transactions.values():
            if transaction.state in PREPARED and transaction.unmarked:
                self._mark(transaction.transactional_id, transaction.value, transaction.unmarked)
            elif transaction.state in PREPARED:
                self._record(transaction, completed(transaction.value, now_ms))
            elif transaction.state is TransactionState.ONGOING:
                self._timers.arm(transaction.deadline, transaction.due_ms(now_ms))
        return self.take_outcome()

    # InitProducerId

    def _init_producer(self, request: InitRequest) -> InitReply:
        if not fits_string(request.transactional_id):
            return InitReply(ErrorCode.invalid_request)
        if not 0 < request.timeout_ms <= self._config.max_timeout_ms:
            return InitReply(ErrorCode.invalid_transaction_timeout)
        transaction = self._transactions.get(request.transactional_id)
        if transaction is None:
            return self._first_producer(request)
        if transaction.state in PREPARED:
            return InitReply(ErrorCode.concurrent_transactions)
        goes_on = request.producer_id != NO_PRODUCER_ID
        if not _may_initialise(transaction, request) or (goes_on and self._is_restored(transaction)):
            return InitReply(ErrorCode.producer_fenced)
        if transaction.state is TransactionState.ONGOING:
            # The producer itself may continue afterwards (KIP-360); a producer that is replaced may not.
            error = self._fence(transaction, goes_on=goes_on)
            self._counts.fenced += error is _SUCCESS
            return InitReply(error or ErrorCode.concurrent_transactions)
        return self._next_producer(transaction, request)

    def _first_producer(self, request: InitRequest) -> InitReply:
        producer_id = self._take_producer_id()
        if producer_id is None:
            return InitReply(ErrorCode.coordinator_load_in_progress)
        value = TransactionLogValue(
            producer_id=producer_id,
            producer_epoch=0,
            transaction_timeout_ms=request.timeout_ms,
            transaction_status=TransactionState.EMPTY,
            transaction_partitions=None,
            transaction_last_update_timestamp_ms=self._now_ms,
            transaction_start_timestamp_ms=NO_TIME_MS,
        )
        self._records.append((request.transactional_id, value))
        return InitReply(_SUCCESS, producer_id, 0)

    def _next_producer(self, transaction: Transaction, request: InitRequest) -> InitReply:
        """The id's next epoch; the same epoch for a repeated request."""
        value, expected = transaction.value, request.producer_epoch
        goes_on = expected != NO_EPOCH
        producer_id, epoch, previous_id = value.producer_id, value.producer_epoch, value.previous_producer_id
        is_next = not goes_on or (request.producer_id, expected) == (producer_id, epoch)
        if not is_next and expected != transaction.retry_epoch:
            return InitReply(ErrorCode.producer_fenced)
        if is_next:
            epoch += 1
        if epoch > LAST_CLIENT_EPOCH or self._is_restored(transaction):
            fresh_id = self._take_producer_id()
            if fresh_id is None:
                return InitReply(ErrorCode.coordinator_load_in_progress)
            previous_id = producer_id if goes_on else NO_PRODUCER_ID
            producer_id, epoch = fresh_id, 0
        transaction.retry_epoch = expected
        initialised = transaction.initialised(
            producer_id, epoch, request.timeout_ms, self._now_ms, previous_id
        )
        self._record(transaction, initialised)
        return InitReply(_SUCCESS, producer_id, epoch)

    # AddPartitionsToTxn, AddOffsetsToTxn

    def _add_partitions(self, request: AddRequest) -> AddReply:
        transaction, error = self._of_producer(request)
        if transaction is None:
            return AddReply(error)
        is_ending = transaction.state in PREPARED
        if is_ending and not request.verify_only:
            return AddReply(ErrorCode.concurrent_transactions)
        if request.producer_epoch != transaction.value.producer_epoch or _is_beyond(request):
            return AddReply(ErrorCode.producer_fenced)
        if is_ending:
            return AddReply(ErrorCode.concurrent_transactions)
        absent = request.partitions - transaction.partitions
        if request.verify_only:
            return AddReply(_SUCCESS, absent)
        if transaction.state is not TransactionState.ONGOING:
            self._counts.begun += 1
        if absent or transaction.state is not TransactionState.ONGOING:
            grown = transaction.with_partitions(request.partitions, request.protocol, self._now_ms)
            self._record(transaction, grown)
        return AddReply(_SUCCESS)

    # EndTxn

    def _end(self, request: EndRequest) -> EndReply:
        transaction, error = self._of_producer(request)
        if transaction is None:
            return EndReply(error)
        bumps = request.protocol >= BUMPING_PROTOCOL
        is_ending = transaction.state in PREPARED
        if is_ending and bumps:
            # Checked before the epoch: whether the epoch is current shows when the markers are written.
            return EndReply(ErrorCode.concurrent_transactions)
        is_retry = bumps and _is_repeated(transaction, request)
        if not self._is_valid_epoch(transaction, request, is_retry=is_retry):
            return EndReply(ErrorCode.producer_fenced)
        if is_ending:
            return EndReply(ErrorCode.concurrent_transactions)
        state, wanted = transaction.state, _complete_state(request.committed)
        if state is not TransactionState.ONGOING:
            if state is wanted and (is_retry or not bumps):
                return self._ended(transaction.value, bumps=bumps)
            # A transaction that was never begun can be aborted if the epoch distinguishes it from an ended
            # one.
            if not bumps or is_retry or request.committed:
                return EndReply(ErrorCode.invalid_txn_state)
        return self._decide(transaction, request, bumps=bumps)

    def _is_valid_epoch(self, transaction: Transaction, request: EndRequest, *, is_retry: bool) -> bool:
        if request.producer_epoch == transaction.value.producer_epoch and not _is_beyond(request):
            return True
        over = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
        return is_retry and transaction.state in over

    def _decide(self, transaction: Transaction, request: EndRequest, *, bumps: bool) -> EndReply:
        value = transaction.value
        epoch, next_id = value.producer_epoch, NO_PRODUCER_ID
        if bumps:
            if transaction.is_exhausted:
                fresh_id = self._take_producer_id()
                if fresh_id is None:
                    return EndReply(ErrorCode.coordinator_load_in_progress)
                next_id = fresh_id
            transaction.retry_epoch = epoch
            epoch += 1
        decided = transaction.decided(
            epoch, next_id, self._now_ms, committed=request.committed, protocol=request.protocol
        )
        if request.committed:
            self._counts.committed += 1
        else:
            self._counts.aborted += 1
        self._record_decision(transaction, decided)
        return self._ended(decided, bumps=bumps)

    @staticmethod
    def _ended(value: TransactionLogValue, *, bumps: bool) -> EndReply:
        if not bumps:
            return EndReply(_SUCCESS)
        if value.next_producer_id != NO_PRODUCER_ID:
            return EndReply(_SUCCESS, value.next_producer_id, 0)
        return EndReply(_SUCCESS, value.producer_id, value.producer_epoch)

    def _fence(self, transaction: Transaction, *, goes_on: bool) -> ErrorCode:
        """Abort an open transaction of a producer under an epoch that the producer does not have; returns
        the error if that is impossible now. `goes_on`: whether the producer may get that epoch by
        InitProducerId.
        """
        value, next_id = transaction.value, NO_PRODUCER_ID
        if transaction.is_exhausted and value.client_transaction_version >= BUMPING_PROTOCOL:
            # Its producer may continue after the abort, which needs an epoch that clients may have.
            fresh_id = self._take_producer_id()
            if fresh_id is None:
                return ErrorCode.coordinator_load_in_progress
            next_id = fresh_id
        transaction.retry_epoch = value.producer_epoch if goes_on else NO_EPOCH
        decided = transaction.decided(
            min(value.producer_epoch + 1, MAX_EPOCH),
            next_id,
            self._now_ms,
            committed=False,
            protocol=value.client_transaction_version,
        )
        self._record_decision(transaction, decided)
        return _SUCCESS

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.state is not TransactionState.ONGOING:
            return
        # A producer that was only slow may continue (KIP-588).
        if self._fence(transaction, goes_on=True) is _SUCCESS:
            self._counts.timed_out += 1
        else:
            self._timers.arm(transaction.deadline, self._now_ms + _RETRY_MS)

    def _record_decision(self, transaction: Transaction, decided: TransactionLogValue) -> None:
        if transaction.state is TransactionState.ONGOING:
            began_ms = decided.transaction_start_timestamp_ms
            self._counts.duration.observe(max(self._now_ms - began_ms, 0) / 1000)
        self._record(transaction, decided)
        partitions = transaction.partitions if decided.transaction_partitions else frozenset()
        if partitions:
            self._mark(transaction.transactional_id, decided, partitions)
        else:
            self._record(transaction, completed(decided, self._now_ms))

    def _mark(
        self, transactional_id: str, decided: TransactionLogValue, partitions: frozenset[TopicPartition]
    ) -> None:
        committed = decided.transaction_status == TransactionState.PREPARE_COMMIT
        self._markers.append(
            Markers(
                transactional_id,
                decided.producer_id,
                decided.producer_epoch,
                committed,
                partitions,
                decided.transaction_last_update_timestamp_ms,
            )
        )

    # Descriptions

    def _describe(self, transactional_id: str) -> DescribedTransaction:
        if not transactional_id:
            return DescribedTransaction(transactional_id, ErrorCode.invalid_request)
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            return DescribedTransaction(transactional_id, ErrorCode.transactional_id_not_found)
        value = transaction.value
        return DescribedTransaction(
            transactional_id,
            _SUCCESS,
            transaction.state.title,
            value.transaction_timeout_ms,
            value.transaction_start_timestamp_ms,
            value.producer_id,
            value.producer_epoch,
            transaction.partitions,
        )

    def _is_asked_for(self, transaction: Transaction, request: ListRequest) -> bool:
        value, duration_ms = transaction.value, request.min_duration_ms
        if request.states and transaction.state.title not in request.states:
            return False
        if request.producer_ids and value.producer_id not in request.producer_ids:
            return False
        return duration_ms < 0 or self._now_ms - value.transaction_start_timestamp_ms > duration_ms

    # Time

    def _expire(self) -> None:
        """Forget ids that have been unused for long."""
        before_ms = self._now_ms - self._config.id_expiration_ms
        for transaction in self._transactions.values():
            is_idle = transaction.state not in PREPARED and transaction.state is not TransactionState.ONGOING
            if is_idle and transaction.value.transaction_last_update_timestamp_ms <= before_ms:
                self._records.append((transaction.transactional_id, None))
                self._counts.expired_ids += 1
        self._timers.arm(self._expiry, self._now_ms + max(self._config.expiration_check_interval_ms, 1))

    # Shared by handlers

    def _of_producer(self, request: AddRequest | EndRequest) -> tuple[Transaction | None, ErrorCode]:
        """The id's transaction, if the producer is the current one, the next one, or the previous one
        that may repeat its request.
        """
        if not request.transactional_id:
            return None, ErrorCode.invalid_request
        transaction = self._transactions.get(request.transactional_id)
        if transaction is None:
            return None, ErrorCode.invalid_producer_id_mapping
        value = transaction.value
        is_known = request.producer_id in {value.producer_id, value.next_producer_id} - {NO_PRODUCER_ID}
        repeats = isinstance(request, EndRequest) and _is_repeated_at_rotation(transaction, request)
        if not is_known and not repeats:
            return None, ErrorCode.invalid_producer_id_mapping
        if self._is_restored(transaction):
            return None, ErrorCode.producer_fenced
        return transaction, _SUCCESS

    def _is_restored(self, transaction: Transaction) -> bool:
        return transaction.value.producer_id < self._first_producer_id

    def _record(self, transaction: Transaction, value: TransactionLogValue) -> None:
        former = transaction.value
        if value.producer_id == former.producer_id:
            assert value.producer_epoch >= former.producer_epoch, f"{value} follows {former}"
        self._records.append((transaction.transactional_id, value))

    def _begin(self, now_ms: int) -> None:
        if not self._is_loaded:
            raise NotLoaded
        self._now_ms = now_ms


def unknown_states(names: Iterable[str]) -> tuple[str, ...]:
    """The unknown states in a ListTransactions request."""
    return tuple(name for name in names if name not in TITLES)


def _may_initialise(transaction: Transaction, request: InitRequest) -> bool:
    """Whether the producer that a request names may be the newest one, or the previous one whose id was
    exhausted (KIP-360).
    """
    if request.producer_id == NO_PRODUCER_ID:
        return True
    value = transaction.value
    if request.producer_id == value.producer_id:
        is_open = transaction.state is TransactionState.ONGOING
        # A fenced producer must not end the transaction of its successor.
        return not is_open or request.producer_epoch == value.producer_epoch
    was_exhausted = request.producer_epoch >= LAST_CLIENT_EPOCH
    return request.producer_id == value.previous_producer_id and was_exhausted


def _is_beyond(request: AddRequest | EndRequest) -> bool:
    """Whether the epoch is the one that only the coordinator uses, for fencing."""
    return request.producer_epoch > LAST_CLIENT_EPOCH


def _is_repeated(transaction: Transaction, request: EndRequest) -> bool:
    """Whether an EndTxn of protocol version 2 has already taken effect: it has bumped the epoch by one.

    InitProducerId bumps it too: a transaction that ends by the first protocol then belongs to another
    producer.
    """
    value = transaction.value
    if value.client_transaction_version < BUMPING_PROTOCOL:
        return False
    bumped = value.producer_id == request.producer_id and value.producer_epoch == request.producer_epoch + 1
    return bumped or _is_repeated_at_rotation(transaction, request)


def _is_repeated_at_rotation(transaction: Transaction, request: EndRequest) -> bool:
    value = transaction.value
    return (
        request.protocol >= BUMPING_PROTOCOL
        and request.producer_id == value.previous_producer_id
        and request.producer_epoch == LAST_CLIENT_EPOCH
        and value.producer_epoch == 0
    )


def _complete_state(committed: bool) -> TransactionState:
    return TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
