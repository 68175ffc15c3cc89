"""The two ways in which a partition's batches get into its stream: all or nothing, in the order of the calls.

*Script append*: the function korvet_append (or korvet_append_batch) assigns the entry IDs and adds every
record. It works whatever the state, and costs Redis twice the CPU of plain XADDs.

*Guarded append*: the broker assigns the IDs, since it knows where its last append ended, and sends one MULTI:
the function korvet_guard, which opens a gate by renaming the stream, the XADDs of all entries through that
gate, and the function korvet_seal, which renames it back and saves what is to be known of them. A batch that
is one small entry needs no gate, the guard adds it. Where the broker was wrong (another writer, a refused
batch before it, the library lost) the guard opens nothing, the XADDs find no stream, and the batch goes by
script.

While Redis is busy with two such transactions, what comes in the meantime is gathered, and so is what comes
in one turn of the event loop from a producer that does not wait for answers: one guard lets a whole group of
batches in, all of them or none. Small batches cost Redis much less so.

Only appends of one way are in flight at a time. What comes meanwhile and is to go the other way is held back
for that round trip, with all that follows it, so that order is kept.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from korvet.offsets.packing import SEQUENCE_BITS, entry_id
from korvet.offsets.record_batch import (
    MAX_PRODUCER_SEQUENCE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
)
from korvet.records.batch import SPAN_RECORDS, AppendArguments, AppendCommands, Span
from korvet.records.kernel import append_reply, pack, pack_arguments
from korvet.storage.brokers.assignment import writer_epochs
from korvet.storage.errors import (
    PASSING,
    FencedEpoch,
    LinkLost,
    RedisFault,
    StorageError,
    domain_error,
)
from korvet.storage.link.calls import answer, parse_reply
from korvet.storage.link.slots import REDIRECTIONS
from korvet.storage.log.layouts import layout_of
from korvet.storage.log.values import Appended, Form, Marked, ProducerSequence, ReceivedBatch
from korvet.supervisor import once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.records.control import ControlMarker
    from korvet.storage.link.calls import Payload
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.resources import LogResources
    from korvet.storage.log.values import Form

log = logging.getLogger(__name__)

_APPEND_FIXED_ARGUMENTS: Final = 10
_GUARD_FIXED_ARGUMENTS: Final = 17
_XADD_FIXED_ARGUMENTS: Final = 4
# MULTI and EXEC, the guard, the seal: what is answered beside the XADDs.
_GATE_REPLIES: Final = 4
_MULTI: Final = pack("MULTI")
_EXEC: Final = pack("EXEC")
_OK: Final = b"+OK\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
# How replies end where nothing was added: a command was refused when it was queued, the slot has moved, or
# korvet_seal refuses.
_DISCARDED: Final = re.compile(
    rb"\r\n-(EXECABORT|REFUSED|%s)[^\r\n]*\r\n\Z" % b"|".join(map(str.encode, REDIRECTIONS))
)
_ABORT_ROOM: Final = 200
# The guard's error, in EXEC's array or in its place.
_GUARD_REFUSAL: Final = re.compile(rb"(?:\*\d+\r\n)?-([^\r\n]*)")
_REFUSAL_ROOM: Final = 400
# What Redis keeps of a producer's newest batches, by which it knows duplicates.
_REMEMBERED_BATCHES: Final = 5
# Error replies of the guard that say no more than that it did nothing: the script has the last word.
_FALLBACK_CODES: Final = frozenset(("REFUSED", "ERR")) | REDIRECTIONS
# Arguments from this size on are handed to the socket as they are; smaller ones are joined with the command.
_APART_BYTES: Final = 4096
# One is being executed, the other one is there when that is done.
_GROUPS_IN_FLIGHT: Final = 2
# A single entry of this size is XADDed, too: as an argument of a function it would be copied and hashed.
_THROUGH_GATE_BYTES: Final = 28 << 10
# A group of this size is sent even so: some ms of Redis's time, during which others wait.
_GROUP_BYTES: Final = 128 << 10
# After a refusal so many batches go by script before the guard is tried again; doubled when it happens again.
_FIRST_REST: Final = 8
_LONGEST_REST: Final = 256
# How long the connection to Redis may be away before the outcome of what was in flight counts as unknown.
_SETTLE_TIMEOUT_S: Final = 10.0
_SETTLE_POLL_S: Final = 0.05


class EncodedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch in one of the two forms in which it is sent, to be appended at once."""

    received: ReceivedBatch
    form: Form


