"""The two ways in which a partition's batches reach its stream, each batch whole or not at all, in the order
of the calls.

*Script append* (script.py): the function korvet_append (or korvet_append_batch) assigns the entry IDs and
adds every record. It works in every state, and costs Redis twice the CPU of plain XADDs.

*Guarded append* (guarded.py): the broker assigns the IDs, since it knows the end of its last append, and
sends one MULTI: the function korvet_guard, which opens a gate by renaming the stream, the commands that add
all entries through that gate, and the function korvet_seal, which renames the stream back and saves the log's
state. These commands are an XADD for each entry, or one KORVET.ADD for a whole batch if the server has the
module (storage/module). A batch that is one small entry needs no gate: the guard adds it. If the broker was
wrong (another writer, a refused batch before this one, the library or the module lost), the guard opens
nothing, the commands find no stream, or korvet_seal removes what some of them added; and the batch goes by
script.

While Redis is busy with two such transactions, the batches that arrive are gathered, and so are those that
arrive in one iteration of the event loop from a producer that does not wait for answers. One guard lets a
whole group of batches in, all of them or none. That costs Redis much less for small batches.

Appends of only one way are in flight at a time (routes.py). An append that has to go the other way is held
back until they are answered, with all that follow it, so that the order stays. So is a batch after one that
may be its producer's first in the log (new_producers.py).

Offsets name 1,024 records per ms. A partition that gets more runs ahead of the clock; an append that would
begin too far ahead (LogState.lead_cap_ms) is held back until the clock has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from korvet.offsets.packing import SEQUENCE_BITS
from korvet.storage.brokers.assignment import writer_epochs
from korvet.storage.errors import (
    PASSING,
    LinkLost,
    OutOfMemory,
    StorageError,
    StorageFault,
    Throttled,
    domain_error,
)
from korvet.storage.link.calls import answer, parse_reply
from korvet.storage.log.append_replies import Outcome, irregular_reply, read_numbers, read_outcome
from korvet.storage.log.appends import AppendGroup, MarkerAppend, OwnAppend, ProducedAppend, Undone, admitted
from korvet.storage.log.guarded import GuardedAppends, script_decides
from korvet.storage.log.held_appends import LONGEST_WAIT_MS, HeldAppends
from korvet.storage.log.layouts import layout_of
from korvet.storage.log.new_producers import NewProducers
from korvet.storage.log.read_back import READ_BACK_TIMEOUT_S, read_back
from korvet.storage.log.routes import Guard, InFlight, Kind, Route, choose_route
from korvet.storage.log.script import ScriptCommands
from korvet.storage.log.values import Marked
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.records.batch import AppendArguments
    from korvet.records.control import ControlMarker
    from korvet.storage.link.calls import Payload
    from korvet.storage.log.appends import AnyAppend
    from korvet.storage.log.resources import LogResources
    from korvet.storage.log.state import LogState
    from korvet.storage.log.values import Appended, Form, ProducerSequence, ReceivedBatch, Summary

log = logging.getLogger(__name__)

# Batches sent by script after a refusal before guarded appends resume; doubles with each further refusal.
_FIRST_REST: Final = 8
_LONGEST_REST: Final = 256


class Appender:
    """Appends batches to one partition. Use it through PartitionLog."""

    __slots__ = (
        "_early",
        "_epoch",
        "_gate",
        "_guarded",
        "_held",
        "_layout",
        "_near_cap",
        "_new_producers",
        "_next_rest",
        "_reading_back",
        "_resources",
        "_rest",
        "_script",
        "_scripts",
        "_state",
        "_undone",
    )

    def __init__(self, state: LogState, resources: LogResources) -> None:
        self._state = state
        self._resources = resources
        self._gate = resources.commands.keyspace.gate(state.topic.name, state.partition)
        self._guarded = GuardedAppends(state, self._gate, self)
        self.configure()
        self._scripts = 0
        """Script appends in flight."""
        self._new_producers = NewProducers()
        self._undone: list[Undone] = []
        self._held = HeldAppends(state, self._resume)
        self._early: list[AnyAppend] = []
        """Appends to send again when all in flight are answered: too early for a script, or OOM at first."""
        self._near_cap = False
        """Whether the last append's offsets were so far ahead that only one script at a time keeps the order:
        after one that is too early, the next might not be.
        """
        self._rest = 0
        """Appends that still go by script before the guard is tried again."""
        self._next_rest = _FIRST_REST
        self._reading_back: asyncio.Task[None] | None = None
        self._epoch = "" if state.epoch is None else writer_epochs(state.epoch).start

    def configure(self) -> None:
        """Take over the topic's configuration."""
        self._layout = layout_of(self._state, self._gate)
        keyspace, is_full = self._resources.commands.keyspace, self._resources.is_full
        self._script = ScriptCommands(self._state, keyspace, self._layout, is_full)

    def append(
        self,
        received: ReceivedBatch,
        producer: ProducerSequence | None,
        admit: Callable[[Summary], None],
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None,
        followed: bool,
        is_wanted: Callable[[], bool],
    ) -> bool:
        """Append a producer's batch; see PartitionLog.append."""
        epoch_text = self._epoch if epoch is None else epoch
        append = ProducedAppend(received, producer, epoch_text, followed, done, is_wanted)
        route, position = self._route(append)
        if route is Route.WAIT:
            # Checked now as for its form, in which it is encoded later: an error then would reach no caller.
            admit(self._layout.arguments(received))
            self._hold(append)
        else:
            self._send_produced(append, route, position, admit)
        return route is Route.WAIT

    def append_own(
        self,
        arguments: AppendArguments,
        producer: ProducerSequence | None,
        done: Callable[[Appended | StorageError], None],
        *,
        epoch: int | None,
    ) -> None:
        """Append records of the broker's own; see PartitionLog.append_own."""
        self._send_or_hold(OwnAppend(arguments, producer, self._epoch if epoch is None else epoch, done))

    def mark(
        self, marker: ControlMarker, epoch: int | None, done: Callable[[Marked | StorageError], None]
    ) -> None:
        """End a transaction after all earlier appends; see PartitionLog.mark."""
        self._send_or_hold(MarkerAppend(marker, self._epoch if epoch is None else epoch, done))

    def close(self, refusal: StorageError) -> None:
        """Refuse what has not been sent yet; the log is closed."""
        if self._reading_back is not None:
            self._reading_back.cancel()
        self._give_up(refusal)

    @property
    def throttle_ms(self) -> int:
        """How long the clock needs for the records appended and held, up to the permitted lead (ms)."""
        return self._held.throttle_ms

    @property
    def unconfirmed_position(self) -> int | None:
        """The position of the first record of which it is unknown whether Redis has it; None if there is
        none.
        """
        groups = [undone.group for undone in self._undone if undone.is_unknown]
        groups += self._guarded.in_flight
        return groups[0].forms[0].position if groups else None

    # Which way, and when.

    def _route(self, append: AnyAppend, *, is_next: bool = False) -> tuple[Route, int]:
        """The route of an append, and its position for the guard. `is_next`: no earlier append waits."""
        in_flight = self._in_flight()
        waits = not is_next and (self._held or self._undone or self._early)
        if waits or self._new_producers.awaits(append.producer):
            in_flight = InFlight.BLOCKED
        if not isinstance(append, ProducedAppend):
            return choose_route(Kind.OWN, in_flight, Guard.OFF), -1
        if self._rest or not (self._layout.guards and self._state.links.write.transacts):
            return choose_route(Kind.PRODUCED, in_flight, Guard.OFF), -1
        guard, position = self._guard()
        return choose_route(Kind.PRODUCED, in_flight, guard), position

    def _in_flight(self) -> InFlight:
        guarded = self._guarded
        if self._scripts:
            return InFlight.BLOCKED if self._near_cap else InFlight.SCRIPTS
        if guarded.in_flight or guarded.gathering is not None:
            return InFlight.GUARDED
        return InFlight.NOTHING

    def _guard(self) -> tuple[Guard, int]:
        """Whether the guard can take the next batch, and the position of that batch."""
        state, guarded = self._state, self._guarded
        position = state.next_position
        if position < 0 or not state.loaded:
            # Without the log end it is unknown what readers have seen.
            return Guard.NOT_YET, -1
        if guarded.link is not state.links.write and (guarded.in_flight or guarded.gathering is not None):
            # It would overtake an append that another server has yet to answer.
            return Guard.NOT_YET, -1
        if guarded.gathering is None:
            now_position = 0 if state.bias else state.links.clock.now_ms() << SEQUENCE_BITS
            position = max(position, state.seen_end + state.bias, now_position)
        ahead_ms = state.ahead_ms(position)
        if ahead_ms <= 0:
            return Guard.READY, position
        return (Guard.EARLY if ahead_ms <= LONGEST_WAIT_MS else Guard.NOT_YET), -1

    def _hold(self, append: AnyAppend) -> None:
        """Hold an append back after all others."""
        self._held.add(append)
        self._await_clock()

    def _await_clock(self) -> None:
        """Continue with the held appends when the clock has caught up, unless something in flight does."""
        if not self._undone and self._in_flight() is InFlight.NOTHING:
            self._held.await_clock(self._state.ahead_ms(self._state.next_position))

    def _send_produced(
        self, append: ProducedAppend, route: Route, position: int, admit: Callable[[Summary], None]
    ) -> None:
        """Encode a batch for its route and send it."""
        if route is Route.GUARD:
            commands = self._layout.commands(append.received, position)
            admit(commands)
            self._guarded.append(append, commands)
        else:
            arguments = self._layout.arguments(append.received)
            admit(arguments)
            self._send_script(append, arguments)

    def _send_or_hold(self, append: OwnAppend | MarkerAppend) -> None:
        route, _ = self._route(append)
        if route is Route.WAIT:
            self._hold(append)
        else:
            self._send_own(append)

    def _send_own(self, append: OwnAppend | MarkerAppend) -> None:
        if isinstance(append, OwnAppend):
            self._send_script(append, append.arguments)
        else:
            self._send_mark(append)

    def _resume(self) -> None:
        """Send the appends that were held back, now that those in flight are answered, or that the clock has
        caught up.
        """
        while self._held and not (self._undone or self._early or self._held.waits_for_clock):
            append = self._held.first
            if isinstance(append, ProducedAppend) and not append.is_wanted():
                self._held.take()
                answer(append.done, StorageFault("the producer does not wait for it any more"))
                continue
            route, position = self._route(append, is_next=True)
            if route is Route.WAIT:
                self._await_clock()
                return
            self._held.take()
            if isinstance(append, ProducedAppend):
                self._send_produced(append, route, position, admitted)
            else:
                self._send_own(append)

    def _give_up(self, refusal: StorageError) -> None:
        """End all appends that have not been sent: nothing more is sent."""
        self._drop_gathered()
        undone, self._undone = self._undone, []
        for group, is_unknown in undone:
            for append in group.appends:
                broken = LinkLost("the connection broke before Redis answered")
                answer(append.done, broken if is_unknown else refusal)
        for waiting in self._held.take_all():
            answer(waiting.done, refusal)

    # Script appends.

    def _send_script(self, append: ProducedAppend | OwnAppend, arguments: AppendArguments) -> None:
        if self._rest and isinstance(append, ProducedAppend):
            self._rest -= 1
        payload = self._script.append(append, arguments)
        self._send_function(append, payload, partial(self._script_answered, append, arguments))

    def _send_mark(self, mark: MarkerAppend) -> None:
        self._send_function(mark, self._script.mark(mark), partial(self._mark_answered, mark))

    def _send_function(
        self, append: AnyAppend, payload: Payload, answered: Callable[[memoryview], None]
    ) -> None:
        self._scripts += 1
        self._state.next_position = -1
        self._new_producers.sent(append.producer)

        def arrived(reply: memoryview | StorageError) -> None:
            self._scripts -= 1
            self._new_producers.ended(append.producer, took_effect=not isinstance(reply, StorageError))
            try:
                if isinstance(reply, StorageError):
                    self._script_failed(append, reply)
                else:
                    answered(reply)
            finally:
                if self._scripts == 0:
                    self._scripts_ended()

        self._state.links.write_functions.send(payload, arrived)

    def _script_failed(self, append: AnyAppend, fault: StorageError) -> None:
        error = domain_error(fault)
        if isinstance(error, Throttled):
            self._near_cap = True
            self._early.append(append)
            # The clock may be set meanwhile.
            self._held.await_clock(min(error.wait_ms, LONGEST_WAIT_MS))
        elif isinstance(error, OutOfMemory) and not isinstance(append, ProducedAppend) and not append.within:
            append.within = True
            self._early.append(append)
        else:
            self._failed(append, fault)

    def _scripts_ended(self) -> None:
        early, self._early = self._early, []
        self._held.put_back(early)
        refusal = self._state.refusal
        if refusal is not None:
            self._give_up(refusal)
        else:
            self._resume()

    def _script_answered(
        self, append: ProducedAppend | OwnAppend, arguments: AppendArguments, reply: memoryview
    ) -> None:
        state = self._state
        numbers = read_numbers(state, reply, 0)
        if numbers is None:
            self._failed(append, irregular_reply(state, reply))
            return
        outcome = read_outcome(state, numbers, arguments)
        appended = outcome.appended
        self._resources.counts.by_script(own=isinstance(append, OwnAppend))
        if self._scripts == 0 and not appended.duplicate:
            state.next_position = appended.base_offset + arguments.record_count + state.bias
        self._took_effect(append, arguments, appended, index_stale=outcome.index_stale)

    def _mark_answered(self, mark: MarkerAppend, reply: memoryview) -> None:
        state = self._state
        try:
            offset, previous_end, start, append_ms, stable, first, index_stale = parse_reply(reply)
        except (TypeError, ValueError):
            self._failed(mark, irregular_reply(state, reply))
            return
        state.links.clock.observe(append_ms)
        if offset >= 0 and self._scripts == 0:
            state.next_position = offset + 1 + state.bias
        self._resources.counts.markers += offset >= 0
        marked = Marked(offset, first, previous_end, stable, append_ms)
        state.note_marked(mark.marker, marked, start, index_stale=bool(index_stale))
        answer(mark.done, marked)

    # Guarded appends, see GuardedOwner.

    def group_appended(self, group: AppendGroup, outcome: Outcome) -> None:
        """See GuardedOwner."""
        self._next_rest = _FIRST_REST
        self._resources.counts.by_guard(len(group.appends))
        self._group_took_effect(group, outcome)

    def group_failed(self, group: AppendGroup, fault: StorageError) -> None:
        """See GuardedOwner."""
        self._resources.counts.refused(fault)
        if isinstance(fault, LinkLost):
            self._undone.append(Undone(group, is_unknown=True))
        elif script_decides(fault):
            self._undone.append(Undone(group, is_unknown=False))
        else:
            for append in group.appends:
                self._failed(append, fault)

    def guard_idle(self) -> None:
        """See GuardedOwner."""
        refusal = self._state.refusal
        if refusal is not None:
            self._give_up(refusal)
            return
        self._drop_gathered()
        if any(undone.is_unknown for undone in self._undone):
            self._reading_back = once("unknown outcomes of appends", self._read_back_unknown())
        else:
            self._resend()

    def _drop_gathered(self) -> None:
        """Cease to gather: the gathered group is sent in another way."""
        gathered = self._guarded.take_gathered()
        if gathered is not None:
            self._undone.append(Undone(gathered, is_unknown=False))

    def _resend(self) -> None:
        """Send by script what the guard refused, before all that was held back."""
        if self._undone:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
            undone, self._undone = self._undone, []
            self._held.put_back([append for group, _ in undone for append in group.appends])
        self._resume()

    async def _read_back_unknown(self) -> None:
        """Ask Redis for the outcomes of appends whose reply was lost, and send again those without effect."""
        deadline_s = asyncio.get_running_loop().time() + READ_BACK_TIMEOUT_S
        # Groups without effect stay: `close` answers them, too.
        absent = 0
        while absent < len(self._undone):
            group, is_unknown = self._undone[absent]
            outcome = None
            try:
                if is_unknown:
                    self._resources.counts.read_back += 1
                    outcome = await read_back(
                        self._state, self._resources.commands, group.forms[0], deadline_s
                    )
            except Exception as error:  # noqa: BLE001 - ends the appends, and is logged
                self._undone.pop(absent)
                self._fail_group(group, error)
                continue
            if outcome is None:
                self._undone[absent] = Undone(group, is_unknown=False)
                absent += 1
            else:
                self._undone.pop(absent)
                self._group_took_effect(group, Outcome(outcome, index_stale=False))
        self._reading_back = None
        self._resend()

    def _fail_group(self, group: AppendGroup, error: Exception) -> None:
        """End the appends of a group whose outcome could not be read back."""
        if isinstance(error, StorageError):
            fault = error
        else:
            log.exception("%s: the outcome of an append is unknown", self._state.name)
            fault = LinkLost(repr(error))
        # A passing error means that nothing was done. That is about the question, not about the append.
        is_passing = isinstance(fault, PASSING)
        for append in group.appends:
            self._failed(append, LinkLost(f"the outcome is unknown: {fault}") if is_passing else fault)

    # Outcomes.

    def _group_took_effect(self, group: AppendGroup, first: Outcome) -> None:
        outcomes = group.outcomes(first.appended)
        for append, form, appended in zip(group.appends, group.forms, outcomes, strict=True):
            self._took_effect(append, form, appended, index_stale=first.index_stale)

    def _took_effect(
        self, append: ProducedAppend | OwnAppend, form: Form, appended: Appended, *, index_stale: bool
    ) -> None:
        state = self._state
        self._near_cap = appended.lead_ms * 2 > state.lead_cap_ms
        produced = append.received.header.size if isinstance(append, ProducedAppend) else 0
        self._resources.counts.appended(state.counts, form, produced, duplicate=appended.duplicate)
        batch = None
        try:
            if isinstance(append, ProducedAppend) and not appended.duplicate and state.keeps_batches:
                batch = self._layout.as_read(append.received, form, appended.base_offset)
            state.note_appended(appended, form, batch, index_stale=index_stale)
        except Exception:
            # Redis has the records, although the state here is wrong now.
            log.exception("%s: the effect of an append could not be noted", state.name)
            state.lost_track()
        answer(append.done, appended)

    def _failed(self, append: AnyAppend, fault: StorageError) -> None:
        if isinstance(fault, LinkLost):
            self._state.lost_track()
        error = domain_error(fault)
        self._resources.refused(error, self._state.links)
        answer(append.done, error)
