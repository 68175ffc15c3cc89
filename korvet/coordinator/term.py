"""One loaded life of a partition of `__consumer_offsets`: from the epoch's acquisition to its loss or a
failed append.

Data flows one way: request → shard's handler → records → replay → append → replies. Records that come while
an append is under way go with the next one. The shard is ahead of the log by what waits and what is in
flight; no reply leaves before everything that came earlier is safe, so nobody sees what could still be lost.
A term in which an append failed is thrown away whole: its shard knows more than the log.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from korvet.coordinator.projector import CommitChange
from korvet.coordinator.refusals import GroupRequest, refuse
from korvet.groups.messages import ListReply, PutReply
from korvet.offsets.codec import encode_key, encode_value
from korvet.offsets.schema import OffsetCommitKey, OffsetCommitValue
from korvet.records.kernel import encode_append_records
from korvet.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from korvet.coordinator.projector import Place, Projector
    from korvet.groups.messages import ListedGroup, ListRequest, Outcome, Record, Reply, Token
    from korvet.groups.native import NativeGroup
    from korvet.groups.shard import GroupShard
    from korvet.storage.log import Appended, PartitionLog

logger = logging.getLogger(__name__)

Done: TypeAlias = "Callable[[Reply], None]"
Settled: TypeAlias = "Callable[[ErrorCode], None]"
Handler: TypeAlias = "Callable[[GroupShard, Any, Token, int], Outcome]"
"""A request handler of GroupShard, unbound: GroupShard.join and its like."""

_NO_NATIVES: Final[Mapping[Place, int]] = MappingProxyType({})
# One append runs as one script: this many records keep Redis busy for tens of milliseconds, and stay far
# below the 1,048,576 arguments that a command may have. Only expiry and deleted topics write that many at a
# time.
MAX_APPEND_RECORDS = 10_000


class _Step:
    """An outcome on its way: safe once the last of its records (`unsafe` of them are left) is in the log."""

    __slots__ = ("changes", "force_drops", "natives", "put", "replies", "settled", "unsafe")

    def __init__(
        self,
        replies: Sequence[tuple[Token, Reply]],
        unsafe: int,
        settled: Settled | None,
        *,
        force_drops: bool,
        natives: Mapping[Place, int],
    ) -> None:
        self.replies = replies
        found = replies[0][1] if len(replies) == 1 else None
        self.put = found if type(found) is PutReply else None
        """Yet to be told where the first record is."""
        self.changes: list[CommitChange] = []
        self.unsafe = unsafe
        self.settled = settled
        self.force_drops = force_drops
        self.natives = natives
        """Where Redis groups stood whose commits were read off them."""


class _Pending(NamedTuple):
    """A record that waits for its append: its step, what it says, and its key, value and timestamp in ms."""

    step: _Step
    record: Record
    encoded: tuple[bytes, bytes | None, int]


class Term:
    """A served partition.

    on_failure(error) is called when an append or a handler failed; the owner then closes the term.
    on_deadline(at_ms) tells when `tick` is to be called next (None: not at all).
    """

    def __init__(
        self,
        shard: GroupShard,
        log: PartitionLog,
        epoch: int,
        *,
        projector: Projector,
        clock: Callable[[], int],
        on_deadline: Callable[[int | None], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._shard = shard
        self._log = log
        self._epoch = epoch
        self._projector = projector
        self._clock = clock
        self._on_deadline = on_deadline
        self._on_failure = on_failure
        self._tokens = itertools.count()
        self._waiting: dict[Token, tuple[GroupRequest, Done]] = {}
        self._steps: deque[_Step] = deque()
        # Records of one append after the other: while one is under way, those that come go with the next.
        self._pending: deque[_Pending] = deque()
        self._sent: Sequence[_Pending] = ()
        self._appending = False
        self._closed = False

    def submit(self, handler: Handler, request: GroupRequest, done: Done) -> Token:
        """Handle a request; done(reply) is called once, before this returns or later, unless the token is
        withdrawn.

        Whatever the handler raises is raised here, and ends the term: nobody knows what the shard holds then.
        """
        token = next(self._tokens)
        now_ms = self._clock()
        try:
            outcome = handler(self._shard, request, token, now_ms)
            replies = outcome.replies
            if not outcome.records and not self._steps and len(replies) == 1 and replies[0][0] == token:
                # A heartbeat of a quiet group, mostly: it rests on nothing that is not safe.
                self._on_deadline(self._shard.next_deadline_ms())
                _call(done, replies[0][1])
                return token
            self._waiting[token] = (request, done)
            self._apply(outcome, now_ms)
        except Exception as error:
            self._waiting.pop(token, None)
            self._on_failure(error)
            raise
        return token

    def withdraw(self, token: Token) -> None:
        """Nobody waits for this reply any more."""
        if self._waiting.pop(token, None) is not None:
            self._shard.disconnect(token)

    def begin(self) -> None:
        """Serve from now on: everything is replayed."""
        self._handle_event(self._shard.loaded)

    def tick(self) -> None:
        """Do what is due. Offsets that are removed by this have expired: Redis groups in use outlive them."""
        self._handle_event(self._shard.tick, force_drops=False)

    def delete_topics(self, topics: Sequence[str], settled: Settled) -> None:
        """Write tombstones for all offsets of these topics; settled(error) once they are safe or can't
        become so.
        """
        self._handle_event(lambda now_ms: self._shard.delete_topics(topics, now_ms), settled=settled)

    def export(self, groups: Sequence[NativeGroup]) -> list[NativeGroup]:
        """Commit what native consumers have moved; returns those whose newest commit is to be projected
        again.
        """
        behind: list[NativeGroup] = []

        def event(now_ms: int) -> Outcome:
            outcome, left = self._shard.export(groups, now_ms)
            behind.extend(left)
            return outcome

        self._handle_event(event, natives={native.place: native.at for native in groups})
        return behind

    def committed(self, place: Place) -> OffsetCommitValue | None:
        """The newest commit there: one object as long as there is no newer one."""
        return self._shard.committed(*place)

    def unsettled(self) -> Iterator[Place]:
        """Where commits and deletions are on their way to the log, or from there to the projector."""
        for pending in (*self._sent, *self._pending):
            key = pending.record[0]
            if isinstance(key, OffsetCommitKey):
                yield key.group, key.topic, key.partition
        for step in self._steps:
            for change in step.changes:
                yield change.place

    def list_groups(self, request: ListRequest, settled: Settled) -> ListReply:
        """The groups as they are now; settled(error) once what they rest on is safe or can't become so."""
        listed: list[ListedGroup] = []

        def event(now_ms: int) -> Outcome:
            token = next(self._tokens)
            outcome = self._shard.list_groups(request, token, now_ms)
            for answered, reply in outcome.replies:
                if answered == token and isinstance(reply, ListReply):
                    listed.extend(reply.groups)
            return outcome

        self._handle_event(event, settled=settled)
        return ListReply(tuple(listed))

    def close(self, error: ErrorCode) -> None:
        """Refuse whatever still waits; nothing happens afterwards."""
        if self._closed:
            return
        self._closed = True
        self._on_deadline(None)
        waiting, self._waiting = self._waiting, {}
        steps, self._steps = self._steps, deque()
        for request, done in waiting.values():
            _call(done, refuse(request, error))
        for step in steps:
            if step.settled is not None:
                _call(step.settled, error)

    def _handle_event(
        self,
        event: Callable[[int], Outcome],
        *,
        force_drops: bool = True,
        natives: Mapping[Place, int] = _NO_NATIVES,
        settled: Settled | None = None,
    ) -> None:
        """Handle what no client asked for: nobody is there to take the exception, so it is logged."""
        now_ms = self._clock()
        try:
            self._apply(event(now_ms), now_ms, force_drops=force_drops, natives=natives, settled=settled)
        except Exception as error:
            logger.exception("a group shard failed")
            if settled is not None:
                settled(ErrorCode.coordinator_not_available)
            self._on_failure(error)

    def _apply(
        self,
        outcome: Outcome,
        now_ms: int,
        *,
        force_drops: bool = True,
        natives: Mapping[Place, int] = _NO_NATIVES,
        settled: Settled | None = None,
    ) -> None:
        records = outcome.records
        for key, value in records:
            self._shard.replay(key, value)
        if records and self._projector.touched is not None:
            keys = (key for key, _ in records if isinstance(key, OffsetCommitKey))
            self._projector.touched.update((key.group, key.topic, key.partition) for key in keys)
        self._on_deadline(self._shard.next_deadline_ms())
        if not records and not self._steps:
            self._deliver(outcome.replies)
            if settled is not None:
                settled(ErrorCode.none)
            return
        step = _Step(outcome.replies, len(records), settled, force_drops=force_drops, natives=natives)
        self._steps.append(step)
        for record in records:
            key, value = record
            encoded = encode_key(key), None if value is None else encode_value(value), now_ms
            self._pending.append(_Pending(step, record, encoded))
        if records and not self._appending:
            # In the loop's next turn: what else arrives in this one goes along.
            self._appending = True
            asyncio.get_running_loop().call_soon(self._append)

    def _append(self) -> None:
        """Append what has come together."""
        if self._closed:
            return
        count = min(len(self._pending), MAX_APPEND_RECORDS)
        batch = self._sent = [self._pending.popleft() for _ in range(count)]
        arguments = encode_append_records([pending.encoded for pending in batch])
        self._log.append(arguments, None, partial(self._appended, batch), epoch=self._epoch)

    def _appended(self, batch: Sequence[_Pending], result: Appended | StorageError) -> None:
        if self._closed:
            return
        if isinstance(result, StorageError):
            self._on_failure(result)
            return
        for position, (step, (key, value), _) in enumerate(batch, result.base_offset):
            step.unsafe -= 1
            if step.put is not None:
                step.put.base_offset, step.put = position, None
            if isinstance(key, OffsetCommitKey):
                offset = value.offset if isinstance(value, OffsetCommitValue) else None
                place = key.group, key.topic, key.partition
                native = step.natives.get(place) if step.natives else None
                step.changes.append(CommitChange(*place, position, offset, step.force_drops, native))
        self._sent = ()
        if self._pending:
            self._append()
        else:
            self._appending = False
        while self._steps and not self._steps[0].unsafe:
            self._release(self._steps.popleft())

    def _release(self, step: _Step) -> None:
        """Send the replies of what is safe; those of commits once Redis groups follow."""
        if step.changes:
            self._projector.apply(step.changes, partial(self._finish, step))
        else:
            self._finish(step)

    def _finish(self, step: _Step) -> None:
        self._deliver(step.replies)
        if step.settled is not None:
            _call(step.settled, ErrorCode.none)

    def _deliver(self, replies: Sequence[tuple[Token, Reply]]) -> None:
        for token, reply in replies:
            waiting = self._waiting.pop(token, None)
            if waiting is not None:
                _call(waiting[1], reply)


def _call(callback: Callable[[Any], None], argument: object) -> None:
    """One client's callback must not keep the others from theirs."""
    try:
        callback(argument)
    except Exception:
        logger.exception("a reply could not be delivered")