class _Append(msgspec.Struct, eq=False):
    """One append from its call to its end."""

    received: ReceivedBatch | None
    """None for records of the broker's own."""
    form: Form
    stamp: ProducerSequence | None
    epoch: int | str
    followed: bool
    done: Callable[[Appended | StorageError], None]


class _Mark(msgspec.Struct, eq=False):
    """A marker on its way, in the place of an append."""

    marker: ControlMarker
    epoch: int | str
    done: Callable[[Any], None]


class _Group:
    """Guarded appends that take effect together, the records of each right behind those before it."""

    __slots__ = (
        "after",
        "appends",
        "entry_count",
        "forms",
        "largest_bytes",
        "record_count",
        "size_bytes",
        "spans",
    )

    def __init__(self, after: int) -> None:
        self.after = after
        """The position behind the append before these."""
        self.appends: list[_Append] = []
        self.forms: list[AppendCommands] = []
        self.entry_count = 0
        self.record_count = 0
        self.largest_bytes = 0
        """Of an entry."""
        self.size_bytes = 0
        self.spans: list[Span] = []

    def add(self, append: _Append, form: AppendCommands) -> None:
        """One more, whose position is behind the last one's."""
        self.appends.append(append)
        self.forms.append(form)
        self.entry_count += form.entry_count
        self.record_count += form.record_count
        self.size_bytes += form.size_bytes
        self.largest_bytes = max(self.largest_bytes, form.largest_bytes)
        for span in form.spans:
            self._add_span(span)

    def _add_span(self, span: Span) -> None:
        """With the one before it where that is short: Redis has work for each."""
        if self.spans:
            before = self.spans[-1]
            records = before.records + span.records
            if records <= SPAN_RECORDS:
                entries, size_bytes = before.entries + span.entries, before.size_bytes + span.size_bytes
                self.spans[-1] = Span(records, entries, size_bytes, max(before.newest_ms, span.newest_ms))
                return
        self.spans.append(span)

    @property
    def gated(self) -> bool:
        """Whether the entries are XADDed through the gate; else the guard adds the only one."""
        return self.entry_count > 1 or self.size_bytes >= _THROUGH_GATE_BYTES

    def outcomes(self, first: Appended) -> list[Appended]:
        """What each append did, told from what the first one did."""
        outcomes = [first]
        base = first.base_offset
        for before, form in itertools.pairwise(self.forms):
            base += before.record_count
            append_ms = form.append_ms if form.append_ms >= 0 else first.append_ms
            outcomes.append(
                Appended(
                    base,
                    first.log_start,
                    base,
                    append_ms,
                    first.lead_ms,
                    duplicate=False,
                    last_stable_offset=first.last_stable_offset,
                )
            )
        return outcomes


