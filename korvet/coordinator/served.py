"""One term of a coordinator's partition: from the acquisition of its epoch to its loss or a failed append;
for both coordinators.

Data flows one way: request → shard's handler → records → their bytes → replay → append → replies. Records
that come while an append is in flight go with the next one. The shard is ahead of the log by the records that
wait and those in flight; no reply leaves before everything earlier is safe, so no client sees what could
still be lost. A term in which an append failed is discarded: its shard knows more than the log.

Until its records are replayed, an outcome has no lasting effect. So if a handler raises, or a record does not
fit Kafka's format or max.message.bytes, only the requests that wait for that outcome are refused.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from kio.schema.errors import ErrorCode

from korvet.offsets.wire import EncodeError
from korvet.records.kernel import encode_append_records
from korvet.redis.errors import HistoryChanged, StorageError
from korvet.topics.configs import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended, ProducerSequence

logger = logging.getLogger(__name__)

Done: TypeAlias = "Callable[[Any], None]"
OnSafe: TypeAlias = "Callable[[ErrorCode], None]"
Token: TypeAlias = int
EncodedRecord: TypeAlias = tuple[bytes, bytes | None]
"""Key and value."""

# Limits the records of one append, which runs as one script: this many keep Redis busy for tens of
# milliseconds, and stay far below the 1,048,576 arguments of a command. Only expiry and deleted topics write
# that many at a time.
MAX_APPEND_RECORDS: Final = 10_000
RELEASE_TIMEOUT_MS: Final = 5_000
"""The default of offsets.commit.timeout.ms, as in Kafka."""
# Records up to this size are appended whatever the value of max.message.bytes: with a smaller value no group
# could commit. An offset with its metadata fits.
_ALWAYS_TAKEN_BYTES: Final = 200_000

_Shard = TypeVar("_Shard", bound=Any)
_Step = TypeVar("_Step", bound="Step")


class Claim(NamedTuple):
    """A claimed partition, and the callbacks to its owner.

    on_failure(error) is called when an append, a replay or an event failed; the owner then closes the term.
    on_deadline(at_ms) reports when `tick` must be called next (None: never).
    """

    log: PartitionLog
    epoch: int
    """The writers' epoch that was acquired."""
    log_end: int
    """The log end offset at that time."""
    clock: Callable[[], int]
    """Now in ms since the epoch."""
    on_deadline: Callable[[int | None], None]
    on_failure: Callable[[Exception], None]
    message_max_bytes: Callable[[], int]
    """Returns the largest record in bytes, unless the topic's max.message.bytes differs."""
    release_timeout_ms: int | None
    """Longest wait of a request for the replicas that the topic asks for; None: nothing waits for them."""


class Step:
    """An outcome in progress: safe once the last of its records is in the log, and on the replicas that the
    topic asks for; `unsafe` counts those that are not.
    """

    __slots__ = ("append_key", "error", "on_safe", "outcome", "unsafe")

    def __init__(self, outcome: Any, append_key: object = None) -> None:
        self.outcome = outcome
        self.unsafe = len(outcome.records)
        self.on_safe: OnSafe | None = None
        self.error = ErrorCode.none
        self.append_key = append_key
        """Records of steps with different keys go in different appends."""


class Pending(NamedTuple):
    """A record that waits for its append: its step, its content, and its key, value and timestamp in ms."""

    step: Any
    record: Any
    encoded: tuple[bytes, bytes | None, int]


