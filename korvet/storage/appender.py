"""The two ways in which a partition's batches get into its stream: all or nothing, in the order of the calls.

*Script append*: the function korvet_append (or korvet_append_batch) assigns the entry IDs and adds every
record. It works whatever the state, and costs Redis twice the CPU of plain XADDs.

*Guarded append*: the broker assigns the IDs, since it knows where its last append ended, and sends one MULTI:
the function korvet_guard, which adds the first entry and opens a gate by renaming the stream, the XADDs of
the other entries through that gate, and the renaming back. A batch that is one entry needs no more than the
call of the function. Where the broker was wrong (another writer, a refused batch before it, the library lost)
the guard opens nothing, the XADDs find no stream, and the batch goes by script.

Only appends of one way are in flight at a time. What comes meanwhile and is to go the other way is held back
for that round trip, with all that follows it, so that order is kept.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets.packing import SEQUENCE_BITS, entry_id
from korvet.records.batch import AppendArguments, AppendCommands, BatchHeader
from korvet.storage.assignment import writer_epochs
from korvet.storage.errors import (
    FencedEpoch,
    LinkLost,
    RedisFault,
    SlotUnavailable,
    StorageError,
    domain_error,
)
from korvet.storage.layouts import layout_of
from korvet.storage.link import pack, pack_arguments
from korvet.storage.slots import REDIRECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.records.batch import Octets
    from korvet.storage.layouts import Form
    from korvet.storage.link import Payload
    from korvet.storage.log import PartitionLog
    from korvet.storage.store import Store

log = logging.getLogger(__name__)

_APPEND_FIXED_ARGUMENTS: Final = 12
_GUARD_FIXED_ARGUMENTS: Final = 19
_MULTI: Final = pack("MULTI")
_EXEC: Final = pack("EXEC")
_OK: Final = b"+OK\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
# How an EXEC reply ends where the stream was renamed back: by RENAMENX's 1.
_WAY_BACK_TAKEN: Final = b"\r\n:1\r\n"
# How it ends where EXEC did nothing: a command was refused when it was queued, or the slot has moved.
_DISCARDED: Final = re.compile(
    rb"\r\n-(EXECABORT|%s)[^\r\n]*\r\n\Z" % b"|".join(map(str.encode, REDIRECTIONS))
)
_ABORT_ROOM: Final = 200
# The guard's reply is an array of seven integers; an error reply is longer at times.
_GUARD_REPLY: Final = b"*7\r\n"
_GUARD_REPLY_LINES: Final = 8
_GUARD_REPLY_ROOM: Final = 400
# Error replies of the guard that say no more than that it did nothing: the script has the last word.
_FALLBACK_CODES: Final = frozenset(("REFUSED", "ERR")) | REDIRECTIONS
# Arguments from this size on are handed to the socket as they are; smaller ones are joined with the command.
_APART_BYTES: Final = 4096
# After a refusal so many batches go by script before the guard is tried again; doubled when it happens again.
_FIRST_REST: Final = 8
_LONGEST_REST: Final = 256
# How long the connection to Redis may be away before the outcome of what was in flight counts as unknown.
_SETTLE_TIMEOUT_S: Final = 10.0
_SETTLE_POLL_S: Final = 0.05
# A server that has just been started and still reads its files.
_LOADING: Final = "LOADING"


class ProducerStamp(msgspec.Struct, frozen=True, gc=False):
    """An idempotent producer's mark on a batch (KIP-98)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


class Appended(msgspec.Struct, frozen=True, gc=False):
    """An append that took effect. The records have the offsets base_offset, base_offset + 1 and so on."""

    base_offset: int
    log_start: int
    previous_end: int
    """The log end before: smaller than base_offset where there is a gap, which clock topics always have."""
    append_ms: int
    """Redis's clock."""
    lead_ms: int
    """How far the newest offset is ahead of Redis's clock."""
    duplicate: bool
    """The same batch was appended before; base_offset is the original one."""


class ReceivedBatch(msgspec.Struct, frozen=True, gc=False):
    """A record batch as a producer sent it."""

    data: bytes
    header: BatchHeader
    plain: bytes | None
    """The decompressed records where the batch has a codec."""


class EncodedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch in one of the two forms in which it is sent, to be appended at once."""

    received: ReceivedBatch
    form: Form


class _Append:
    """One append from its call to its end."""

    __slots__ = ("done", "epoch", "form", "received", "stamp")

    def __init__(
        self,
        batch: AppendArguments | EncodedBatch,
        stamp: ProducerStamp | None,
        epoch: int | str,
        done: Callable[[Appended | StorageError], None],
    ) -> None:
        self.form: Form
        if isinstance(batch, EncodedBatch):
            self.received: ReceivedBatch | None = batch.received
            self.form = batch.form
        else:
            self.received = None
            self.form = batch
        self.stamp = stamp or _NO_PRODUCER
        self.epoch = epoch
        self.done = done

    @property
    def commands(self) -> AppendCommands:
        """The form of a guarded append."""
        assert isinstance(self.form, AppendCommands)
        return self.form


class Appender:
    """Appends batches to one partition. Use through PartitionLog."""

    __slots__ = (
        "_epoch",
        "_guard_prefix",
        "_guarded",
        "_held",
        "_layout",
        "_log",
        "_next",
        "_next_rest",
        "_refusal",
        "_rest",
        "_script_argc",
        "_script_prefix",
        "_scripts",
        "_settling",
        "_store",
        "_undone",
        "_way_back",
        "_write",
    )

    def __init__(self, log: PartitionLog, store: Store) -> None:
        self._log = log
        self._store = store
        self._next = -1
        """The position behind our last append, those in flight included; -1 where it is not known."""
        self._scripts = 0
        """Script appends in flight."""
        self._guarded: deque[_Append] = deque()
        """Guarded appends in flight."""
        self._undone: list[tuple[_Append, bool]] = []
        """Guarded appends that were refused, or (True) whose outcome is unknown."""
        self._held: deque[_Append] = deque()
        """Waiting for those in flight."""
        self._rest = 0
        """So many appends go by script before the guard is tried again."""
        self._next_rest = _FIRST_REST
        self._settling: asyncio.Task[None] | None = None
        self._write = log.links.write
        """The link of the guarded appends in flight."""
        self._refusal: StorageError | None = None
        self._epoch = "" if log.epoch is None else writer_epochs(log.epoch).start
        self.configure()

    def configure(self) -> None:
        """Take over the topic's configuration."""
        log = self._log
        stream, index, meta, _ = log.keys
        gate = self._store.keyspace.gate(log.topic.name, log.partition)
        keys = log.keys if log.topic.compacted else (stream, index, meta)
        append_time = log.topic.log_append_time and log.bias == 1
        self._layout = layout_of(log, pack_arguments("XADD", gate, "NOMKSTREAM"))
        self._script_argc = _APPEND_FIXED_ARGUMENTS + len(keys)
        self._script_prefix = pack_arguments(
            "FCALL",
            self._layout.append_function,
            len(keys),
            *keys,
            log.bias,
            log.lead_cap_ms,
            int(log.topic.compacted),
            int(append_time),
        )
        self._guard_prefix = pack_arguments("FCALL", "korvet_guard", 4, stream, index, meta, gate, log.bias)
        self._way_back = pack("RENAMENX", gate, stream) + _EXEC

    def encode(self, received: ReceivedBatch) -> EncodedBatch:
        """The batch in the form in which it can be sent now. Raises BatchError."""
        waits = self._held or self._undone
        form = self._layout.arguments(received) if waits else self._encode(received)
        return EncodedBatch(received, form)

    def append(
        self,
        batch: AppendArguments | EncodedBatch,
        stamp: ProducerStamp | None,
        epoch: int | None,
        done: Callable[[Appended | StorageError], None],
    ) -> None:
        """Append one batch; `done` is called later with the outcome. See PartitionLog.append."""
        append = _Append(batch, stamp, self._epoch if epoch is None else epoch, done)
        if self._held or self._undone or not self._try(append):
            self._held.append(append)

    def close(self, refusal: StorageError) -> None:
        """Refuse what has not been sent yet; the log is closed."""
        self._refusal = refusal
        if self._settling is not None:
            self._settling.cancel()
        self._give_up(refusal)

    def _give_up(self, refusal: StorageError) -> None:
        """Nothing more is sent: end all that waits for that."""
        undone, self._undone = self._undone, []
        held, self._held = self._held, deque()
        for append, unknown in undone:
            append.done(LinkLost("the connection broke before Redis answered") if unknown else refusal)
        for append in held:
            append.done(refusal)

    # which way, and when

    def _encode(self, received: ReceivedBatch) -> Form:
        """The form for a batch that nothing waits before."""
        log = self._log
        if self._scripts == 0 and self._next >= 0 and self._rest == 0 and self._layout.guards:
            now_ms = log.links.clock.now_ms()
            position = self._next if log.bias else max(self._next, now_ms << SEQUENCE_BITS)
            # A burst too far ahead of the clock is for the script to refuse.
            if log.bias or (position >> SEQUENCE_BITS) - now_ms <= log.lead_cap_ms:
                return self._layout.commands(received, position)
        return self._layout.arguments(received)

    def _try(self, append: _Append) -> bool:
        """Send it; False where it has to wait for those in flight."""
        form = append.form
        if isinstance(form, AppendCommands):
            # Behind one that another server has yet to answer it would overtake.
            write = self._log.links.write
            same = write is self._write or not self._guarded
            if self._scripts == 0 and form.position >= self._next >= 0 and same:
                self._write = write
                self._send_guarded(append, form)
                return True
            assert append.received is not None
            form = append.form = self._layout.arguments(append.received)
        if self._guarded:
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
            if append.received is not None:
                append.form = self._encode(append.received)
            if not self._try(append):
                return
            self._held.popleft()

    # script append

    def _send_script(self, append: _Append, form: AppendArguments) -> None:
        stamp = append.stamp
        head = b"*%d\r\n" % (self._script_argc + form.argc)
        tail = pack_arguments(
            append.epoch,
            form.record_count,
            stamp.producer_id,
            stamp.producer_epoch,
            stamp.base_sequence,
        )
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
                    self._took_effect(append, bytes(reply), last=self._scripts == 0)
            finally:
                if self._scripts == 0:
                    self._go_on()

        self._log.links.write_functions.send((head + self._script_prefix + tail, form.resp), arrived)

    def _took_effect(self, append: _Append, reply: bytes, *, last: bool) -> None:
        """Take an append function's reply, seven integers; `last`: none is in flight behind it."""
        _, base, previous_end, start, append_ms, lead_ms, duplicate, behind, _ = (
            int(line[1:] or 0) for line in reply.split(b"\r\n")
        )
        self._log.links.clock.observe(append_ms)
        form = append.form
        if last:
            self._next = -1 if duplicate else base + form.record_count + self._log.bias
        if form.append_ms >= 0:
            append_ms = form.append_ms
        outcome = Appended(base, start, previous_end, append_ms, lead_ms, bool(duplicate))
        self._log.took_effect(outcome, form, self._as_read(append), behind=bool(behind))
        append.done(outcome)

    def _as_read(self, append: _Append) -> Octets | None:
        return None if append.received is None else self._layout.as_read(append.received, append.form)

    def _failed(self, append: _Append, fault: StorageError) -> None:
        if isinstance(fault, LinkLost):
            self._log.lost_track()
        error = domain_error(fault)
        if isinstance(error, FencedEpoch):
            self._store.fenced(error)
        append.done(error)

    # guarded append

    def _send_guarded(self, append: _Append, form: AppendCommands) -> None:
        stamp = append.stamp
        spans = b"".join(b"%d %d %d;" % span for span in form.spans)
        head = b"*%d\r\n" % (_GUARD_FIXED_ARGUMENTS + form.first_argc)
        arguments = pack_arguments(
            append.epoch,
            entry_id(self._next - 1),
            form.position,
            entry_id(form.first_entry),
            entry_id(form.position + form.record_count - 1),
            form.record_count,
            stamp.producer_id,
            stamp.producer_epoch,
            stamp.base_sequence,
            form.largest_bytes,
            spans,
        )
        guard = head + self._guard_prefix + arguments
        self._next = form.position + form.record_count
        self._guarded.append(append)
        payload: Payload
        if form.entry_count > 1:
            # MULTI and EXEC, the guard, the way back, and an XADD for each entry but the first.
            replies = form.entry_count + 3
            payload = (_MULTI + guard + form.first, form.rest, self._way_back)
            self._write.send(payload, self._guarded_many, replies)
        else:
            payload = guard + form.first if len(form.first) < _APART_BYTES else (guard, form.first)
            self._write.send(payload, self._guarded_one)

    def _guarded_one(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            self._guard_failed(reply)
        else:
            self._guard_opened(bytes(reply))

    def _guarded_many(self, reply: memoryview | StorageError) -> None:
        if isinstance(reply, StorageError):
            # Without MULTI (a user that may not) each command did its work alone, or none did.
            self._guard_failed(LinkLost(f"Redis did not take a transaction: {reply}"))
            return
        count = self._guarded[0].commands.entry_count
        queued = _OK + _QUEUED * (count + 1)
        head = b"*%d\r\n" % (count + 1)
        regular = bytes(reply[: len(queued)]) == queued
        # The guard's reply; those of the XADDs need no look.
        first = bytes(reply[len(queued) : len(queued) + _GUARD_REPLY_ROOM]) if regular else b""
        if first.startswith((b"-", head + b"-")):
            # Of the guard, or of EXEC where the slot went away after all was queued.
            message = first.partition(b"-")[2].partition(b"\r\n")[0].decode("utf-8", "replace")
            self._guard_failed(RedisFault(message, message.partition(" ")[0]))
        elif first.startswith(head + _GUARD_REPLY) and (
            _is_duplicate(first[len(head) :]) or bytes(reply[-len(_WAY_BACK_TAKEN) :]) == _WAY_BACK_TAKEN
        ):
            lines = first[len(head) :].split(b"\r\n", _GUARD_REPLY_LINES)
            self._guard_opened(b"\r\n".join([*lines[:_GUARD_REPLY_LINES], b""]))
        elif _DISCARDED.search(bytes(reply[-_ABORT_ROOM:])):
            self._guard_failed(RedisFault("the transaction was discarded", "REFUSED"))
        else:
            log.error("%s: an append was answered with %r", self._log.stream.decode(), bytes(reply[:200]))
            self._guard_failed(LinkLost("Redis answered an append with something else"))

    def _guard_opened(self, reply: bytes) -> None:
        append = self._guarded.popleft()
        self._next_rest = _FIRST_REST
        self._took_effect(append, reply, last=_is_duplicate(reply))
        self._after_guarded()

    def _guard_failed(self, fault: StorageError) -> None:
        """Nothing was written, or nobody knows (LinkLost); what is behind it in flight is refused as well."""
        append = self._guarded.popleft()
        self._next = -1
        if isinstance(fault, LinkLost):
            self._undone.append((append, True))
        elif isinstance(fault, RedisFault) and fault.code in _FALLBACK_CODES:
            self._undone.append((append, False))
        else:
            self._failed(append, fault)
        self._after_guarded()

    def _after_guarded(self) -> None:
        if self._guarded:
            return
        if self._refusal is not None:
            self._give_up(self._refusal)
        elif any(unknown for _, unknown in self._undone):
            self._settling = asyncio.get_running_loop().create_task(self._settle())
        else:
            self._resend()

    def _resend(self) -> None:
        """Send by script what the guard refused, before all that was held back."""
        if self._undone:
            self._rest = self._next_rest
            self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
            self._held.extendleft(append for append, _ in reversed(self._undone))
            self._undone.clear()
        self._go_on()

    # unknown outcomes

    async def _settle(self) -> None:
        """Ask Redis which appends took effect whose reply was lost, and send the others again."""
        deadline_s = asyncio.get_running_loop().time() + _SETTLE_TIMEOUT_S
        absent: list[tuple[_Append, bool]] = []
        while self._undone:
            append, unknown = self._undone[0]
            try:
                outcome = await self._read_back(append, deadline_s) if unknown else None
            except StorageError as error:
                self._undone.pop(0)
                # Who says that nothing was written means the question.
                lost = isinstance(error, SlotUnavailable)
                self._failed(append, LinkLost(f"the outcome is unknown: {error}") if lost else error)
                continue
            self._undone.pop(0)
            if outcome is None:
                absent.append((append, False))
            else:
                self._log.took_effect(outcome, append.form, self._as_read(append), behind=False)
                append.done(outcome)
        self._undone = absent
        self._settling = None
        self._resend()

    async def _read_back(self, append: _Append, deadline_s: float) -> Appended | None:
        """What became of an append: None where it did not and will not take effect.

        The function korvet_settle also breaks the chain of guarded appends, so that one that Redis still has
        in its buffers is refused. Raises StorageError where Redis does not say until `deadline_s`.
        """
        form = append.commands
        while True:
            left_s = deadline_s - asyncio.get_running_loop().time()
            try:
                _, start, now_ms, fields = await self._store.fcall(
                    "korvet_settle", self._log.keys[:3], self._log.bias, entry_id(form.first_entry)
                )
                break
            except StorageError as error:
                passing = isinstance(error, LinkLost | SlotUnavailable) or _LOADING in str(error)
                if left_s <= 0 or not passing:
                    raise
            await asyncio.sleep(_SETTLE_POLL_S)
        if pack_arguments(*fields) != form.first:
            return None
        base = form.position - self._log.bias
        append_ms = now_ms if form.append_ms < 0 else form.append_ms
        return Appended(base, start, base, append_ms, 0, duplicate=False)


_NO_PRODUCER: Final = ProducerStamp(-1, -1, -1)


def _is_duplicate(reply: bytes) -> bool:
    """Whether an append function says so; it has added nothing then, and opened no gate."""
    return reply.split(b"\r\n", 7)[6] == b":1"