class Appender:
    """Appends batches to one partition. Use through PartitionLog."""

    __slots__ = (
        "_epoch",
        "_gate_command",
        "_gathering",
        "_guard_prefix",
        "_guarded",
        "_held",
        "_layout",
        "_lead_cap_ms",
        "_log",
        "_next",
        "_next_rest",
        "_refusal",
        "_resources",
        "_rest",
        "_script_argc",
        "_script_prefix",
        "_scripts",
        "_seal",
        "_settling",
        "_undone",
        "_write",
    )

    def __init__(self, log: PartitionLog, resources: LogResources) -> None:
        self._log = log
        self._resources = resources
        self._next = -1
        """The position behind our last append, those on their way included; -1 where it is not known."""
        self._scripts = 0
        """Script appends in flight."""
        self._guarded: deque[_Group] = deque()
        """Guarded appends in flight."""
        self._gathering: _Group | None = None
        """Guarded appends to be sent together, soon."""
        self._undone: list[tuple[_Group, bool]] = []
        """Guarded appends that were refused, or (True) whose outcome is unknown."""
        self._held: deque[_Append | _Mark] = deque()
        """Waiting for those in flight."""
        self._rest = 0
        """So many appends go by script before the guard is tried again."""
        self._next_rest = _FIRST_REST
        self._settling: asyncio.Task[None] | None = None
        self._write = log.links.write
        """The link of the guarded appends in flight or gathered."""
        self._refusal: StorageError | None = None
        self._epoch = "" if log.epoch is None else writer_epochs(log.epoch).start
        self.configure()

    def configure(self) -> None:
        """Take over the topic's configuration."""
        log = self._log
        stream, index, meta, _ = log.keys
        gate = self._resources.commands.keyspace.gate(log.topic.name, log.partition)
        self._gate_command = pack_arguments("XADD", gate, "NOMKSTREAM")
        self._lead_cap_ms = log.lead_cap_ms
        self._layout = layout_of(log, self._gate_command)
        self._script_argc = _APPEND_FIXED_ARGUMENTS + len(self._script_keys)
        self._script_prefix = self._script_prefix_with(())
        self._guard_prefix = pack_arguments("FCALL", "korvet_guard", 4, stream, index, meta, gate, log.bias)
        self._seal = pack("FCALL", "korvet_seal", 2, stream, gate) + _EXEC

    @property
    def _script_keys(self) -> tuple[bytes, ...]:
        """The keys of a script append, but for what `_pending` adds."""
        return self._log.keys if self._log.topic.keeps_latest else self._log.keys[:3]

    def _script_prefix_with(self, pending: tuple[bytes, ...]) -> bytes:
        """What a script append begins with, behind the number of its arguments."""
        log, topic = self._log, self._log.topic
        keys = (*self._script_keys, *pending)
        append_time = topic.log_append_time and log.bias == 1
        return pack_arguments(
            "FCALL",
            self._layout.append_function,
            len(keys),
            *keys,
            log.bias,
            self._lead_cap_ms,
            int(topic.keeps_latest),
            int(append_time),
        )

    def _pending(self, producer_id: int) -> tuple[bytes, ...]:
        """Where a transaction's records are noted, on topics that coordinators load."""
        topic = self._log.topic
        if not topic.keeps_latest:
            return ()
        return (self._resources.commands.keyspace.pending(topic.name, self._log.partition, producer_id),)

    def encode(self, received: ReceivedBatch) -> EncodedBatch:
        """The batch in the form in which it can be sent now. Raises BatchError."""
        waits = self._held or self._undone
        form = self._layout.arguments(received) if waits else self._encode(received)
        return EncodedBatch(received, form)

    def append(
        self,
        batch: AppendArguments | EncodedBatch,
        stamp: ProducerSequence | None,
        epoch: int | None,
        done: Callable[[Appended | StorageError], None],
        *,
        followed: bool,
    ) -> None:
        """Append one batch; `done` is called later with the outcome. See PartitionLog.append."""
        received, form = (batch.received, batch.form) if isinstance(batch, EncodedBatch) else (None, batch)
        append = _Append(received, form, stamp, self._epoch if epoch is None else epoch, followed, done)
        if self._held or self._undone or not self._try(append):
            self._held.append(append)

    def mark(
        self, marker: ControlMarker, epoch: int | None, done: Callable[[Marked | StorageError], None]
    ) -> None:
        """End a transaction, behind all appends before; see PartitionLog.mark."""
        mark = _Mark(marker, self._epoch if epoch is None else epoch, done)
        if self._held or self._undone or not self._try(mark):
            self._held.append(mark)

    def close(self, refusal: StorageError) -> None:
        """Refuse what has not been sent yet; the log is closed."""
        self._refusal = refusal
        if self._settling is not None:
            self._settling.cancel()
        self._give_up(refusal)

    def _give_up(self, refusal: StorageError) -> None:
        """Nothing more is sent: end all that waits for that."""
        self._drop_gathered()
        undone, self._undone = self._undone, []
        held, self._held = self._held, deque()
        for group, unknown in undone:
            for append in group.appends:
                broken = LinkLost("the connection broke before Redis answered")
                answer(append.done, broken if unknown else refusal)
        for waiting in held:
            answer(waiting.done, refusal)

    # which way, and when

    def _encode(self, received: ReceivedBatch) -> Form:
        """The form for a batch that nothing waits before."""
        log = self._log
        if self._scripts == 0 and self._next >= 0 and self._rest == 0 and self._layout.guards:
            now_ms = log.links.clock.now_ms()
            position = self._next
            if log.bias == 0 and self._gathering is None:
                position = max(position, now_ms << SEQUENCE_BITS)
            # A burst too far ahead of the clock is for the script to refuse.
            if log.bias or (position >> SEQUENCE_BITS) - now_ms <= self._lead_cap_ms:
                return self._layout.commands(received, position)
        return self._layout.arguments(received)

    @property
    def unsettled_from(self) -> int | None:
        """The position of the first record of which it is yet to be known whether Redis has it; None where
        there is none.
        """
        groups = [*(group for group, unknown in self._undone if unknown), *self._guarded]
        return groups[0].forms[0].position if groups else None

    @property
    def _is_guarding(self) -> bool:
        return bool(self._guarded) or self._gathering is not None

    def _try(self, append: _Append | _Mark) -> bool:
        """Send it; False where it has to wait for those in flight."""
        if isinstance(append, _Mark):
            if self._is_guarding:
                return False
            self._send_mark(append)
            return True
        form = append.form
        if isinstance(form, AppendCommands):
            # Behind one that another server has yet to answer it would overtake.
            write = self._log.links.write
            same = write is self._write or not self._is_guarding
            if self._scripts == 0 and form.position >= self._next >= 0 and same:
                self._write = write
                self._gather(append, form)
                return True
            assert append.received is not None
            form = append.form = self._layout.arguments(append.received)
        if self._is_guarding:
            return False
        if self._scripts and append.received is not None and self._layout.guards and self._rest == 0:
            # Once those before it are done the end of the log is known, and the guard can take over.
            return False
        self._send_script(append, form)
        return True

    def _go_on(self) -> None:
        """Those in flight of one way are done: send what was held back."""
        while self._held and not self._undone:
            append = self._held[0]
            if isinstance(append, _Append) and append.received is not None:
                append.form = self._encode(append.received)
            if not self._try(append):
                return
            self._held.popleft()

    # script append

    def _send_script(self, append: _Append, form: AppendArguments) -> None:
        prefix, argc = self._script_prefix, self._script_argc + form.argc
        stamp = append.stamp
        if stamp is not None and stamp.transactional and (pending := self._pending(stamp.producer_id)):
            prefix, argc = self._script_prefix_with(pending), argc + len(pending)
        head = b"*%d\r\n" % argc
        tail = pack_arguments(append.epoch, form.record_count, _marks([append], [form]))
        self._scripts += 1
        self._next = -1
        if append.received is not None and self._rest:
            self._rest -= 1

        def arrived(reply: memoryview | StorageError) -> None:
            self._scripts -= 1
            try:
                if isinstance(reply, StorageError):
                    self._failed(append, reply)
                else:
                    self._script_done(append, form, reply)
            finally:
                if self._scripts == 0:
                    self._go_on()

        self._log.links.write_functions.send((head + prefix + tail, form.resp), arrived)

    def _script_done(self, append: _Append, form: AppendArguments, reply: memoryview) -> None:
        numbers = self._numbers(reply, 0)
        if numbers is None:
            self._failed(append, self._irregular(reply))
            return
        outcome, behind = self._outcome(numbers, form)
        if self._scripts == 0 and not outcome.duplicate:
            self._next = outcome.base_offset + form.record_count + self._log.bias
        self._took_effect(append, outcome, behind=behind)

    def _numbers(self, replies: memoryview, added: int) -> tuple[int, ...] | None:
        """See append_reply; None also if the replies cannot be read: what became of the append is asked then,
        as what follows it would wait for ever.
        """
        try:
            return append_reply(replies, added)
        except Exception:
            log.exception("%s: the reply to an append cannot be read", self._log.stream.decode())
            return None

    def _irregular(self, reply: bytes | memoryview) -> LinkLost:
        """What an append ends with whose reply does not say what became of it."""
        log.error("%s: an append was answered with %r", self._log.stream.decode(), bytes(reply[:200]))
        return LinkLost("Redis answered an append with something else")

    def _outcome(self, numbers: tuple[int, ...], form: Form) -> tuple[Appended, bool]:
        """What an append function says of the batch of this form, and whether the index lacks entries."""
        base, previous_end, start, append_ms, lead_ms, duplicate, behind, last_stable_offset = numbers
        self._log.links.clock.observe(append_ms)
        if form.append_ms >= 0:
            append_ms = form.append_ms
        outcome = Appended(base, start, previous_end, append_ms, lead_ms, duplicate == 1, last_stable_offset)
        return outcome, behind == 1

    def _took_effect(self, append: _Append, outcome: Appended, *, behind: bool) -> None:
        received, form = append.received, append.form
        as_read = None
        try:
            if received is not None and not outcome.duplicate and self._log.keeps_batches:
                as_read = self._layout.as_read(received, form, outcome.base_offset)
            self._log.took_effect(outcome, form, as_read, behind=behind)
        except Exception:
            # Redis has the records, whatever became of what is known of the log here.
            log.exception("%s: an append could not be followed", self._log.stream.decode())
            self._log.lost_track()
        answer(append.done, outcome)

    def _failed(self, append: _Append | _Mark, fault: StorageError) -> None:
        if isinstance(fault, LinkLost):
            self._log.lost_track()
        error = domain_error(fault)
        if isinstance(error, FencedEpoch):
            self._resources.on_fenced(error)
        answer(append.done, error)

    def _send_mark(self, mark: _Mark) -> None:
        """By script, as those that may be in flight."""
        log, marker = self._log, mark.marker
        pending = self._pending(marker.producer_id)
        latest = log.keys[3:] if pending else ()
        keys = (*log.keys[:3], log.aborted_key, *latest, *pending)
        payload = pack(
            "FCALL",
            "korvet_mark",
            len(keys),
            *keys,
            log.bias,
            mark.epoch,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            "commit" if marker.committed else "abort",
            self._layout.marker(marker, log.links.clock.now_ms()),
        )
        self._scripts += 1
        self._next = -1

        def arrived(reply: memoryview | StorageError) -> None:
            self._scripts -= 1
            try:
                if isinstance(reply, StorageError):
                    self._failed(mark, reply)
                else:
                    self._mark_done(mark, reply)
            finally:
                if self._scripts == 0:
                    self._go_on()

        log.links.write_functions.send(payload, arrived)

    def _mark_done(self, mark: _Mark, reply: memoryview) -> None:
        try:
            offset, previous_end, start, append_ms, last_stable_offset, first, behind = parse_reply(reply)
        except (TypeError, ValueError):
            self._failed(mark, self._irregular(reply))
            return
        log = self._log
        log.links.clock.observe(append_ms)
        if offset >= 0 and self._scripts == 0:
            self._next = offset + 1 + log.bias
        marked = Marked(offset, first, previous_end, last_stable_offset, append_ms)
        log.marked(mark.marker, marked, start, behind=bool(behind))
        answer(mark.done, marked)

    # guarded append

    def _gather(self, append: _Append, form: AppendCommands) -> None:
        """Send it, at once where Redis has nothing to do and nothing follows, else with others when their
        time has come.
        """
        if self._gathering is not None and self._gathering.appends[0].epoch != append.epoch:
            self._send_gathered()
        group = self._gathering
        if group is None:
            group = _Group(self._next)
            if self._guarded or append.followed:
                self._gathering = group
                self._write.loop.call_soon(self._turn_ended)
        group.add(append, form)
        self._next = form.position + form.record_count
        if self._gathering is None:
            self._send_group(group)
        elif group.size_bytes >= _GROUP_BYTES:
            self._send_gathered()

    def _turn_ended(self) -> None:
        if len(self._guarded) < _GROUPS_IN_FLIGHT:
            self._send_gathered()

    def _send_gathered(self) -> None:
        # Behind one that failed they would be refused, too.
        if self._gathering is not None and self._next >= 0:
            group, self._gathering = self._gathering, None
            self._send_group(group)

    def _drop_gathered(self) -> None:
        """What is not sent as it was gathered is to be done in another way."""
        if self._gathering is not None:
            self._undone.append((self._gathering, False))
            self._gathering = None

    def _send_group(self, group: _Group) -> None:
        first = group.forms[0]
        arguments = pack_arguments(
            group.appends[0].epoch,
            entry_id(group.after - 1),
            first.position,
            entry_id(first.position + group.record_count - 1),
            group.record_count,
            group.entry_count,
            _marks(group.appends, group.forms),
            group.largest_bytes,
            b"".join([b"%d %d %d %d;" % span for span in group.spans]),
        )
        fields = 0 if group.gated else first.first_argc
        guard = b"*%d\r\n%b%b" % (_GUARD_FIXED_ARGUMENTS + fields, self._guard_prefix, arguments)
        self._guarded.append(group)
        payload: Payload
        if group.gated:
            pieces = [_MULTI + guard]
            for form in group.forms:
                pieces += (self._as_command(form), *form.pieces)
            payload = (*pieces, self._seal)
            self._write.send(payload, self._guard_answered, group.entry_count + _GATE_REPLIES)
        else:
            payload = (guard, *first.pieces)
            if first.size_bytes < _APART_BYTES:
                payload = b"".join(payload)
            self._write.send(payload, self._guard_answered)

    def _as_command(self, form: AppendCommands) -> bytes:
        """What makes a command of a batch's first entry."""
        head = b"*%d\r\n" % (_XADD_FIXED_ARGUMENTS + form.first_argc)
        return head + self._gate_command + pack_arguments(entry_id(form.first_entry))

    def _guard_answered(self, replies: memoryview | StorageError) -> None:
        group = self._guarded[0]
        if isinstance(replies, StorageError):
            if group.gated:
                # Without MULTI (a user that may not) each command did its work alone, or none did.
                replies = LinkLost(f"Redis did not take a transaction: {replies}")
            self._guard_failed(replies)
            return
        numbers = self._numbers(replies, group.entry_count if group.gated else 0)
        if numbers is None:
            self._guard_failed(self._refusal_in(replies))
        else:
            self._guard_opened(numbers)

    def _refusal_in(self, replies: memoryview) -> StorageError:
        """What the replies to a guarded append say that is no success."""
        queued = _OK + _QUEUED * (self._guarded[0].entry_count + 2)
        # The guard's reply; those of the XADDs need no look.
        first = b""
        if bytes(replies[: len(queued)]) == queued:
            first = bytes(replies[len(queued) : len(queued) + _REFUSAL_ROOM])
        error = _GUARD_REFUSAL.match(first)
        if error is not None:
            # Of the guard, or of EXEC where the slot went away after all was queued.
            message = error[1].decode("utf-8", "replace")
            return RedisFault(message, message.partition(" ")[0])
        if _DISCARDED.search(bytes(replies[-_ABORT_ROOM:])):
            return RedisFault("the transaction was discarded", "REFUSED")
        return self._irregular(replies)

    def _guard_opened(self, numbers: tuple[int, ...]) -> None:
        group = self._guarded.popleft()
        self._next_rest = _FIRST_REST
        first, behind = self._outcome(numbers, group.forms[0])
        if first.duplicate:
            # Nothing was added: those behind it are not where they believe.
            self._next = -1
        self._all_took_effect(group, first, behind=behind)
        self._after_guarded()

    def _all_took_effect(self, group: _Group, first: Appended, *, behind: bool) -> None:
        for append, outcome in zip(group.appends, group.outcomes(first), strict=True):
            self._took_effect(append, outcome, behind=behind)

    def _guard_failed(self, fault: StorageError) -> None:
        """Nothing was written, or nobody knows (LinkLost); what is behind it in flight is refused as well."""
        group = self._guarded.popleft()
        self._next = -1
        if isinstance(fault, LinkLost):
            self._undone.append((group, True))
        elif isinstance(fault, RedisFault) and fault.code in _FALLBACK_CODES:
            self._undone.append((group, False))
        else:
            for append in group.appends:
                self._failed(append, fault)
        self._after_guarded()

    def _after_guarded(self) -> None:
        if len(self._guarded) < _GROUPS_IN_FLIGHT:
            self._send_gathered()
        if self._guarded:
            return
        if self._refusal is not None:
            self._give_up(self._refusal)
            return
        self._drop_gathered()
        if any(unknown for _, unknown in self._undone):
            self._settling = once("unknown outcomes of appends", self._settle())
        else:
            self._resend()

    def _resend(self) -> None:
        """Send by script what the guard refused, before all that was held back."""
        if self._undone:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
            undone, self._undone = self._undone, []
            self._held.extendleft(
                append for group, _ in reversed(undone) for append in reversed(group.appends)
            )
        self._go_on()

    # unknown outcomes

    async def _settle(self) -> None:
        """Ask Redis which appends took effect whose reply was lost, and send the others again."""
        deadline_s = asyncio.get_running_loop().time() + _SETTLE_TIMEOUT_S
        absent: list[tuple[_Group, bool]] = []
        while self._undone:
            group, unknown = self._undone[0]
            try:
                outcome = await self._read_back(group.forms[0], deadline_s) if unknown else None
            except Exception as error:
                fault = error if isinstance(error, StorageError) else LinkLost(repr(error))
                if fault is not error:
                    log.exception("%s: what became of an append is unknown", self._log.stream.decode())
                self._undone.pop(0)
                # Who says that nothing was written means the question.
                lost = isinstance(fault, PASSING)
                for append in group.appends:
                    self._failed(append, LinkLost(f"the outcome is unknown: {fault}") if lost else fault)
                continue
            self._undone.pop(0)
            if outcome is None:
                absent.append((group, False))
            else:
                self._all_took_effect(group, outcome, behind=False)
        self._undone = absent
        self._settling = None
        self._resend()

    async def _read_back(self, form: AppendCommands, deadline_s: float) -> Appended | None:
        """What became of the first append of a group: None where it did not and will not take effect.

        The function korvet_settle also breaks the chain of guarded appends, so that one that Redis still has
        in its buffers is refused. Raises StorageError where Redis does not say until `deadline_s`.
        """
        while True:
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                reply = await self._resources.commands.fcall(
                    "korvet_settle", self._log.keys[:3], self._log.bias, entry_id(form.first_entry)
                )
                break
            except StorageError as error:
                if left_s <= 0 or not isinstance(error, PASSING):
                    raise
            await asyncio.sleep(_SETTLE_POLL_S)
        try:
            _, start, now_ms, fields = reply
            found = pack_arguments(*fields)
        except (TypeError, ValueError) as error:
            raise self._irregular(repr(reply).encode()) from error
        if found != form.first_arguments:
            return None
        base = form.position - self._log.bias
        append_ms = now_ms if form.append_ms < 0 else form.append_ms
        return Appended(base, start, base, append_ms, 0, duplicate=False, last_stable_offset=-1)


