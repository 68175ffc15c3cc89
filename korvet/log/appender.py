"""The appends of one partition, each batch whole or not at all, in the order of the calls.

An append waits in the queue until it is sent, in one call of korvet_append with others that wait: while Redis
is busy with two calls, the batches that arrive are gathered, and so are those that arrive in one iteration of
the event loop from a producer that does not wait for answers. That costs Redis much less for small batches.

Offsets name 1,024 records per ms. A partition that gets more runs ahead of the clock; an append that would
begin too far ahead (LogState.lead_cap_ms) waits until the clock has caught up.

Every call belongs to a *session*, which korvet_begin begins, and has a serial number in it. If replies are
lost with the connection, korvet_begin answers which calls took effect, and begins a new session: Redis
refuses those of the old one that are still on their way.

What happens, by the state: open, waiting for the clock, or with calls *undone*, which did nothing or whose
reply was lost.

| event                         | open                | clock        | undone                              |
|-------------------------------|---------------------|--------------|-------------------------------------|
| append                        | send, or gather     | queue        | queue                               |
| reply: decisions              | answer, send more   | answer       | answer                              |
| reply: THROTTLED              | undone, clock       | undone       | undone, clock                       |
| reply: SESSION, or lost       | undone              | undone       | undone                              |
| reply: OOM, broker's records  | undone              | undone       | undone                              |
| reply: out of order           | answer              | answer       | undone, if an earlier call is       |
| reply: another error          | answer              | answer       | answer                              |
| no call is in flight any more | send                | -            | begin a session if there is none,   |
|                               |                     |              | else queue what is undone first     |
| a session has begun           | send                | -            | answer what took effect, queue the  |
|                               |                     |              | rest first                          |
| no session can begin          | refuse all          | refuse all   | refuse all                          |
| the clock has caught up       | -                   | send         | -                                   |
| close                         | refuse all          | refuse all   | refuse all                          |
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from korvet.cluster.assignment import writer_epochs
from korvet.log.append_calls import LACKS_MODULE, AppendCalls, effects_of, read_decisions, read_session
from korvet.log.append_queue import AppendQueue
from korvet.log.appends import Group, MarkerAppend, RecordsAppend
from korvet.log.layouts import layout_of
from korvet.log.values import Appended, Marked
from korvet.offsets.packing import SEQUENCE_BITS
from korvet.redis.calls import answer, parse_reply
from korvet.redis.errors import (
    PASSING,
    LinkLost,
    OutOfMemory,
    RedisFault,
    StorageError,
    Throttled,
    domain_error,
)
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.log.appends import AnyAppend
    from korvet.log.resources import LogResources
    from korvet.log.state import LogState
    from korvet.log.values import Producer, ReceivedBatch
    from korvet.records.batch import AppendArguments
    from korvet.records.control import ControlMarker

log = logging.getLogger(__name__)

# How long Redis may be away before the outcome of an append in flight counts as unknown.
LONGEST_ABSENCE_S: Final = 10.0
_POLL_S: Final = 0.05
# Limits the wait for the clock that the broker decides by itself. Batches of producers exceed the cap on the
# lead by less; a larger lead came from other writers or a step of the clock: the function knows whether to
# wait.
_LONGEST_WAIT_MS: Final = 1000
# Calls in flight: Redis executes one while the next already waits in its buffer. A call that nothing more
# joins is sent beside more.
_CALLS_IN_FLIGHT: Final = 2
_MOST_IN_FLIGHT: Final = 8
# The error of a call after which a session has to begin.
_OTHER_SESSION: Final = "SESSION"
# Errors of a batch that does not follow the one before it of its producer.
_OUT_OF_ORDER: Final = frozenset(("OUTOFORDERSEQUENCE", "SEQUENCEGAP", "UNKNOWNPRODUCER"))
_LOGGED_BYTES: Final = 200


class Appender:
    """Appends batches to one partition. Use it through PartitionLog."""

    __slots__ = (
        "_beginning",
        "_calls",
        "_epoch",
        "_has_session",
        "_queue",
        "_resources",
        "_sent",
        "_serial",
        "_session",
        "_state",
        "_timer",
        "_turn",
        "_undone",
    )

    _calls: AppendCalls

    def __init__(self, state: LogState, resources: LogResources) -> None:
        self._state = state
        self._resources = resources
        self.configure()
        self._queue = AppendQueue()
        self._sent: dict[int, Group | MarkerAppend] = {}
        """The calls that Redis has not answered, by serial number."""
        self._undone: dict[int, Group | MarkerAppend] = {}
        """Calls to make again when all in flight are answered, by serial number."""
        self._serial = 0
        """That of the newest call."""
        self._session = 0
        """The session of all calls in flight and undone."""
        self._has_session = False
        """Whether calls may be sent in it."""
        self._beginning: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None
        """What sends the appends of this iteration of the event loop."""
        self._epoch = "" if state.epoch is None else writer_epochs(state.epoch).start

    def configure(self) -> None:
        """Take over the topic's configuration."""
        layout, keyspace = layout_of(self._state), self._resources.commands.keyspace
        self._calls = AppendCalls(self._state, keyspace, layout, self._resources.is_full)

    def append(
        self,
        received: ReceivedBatch,
        producer: Producer | None,
        admit: Callable[[AppendArguments], None],
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None,
        followed: bool,
        is_wanted: Callable[[], bool],
    ) -> bool:
        """Append a producer's batch; see PartitionLog.append."""
        form = self._calls.layout.encode(received, packed=self._state.links.server.module.used)
        count = received.header.record_count
        assert form.record_count == count, f"{form.record_count} records are encoded of {count}"
        admit(form)
        layout, writer = self._calls.layout, self._epoch_of(epoch)
        append = RecordsAppend(form, producer, writer, done, received, is_wanted, layout=layout)
        self._add(append, followed=followed)
        return len(self._queue) > 0 and not self._may_send()

    def append_own(
        self,
        arguments: AppendArguments,
        producer: Producer | None,
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None,
    ) -> None:
        """Append records of the broker's own; see PartitionLog.append_own."""
        self._add(RecordsAppend(arguments, producer, self._epoch_of(epoch), done))

    def mark(
        self, marker: ControlMarker, epoch: int | None, done: Callable[[Marked | StorageError], None]
    ) -> None:
        """End a transaction after all earlier appends; see PartitionLog.mark."""
        self._add(MarkerAppend(marker, self._epoch_of(epoch), done))

    def _epoch_of(self, epoch: int | None) -> int | str:
        return self._epoch if epoch is None else epoch

    def close(self, refusal: StorageError) -> None:
        """Refuse what has not been sent yet; the log is closed."""
        if self._beginning is not None:
            self._beginning.cancel()
        self._refuse_all(refusal, LinkLost("the connection broke before Redis answered"))

    @property
    def throttle_ms(self) -> int:
        """How long the clock needs for the records appended and queued, up to the permitted lead (ms)."""
        queued_ms = self._queue.record_count >> SEQUENCE_BITS
        if self._timer is not None:
            left_s = self._timer.when() - asyncio.get_running_loop().time()
            return max(int(left_s * 1000), 0) + queued_ms
        ahead_ms = self._state.ahead_ms(self._state.next_position)
        return ahead_ms + queued_ms if 0 < ahead_ms <= _LONGEST_WAIT_MS else 0

    # Sending.

    def _add(self, append: AnyAppend, *, followed: bool = False) -> None:
        self._queue.add(append)
        if self._turn is None:
            if followed or self._sent:
                self._turn = asyncio.get_running_loop().call_soon(self._turn_ended)
            else:
                self._send_more()

    def _turn_ended(self) -> None:
        self._turn = None
        self._send_more()

    def _clock_caught_up(self) -> None:
        self._timer = None
        self._send_more()

    def _send_more(self) -> None:
        """Send what may be sent."""
        while True:
            self._queue.drop_unwanted()
            if not self._queue or not self._may_send():
                return
            call = self._queue.take_call(alone=self._state.topic.keeps_latest)
            self._serial += 1
            if isinstance(call, MarkerAppend):
                self._send(call, self._calls.mark(call), self._mark_answered)
            else:
                group = Group(self._serial, call)
                payload = self._calls.append(group, self._session, min(self._sent, default=self._serial))
                self._send(group, payload, self._group_answered)

    def _send(self, call: Any, payload: Any, answered: Callable[..., None]) -> None:
        self._sent[self._serial] = call
        self._state.links.write_functions.send(payload, partial(answered, self._serial, call))

    def _may_send(self) -> bool:
        """Whether the first append of the queue may be sent now. If it waits for a session or the clock, that
        is on its way afterwards.
        """
        in_flight = len(self._sent)
        if self._undone or self._timer is not None or self._beginning is not None:
            return False
        if not self._has_session:
            if not in_flight:
                self._begin_soon()
            return False
        if in_flight >= _MOST_IN_FLIGHT or self._queue.awaits_answer:
            return False
        if in_flight >= _CALLS_IN_FLIGHT and not self._queue.fills_call:
            return False
        return self._clock_permits() and self._memory_permits()

    def _memory_permits(self) -> bool:
        """Whether no append within the allowance would overtake one that full memory refuses."""
        first = self._queue.first
        if not self._sent or (isinstance(first, RecordsAppend) and first.received is not None):
            return True
        return not self._calls.goes_within(first) or all(call.within for call in self._sent.values())

    def _clock_permits(self) -> bool:
        """Whether the offsets of the next append would be within the permitted lead, as far as is known. Near
        it, only one call at a time keeps the order: after one that is too early, the next might not be.
        """
        state = self._state
        if state.bias:
            return True
        if state.next_position < 0:
            return not self._sent
        in_flight = sum([call.record_count for call in self._sent.values()])
        position = max(state.next_position, state.links.clock.now_ms() << SEQUENCE_BITS) + in_flight
        ahead_ms = state.ahead_ms(position)
        if 0 < ahead_ms <= _LONGEST_WAIT_MS:
            if not self._sent:
                self._await_clock(ahead_ms)
            return False
        return not self._sent or ahead_ms * 2 <= -state.lead_cap_ms

    def _await_clock(self, wait_ms: int) -> None:
        """Send nothing for that time, unless nothing is sent anyway."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(wait_ms, 1) / 1000, self._clock_caught_up)

    # Replies to appends.

    def _group_answered(self, serial: int, group: Group, reply: memoryview | StorageError) -> None:
        del self._sent[serial]
        for append in group.appends:
            self._queue.answered(append, took_effect=False)
        try:
            if isinstance(reply, StorageError):
                self._group_failed(group, reply)
            else:
                self._group_decided(group, reply)
        finally:
            self._call_ended()

    def _group_failed(self, group: Group, fault: StorageError) -> None:
        """A call did nothing, or its reply was lost."""
        error, first = domain_error(fault), group.appends[0]
        code = fault.code if isinstance(fault, RedisFault) else ""
        if isinstance(fault, LinkLost) or code == _OTHER_SESSION:
            self._has_session = False
            group.is_unknown = isinstance(fault, LinkLost)
        elif isinstance(error, Throttled):
            # The clock may be set meanwhile.
            self._await_clock(min(error.wait_ms, _LONGEST_WAIT_MS))
        elif isinstance(error, OutOfMemory) and first.received is None and not first.within:
            first.within = True
        else:
            self._fail(group.appends, fault)
            return
        self._undone[group.serial] = group

    def _group_decided(self, group: Group, reply: memoryview) -> None:
        """Redis has decided on the batches of a group."""
        try:
            decisions, now_ms, index_stale = read_decisions(reply, group.appends)
        except Exception:
            # Without an outcome, the producer would wait for ever.
            log.exception(
                "%s: an append was answered with %r", self._state.name, bytes(reply[:_LOGGED_BYTES])
            )
            self._state.forget()
            self._fail(group.appends, LinkLost("Redis answered an append with something else"))
            return
        self._state.links.clock.observe(now_ms)
        appended: list[tuple[RecordsAppend, Appended]] = []
        repeated: list[RecordsAppend] = []
        for append, decision in zip(group.appends, decisions, strict=True):
            if isinstance(decision, Appended):
                appended.append((append, decision))
            elif decision.code in _OUT_OF_ORDER and self._undone:
                # The batch before it may be in a call that is made again.
                repeated.append(append)
            else:
                self._fail([append], decision)
        if repeated:
            self._undone[group.serial] = Group(group.serial, repeated)
        if index_stale == LACKS_MODULE:
            self._state.links.server.module.refused()
        self._took_effect(appended, index_stale=index_stale > 0)

    def _took_effect(self, appended: Sequence[tuple[RecordsAppend, Appended]], *, index_stale: bool) -> None:
        """Appends took effect together."""
        if not appended:
            return
        state, counts = self._state, self._resources.counts
        added = sum([not outcome.duplicate for _, outcome in appended])
        counts.sent(added, own=appended[0][0].received is None)
        for append, outcome in appended:
            self._queue.answered(append, took_effect=True)
            size = 0 if append.received is None else append.received.header.size
            counts.appended(state.counts, append.form, size, duplicate=outcome.duplicate)
        try:
            outcomes = [outcome for _, outcome in appended]
            forms = [append.form for append, _ in appended]
            batches = [self._as_read(append, outcome) for append, outcome in appended]
            state.note_appended(outcomes, forms, batches, index_stale=index_stale)
        except Exception as error:
            log.exception("%s: the effect of an append could not be noted", state.name)
            state.forget()
            if isinstance(error, AssertionError):
                # Redis contradicts what it has stated before: nobody may rely on the append.
                unknown = LinkLost(f"the effect of the append is unknown: {error}")
                self._fail([append for append, _ in appended], unknown)
                return
            # Redis has the records, so they are acknowledged.
        for append, outcome in appended:
            if not outcome.duplicate:
                state.next_position = outcome.base_offset + append.record_count + state.bias
            answer(append.done, outcome)

    def _as_read(self, append: RecordsAppend, appended: Appended) -> bytes | None:
        """The batch for the tail cache."""
        if append.received is None or appended.duplicate or not self._state.keeps_batches:
            return None
        if append.layout is not self._calls.layout:
            # Readers may find other timestamps since the topic's configuration has changed.
            return None
        return self._calls.layout.as_read(append.received, append.form, appended.base_offset)

    # Replies to markers.

    def _mark_answered(self, serial: int, mark: MarkerAppend, reply: memoryview | StorageError) -> None:
        del self._sent[serial]
        try:
            if not isinstance(reply, StorageError):
                self._marked(mark, reply)
            elif isinstance(domain_error(reply), OutOfMemory) and not mark.within:
                mark.within = True
                self._undone[serial] = mark
            else:
                self._fail([mark], reply)
        finally:
            self._call_ended()

    def _marked(self, mark: MarkerAppend, reply: memoryview) -> None:
        state = self._state
        try:
            offset, previous_end, start, append_ms, stable, first, index_stale = parse_reply(reply)
            marked = Marked(offset, first, previous_end, stable, append_ms)
            state.note_marked(mark.marker, marked, start, index_stale=bool(index_stale))
        except (TypeError, ValueError, AssertionError):
            log.exception("%s: a marker was answered with %r", state.name, bytes(reply[:_LOGGED_BYTES]))
            state.forget()
            self._fail([mark], LinkLost("Redis answered a marker with something else"))
            return
        state.links.clock.observe(append_ms)
        if offset >= 0:
            state.next_position = offset + 1 + state.bias
        self._resources.counts.markers += offset >= 0
        answer(mark.done, marked)

    # Calls that are made again, and sessions.

    def _call_ended(self) -> None:
        if self._sent or not self._undone:
            self._send_more()
        elif (refusal := self._state.refusal or self._resources.stale) is not None:
            self._refuse_all(refusal, LinkLost("the connection broke before Redis answered"))
        elif not self._has_session:
            self._begin_soon()
        else:
            self._repeat_undone()

    def _repeat_undone(self) -> None:
        """Queue the calls that did nothing before all other appends, and go on."""
        appends = self._undone_appends()
        self._undone.clear()
        self._queue.put_first(appends)
        self._send_more()

    def _undone_appends(self) -> list[AnyAppend]:
        return [append for call in self._undone_calls() for append in call.appends]

    def _undone_calls(self) -> list[Group | MarkerAppend]:
        """The calls to make again, in their order."""
        return [self._undone[serial] for serial in sorted(self._undone)]

    def _unknown(self) -> list[Group]:
        """The calls whose reply was lost, in their order."""
        return [call for call in self._undone_calls() if isinstance(call, Group) and call.is_unknown]

    def _begin_soon(self) -> None:
        if self._beginning is None:
            self._beginning = once("a session of appends", self._begin())

    async def _begin(self) -> None:
        """Begin a session, and answer the calls whose reply was lost."""
        try:
            session = read_session(await self._ask_begin())
        except StorageError as error:
            self._beginning = None
            self._refuse_all(error, LinkLost(f"the outcome is unknown: {error}"))
            return
        except (TypeError, ValueError):
            self._beginning = None
            log.exception("%s: no session can begin", self._state.name)
            self._refuse_all(fault := LinkLost("Redis answered korvet_begin with something else"), fault)
            return
        self._beginning = None
        if self._resources.stale is not None:
            # Redis may have lost writes: the next leader epoch comes first.
            self._refuse_all(self._resources.stale, LinkLost("Redis may have lost the append"))
            return
        self._session, self._has_session = session.number, True
        self._state.links.clock.observe(session.now_ms)
        for group in self._unknown():
            self._resources.counts.resolved += 1
            appended, rest = effects_of(session, group.serial, group.appends)
            group.appends, group.is_unknown = rest, False
            self._took_effect(appended, index_stale=False)
        self._repeat_undone()

    async def _ask_begin(self) -> Any:
        """The reply of korvet_begin. Asks again while Redis is away if the outcome of an append depends on
        it.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + (LONGEST_ABSENCE_S if self._unknown() else 0.0)
        while True:
            try:
                payload = self._calls.begin(self._newest_epoch(), self._session)
                return await self._state.links.write_functions.call_packed(payload)
            except StorageError as error:
                if loop.time() >= deadline_s or not isinstance(error, PASSING):
                    raise
            await asyncio.sleep(_POLL_S)

    def _newest_epoch(self) -> int | str:
        """The newest of the writers' epochs of all appends that wait."""
        epochs = [append.epoch for append in (*self._undone_appends(), *self._queue)]
        return max([epoch for epoch in epochs if isinstance(epoch, int)], default=self._epoch)

    # Errors.

    def _refuse_all(self, refusal: StorageError, unknown: StorageError) -> None:
        """End all appends that are not on their way, those whose reply was lost with `unknown`."""
        lost: list[AnyAppend] = []
        waiting: list[AnyAppend] = []
        for call in self._undone_calls():
            (lost if call.is_unknown else waiting).extend(call.appends)
        waiting += self._queue.take_all()
        self._undone.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fail(lost, unknown)
        self._fail(waiting, refusal)

    def _fail(self, appends: Sequence[AnyAppend], fault: StorageError) -> None:
        """End appends with an error."""
        if not appends:
            return
        if isinstance(fault, LinkLost):
            self._state.lost_track()
        error = domain_error(fault)
        self._resources.refused(error, self._state.links)
        for append in appends:
            answer(append.done, error)