class ServedPartition(ABC, Generic[_Shard, _Step]):
    """A loaded partition, served by a shard."""

    def __init__(self, shard: _Shard, claim: Claim) -> None:
        self._shard = shard
        self._claim = claim
        self._log = claim.log
        self._clock = claim.clock
        self._on_deadline = claim.on_deadline
        self._on_failure = claim.on_failure
        self._tokens = itertools.count()
        self._waiting: dict[Token, tuple[Any, Done]] = {}
        self._steps: deque[_Step] = deque()
        # Appends are sequential: records that come during an append go with the next one.
        self._pending: deque[Pending] = deque()
        self._sent: Sequence[Pending] = ()
        self._appending = False
        self.closed = False

    @property
    def writers_epoch(self) -> int:
        """The epoch of its appends."""
        return self._claim.epoch

    # What differs between coordinators

    @abstractmethod
    def _step(self, outcome: Any) -> _Step:
        """The step of a client's request."""

    @abstractmethod
    def _replay(self, outcome: Any) -> None:
        """Let the shard replay the outcome's records."""

    @abstractmethod
    def _encode(self, record: Any) -> EncodedRecord:
        """A record as it is in the log. Raises EncodeError if a field does not fit."""

    @abstractmethod
    def _refuse(self, request: Any, error: ErrorCode) -> Any:
        """The reply with `error` for every element of `request`."""

    @abstractmethod
    def _release(self, step: _Step) -> None:
        """A step and all steps before it are safe: release its effects."""

    def _rests_on_steps(self, request: Any, reply: Any) -> bool:
        """Whether the reply to a request without records may depend on one of the steps in progress."""
        return True

    def _needs_replicas(self, request: Any) -> bool:
        """Whether a client is refused if replicas do not have the records of its request."""
        return True

    def _step_needs_replicas(self, step: _Step) -> bool:
        """The same of a step that is in the log."""
        return True

    def _placed(self, pending: Pending, position: int) -> None:
        """A record is in the log, at this offset."""

    # Requests

    def submit(self, handler: Any, request: Any, done: Done) -> Token:
        """Handle a request. done(reply) is called once, before this returns or later, unless the token is
        withdrawn. The reply is UNKNOWN_SERVER_ERROR if a record of the request does not fit Kafka's format or
        exceeds max.message.bytes. If there are records, it is COORDINATOR_LOAD_IN_PROGRESS if Redis is known
        to take no writes, and COORDINATOR_NOT_AVAILABLE if replicas are known to be missing, or do not have
        the records in time, and the request needs them.

        An exception of the handler is raised here, without a call of done.
        """
        token = next(self._tokens)
        now_ms = self._clock()
        try:
            outcome = handler(self._shard, request, token, now_ms)
        except Exception:
            self._discard(self._shard.take_outcome())
            raise
        replies = outcome.replies
        is_own = len(replies) == 1 and replies[0][0] == token
        if is_own and not outcome.records:
            reply = replies[0][1]
            if not (self._steps and self._rests_on_steps(request, reply)):
                # Usually a heartbeat: the reply depends on nothing that is unsafe.
                self._on_deadline(self._shard.next_deadline_ms())
                call(done, reply)
                return token
        self._waiting[token] = (request, done)
        if outcome.records and self._log.writes_refused:
            # The append would end this term, which still answers reads: groups' offsets, for example.
            self._discard(outcome, token, error=ErrorCode.coordinator_load_in_progress)
            return token
        if outcome.records and self._needs_replicas(request) and self._lacks_replicas:
            self._discard(outcome, token, error=ErrorCode.coordinator_not_available)
            return token
        try:
            self._apply(self._step(outcome), now_ms, is_limited=True)
        except EncodeError as error:
            logger.warning("%s of %s is refused: %s", type(request).__name__, self._log.topic.name, error)
            self._discard(outcome, token)
        except Exception as error:
            self._waiting.pop(token, None)
            self._on_failure(error)
            raise
        return token

    def begin(self) -> None:
        """Serve from now on: everything is replayed."""
        self._handle_event(self._shard.loaded)

    def tick(self) -> None:
        """Do the work that is due."""
        self._handle_event(self._shard.tick)

    def shift(self, by_ms: int) -> None:
        """Move all deadlines by a step of the clock, forward or back."""
        self._shard.shift(by_ms)
        self._on_deadline(self._shard.next_deadline_ms())

    def close(self, error: ErrorCode) -> None:
        """Refuse waiting requests; nothing happens afterwards."""
        if self.closed:
            return
        self.closed = True
        self._on_deadline(None)
        waiting, self._waiting = self._waiting, {}
        steps, self._steps = self._steps, deque()
        for request, done in waiting.values():
            call(done, self._refuse(request, error))
        for step in steps:
            if step.on_safe is not None:
                call(step.on_safe, error)

    # Mechanism

    def _handle_event(
        self,
        event: Callable[[int], Any],
        step_of: Callable[[Any], _Step] | None = None,
        on_safe: OnSafe | None = None,
    ) -> None:
        """Handle work that no client asked for: no caller could take its exception, so the exception is
        logged.

        An event that raises ends the term: the shard has lost a deadline, which only a load restores.
        """
        now_ms = self._clock()
        try:
            step = (step_of or self._step)(event(now_ms))
            step.on_safe = on_safe
            error = self._apply_or_discard(step, now_ms)
        except Exception as failure:
            logger.exception("a shard of %s failed", self._log.topic.name)
            self._on_failure(failure)
            error = ErrorCode.coordinator_not_available
        if error is not ErrorCode.none and on_safe is not None:
            call(on_safe, error)

    def _apply_or_discard(self, step: _Step, now_ms: int) -> ErrorCode:
        """Apply the step of an event. Discards it and returns an error if its records do not fit Kafka's
        format, or if a caller waits for them and replicas are known to be missing.
        """
        if step.outcome.records and step.on_safe is not None and self._lacks_replicas:
            self._discard(step.outcome)
            return ErrorCode.coordinator_not_available
        try:
            self._apply(step, now_ms)
        except EncodeError:
            logger.exception(
                "records of %s do not fit Kafka's format, an event is skipped", self._log.topic.name
            )
            self._discard(step.outcome)
            return ErrorCode.unknown_server_error
        return ErrorCode.none

    def _discard(
        self, outcome: Any, *tokens: Token, error: ErrorCode = ErrorCode.unknown_server_error
    ) -> None:
        """Replay nothing of an outcome: refuse the requests that wait for it, and these."""
        self._shard.discard(outcome, tokens)
        for token in dict.fromkeys((*(answered for answered, _ in outcome.replies), *tokens)):
            waiting = self._waiting.pop(token, None)
            if waiting is not None:
                request, done = waiting
                call(done, self._refuse(request, error))
        self._on_deadline(self._shard.next_deadline_ms())

    def _apply(self, step: _Step, now_ms: int, *, is_limited: bool = False) -> None:
        """Replay a step's records and append them. Raises EncodeError before anything is replayed.

        Only requests are limited to max.message.bytes: an event makes no record much larger, and nothing
        would repeat its work later.
        """
        outcome = step.outcome
        records = outcome.records
        encoded = [Pending(step, record, (*self._encode(record), now_ms)) for record in records]
        if is_limited:
            self._check_sizes(encoded)
        if records:
            self._replay(outcome)
        self._on_deadline(self._shard.next_deadline_ms())
        if not step.unsafe and not self._steps:
            self._release(step)
            return
        self._steps.append(step)
        if records:
            self._pending += encoded
            self._append_soon()

    def _check_sizes(self, pending: Iterable[Pending]) -> None:
        """Raises EncodeError if a record exceeds max.message.bytes: Redis ends the connection on which a
        command is too large.
        """
        for _, _, (key, value, _) in pending:
            if value is not None and len(value) > _ALWAYS_TAKEN_BYTES:
                limit = self._log.topic.configs.get(MAX_MESSAGE_BYTES) or self._claim.message_max_bytes()
                size = len(key) + len(value)
                if size > int(limit):
                    raise EncodeError(f"a record of {size} bytes exceeds {MAX_MESSAGE_BYTES} {limit}")

    def _append_soon(self) -> None:
        """Deferred to the loop's next turn: records that arrive in this one go along."""
        if not self._appending:
            assert not self._sent, f"an append of {len(self._sent)} records is in flight"
            self._appending = True
            asyncio.get_running_loop().call_soon(self._append)

    def _append(self) -> None:
        """Append the waiting records that may go together."""
        if self.closed:
            return
        pending = self._pending
        append_key = pending[0].step.append_key
        batch: list[Pending] = []
        while pending and len(batch) < MAX_APPEND_RECORDS and pending[0].step.append_key == append_key:
            batch.append(pending.popleft())
        self._sent = batch
        self._send(batch)

    def _send(self, batch: list[Pending], stamp: ProducerSequence | None = None) -> None:
        producer = None if stamp is None else (stamp.producer_id, stamp.producer_epoch)
        arguments = encode_append_records([each.encoded for each in batch], producer)
        self._log.append_own(arguments, stamp, partial(self._appended, batch), epoch=self._claim.epoch)

    def _appended(self, batch: Sequence[Pending], result: Appended | StorageError) -> None:
        if self.closed:
            return
        if isinstance(result, StorageError):
            self._on_failure(result)
            return
        try:
            for position, pending in enumerate(batch, result.base_offset):
                self._placed(pending, position)
            self._go_on(batch, result.base_offset + len(batch))
        except Exception as error:
            # Nothing more would be appended, and the waiting requests would wait for ever.
            logger.exception("the result of an append to %s could not be handled", self._log.topic.name)
            self._on_failure(error)

    def _go_on(self, batch: Sequence[Pending], end: int) -> None:
        """The batch is in the log, before the offset `end`: send the records that came since, and release
        what waits for it once replicas have it.
        """
        assert batch is self._sent, f"{len(batch)} records are in the log, {len(self._sent)} were sent"
        self._sent = ()
        if self._pending:
            self._append()
        else:
            self._appending = False
        if self._lacks_replicas:
            self._go_on_without_replicas(batch, end)
        else:
            self._await_replicas(batch, end)

    @property
    def _waits_for_replicas(self) -> bool:
        return self._claim.release_timeout_ms is not None and self._log.waits_for_replicas

    @property
    def _lacks_replicas(self) -> bool:
        return self._waits_for_replicas and self._log.missing_replicas is not None

    def _await_replicas(self, batch: Sequence[Pending], end: int) -> None:
        timeout_ms = self._claim.release_timeout_ms
        if timeout_ms is None:
            self._safe(batch)
        else:
            self._log.await_released(end, timeout_ms, partial(self._replicated, batch, end))

    def _replicated(self, batch: Sequence[Pending], end: int, error: StorageError | None) -> None:
        if self.closed:
            return
        if isinstance(error, HistoryChanged) or (error is not None and self._log.closed):
            self._on_failure(error)
            return
        try:
            if error is None:
                self._safe(batch)
            else:
                self._go_on_without_replicas(batch, end)
        except Exception as failure:
            logger.exception("replies of %s could not be released", self._log.topic.name)
            self._on_failure(failure)

    def _go_on_without_replicas(self, batch: Sequence[Pending], end: int) -> None:
        """Release the steps in the log that do not need replicas. The records of the others stay in the log,
        and what depends on them waits on; their clients have to retry, and so have those that need replicas
        of steps that are not in the log yet.
        """
        unplaced = {pending.step for pending in (*self._sent, *self._pending)}
        ready: list[_Step] = []
        tokens: list[tuple[Token, bool]] = []
        placed = True
        steps, self._steps = self._steps, deque()
        for step in steps:
            placed = placed and step not in unplaced
            if placed and not self._step_needs_replicas(step):
                ready.append(step)
            else:
                self._steps.append(step)
                tokens += [(token, placed) for token, _ in step.outcome.replies]
        for step in ready:
            step.unsafe = 0
            self._release(step)
        for token, placed in tokens:
            waiting = self._waiting.get(token)
            if waiting is not None and (placed or self._needs_replicas(waiting[0])):
                del self._waiting[token]
                # The client's next request may already have been received, and is handled at once.
                call(waiting[1], self._refuse(waiting[0], ErrorCode.coordinator_not_available))
        waiting_batch = [pending for pending in batch if pending.step.unsafe]
        if waiting_batch:
            self._await_replicas(waiting_batch, end)

    def _safe(self, batch: Sequence[Pending]) -> None:
        for pending in batch:
            # 0 if the step was released before.
            pending.step.unsafe = max(pending.step.unsafe - 1, 0)
        while self._steps and not self._steps[0].unsafe:
            self._release(self._steps.popleft())

    def _finish(self, step: _Step) -> None:
        """Send the replies."""
        for token, reply in step.outcome.replies:
            waiting = self._waiting.pop(token, None)
            if waiting is not None:
                call(waiting[1], reply)
        if step.on_safe is not None:
            call(step.on_safe, step.error)


def call(callback: Callable[[Any], None], argument: object) -> None:
    """An error in one client's callback must not keep other clients from their replies."""
    try:
        callback(argument)
    except Exception:
        logger.exception("a reply could not be delivered")