def _marks(appends: Sequence[_Append], forms: Sequence[Form]) -> bytes:
    """What the functions are told of the producers: empty where no batch has an idempotent one."""
    if all(append.stamp is None for append in appends):
        return b""
    marks = b""
    first = last = _NO_PRODUCER
    counts: list[int] = []
    for append, form in zip(appends, forms, strict=True):
        stamp = append.stamp or _NO_PRODUCER
        if counts and not _follows(stamp, last, counts[-1]):
            marks += _mark_of(first, counts)
            counts = []
        if not counts:
            first = stamp
        counts.append(form.record_count)
        last = stamp
    return marks + _mark_of(first, counts)


def _follows(stamp: ProducerSequence, last: ProducerSequence, count: int) -> bool:
    """Whether a batch continues what its producer has sent in a batch of so many records before it."""
    if stamp.producer_id == -1 or last.base_sequence == -1:
        return stamp.producer_id == last.producer_id == -1
    return (
        stamp.base_sequence == (last.base_sequence + count) & MAX_PRODUCER_SEQUENCE
        and stamp.producer_id == last.producer_id
        and stamp.producer_epoch == last.producer_epoch
        and stamp.transactional == last.transactional
    )


def _mark_of(first: ProducerSequence, counts: list[int]) -> bytes:
    """See PRODUCERS_PATTERN in lua/_producers.lua."""
    newest = b""
    if len(counts) > 1:
        newest = b" " + b",".join([b"%d" % count for count in counts[-_REMEMBERED_BATCHES:]])
    return b"%d %d %d %d%b%b;" % (
        first.producer_id,
        first.producer_epoch,
        first.base_sequence,
        sum(counts),
        b"t" if first.transactional else b"",
        newest,
    )


_NO_PRODUCER: Final = ProducerSequence(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
