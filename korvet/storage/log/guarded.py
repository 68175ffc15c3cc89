"""Guarded appends: gathered in groups, sent as one function call or one transaction each, and their replies.

A group whose only entry is small is an argument of korvet_guard, which adds it. Any other group is a MULTI
of korvet_guard, the XADDs and KORVET.ADDs through the gate and korvet_seal.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from korvet.offsets.packing import entry_id
from korvet.records.kernel import pack_arguments, pack_command
from korvet.storage.errors import LinkLost, RedisFault, StorageError
from korvet.storage.link.functions import named
from korvet.storage.link.slots import REDIRECTIONS
from korvet.storage.log.append_replies import irregular_reply, read_numbers, read_outcome
from korvet.storage.log.appends import AppendGroup
from korvet.storage.log.layouts import xadd_start
from korvet.storage.log.producer_sequences import pack_sequences

if TYPE_CHECKING:
    from korvet.records.batch import AppendCommands, BytesLike, Span
    from korvet.storage.link.calls import Payload
    from korvet.storage.log.append_replies import Outcome
    from korvet.storage.log.appends import ProducedAppend
    from korvet.storage.log.state import LogState

_GUARD_FIXED_ARGUMENTS: Final = 17
_XADD_FIXED_ARGUMENTS: Final = 4
# Replies to a transaction apart from those to the commands that add: MULTI, the guard, the seal, EXEC.
_GATE_REPLIES: Final = 4
_MULTI: Final = pack_command("MULTI")
_EXEC: Final = pack_command("EXEC")
_OK: Final = b"+OK\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
# The end of replies after which nothing was added: a command was refused when it was queued, the slot has
# moved, or korvet_seal refused.
_DISCARDED: Final = re.compile(
    rb"\r\n-(EXECABORT|REFUSED|%s)[^\r\n]*\r\n\Z" % b"|".join(map(str.encode, REDIRECTIONS))
)
# Bytes at the end of the replies in which `_DISCARDED` is searched.
_DISCARDED_BYTES: Final = 200
# The guard's error, in EXEC's array or in its place.
_GUARD_REFUSAL: Final = re.compile(rb"(?:\*\d+\r\n)?-([^\r\n]*)")
# Bytes after the queue replies in which `_GUARD_REFUSAL` is searched.
_REFUSAL_BYTES: Final = 400
# Error codes after which the guard did nothing, for a reason that the script decides.
_FALLBACK_CODES: Final = frozenset(("REFUSED", "ERR")) | REDIRECTIONS
# Arguments from this size on are handed to the socket uncopied; smaller ones are joined with the command.
_UNCOPIED_BYTES: Final = 4096
# Groups in flight: Redis executes one while the next already waits in its buffer.
_GROUPS_IN_FLIGHT: Final = 2
# The size from which on a group is sent although others are in flight: some ms of Redis's time, during which
# other clients wait.
_GROUP_BYTES: Final = 128 << 10


def script_decides(fault: StorageError) -> bool:
    """Whether a guarded append that ended with this error did nothing and may succeed by script."""
    return isinstance(fault, RedisFault) and fault.code in _FALLBACK_CODES


class GuardedOwner(Protocol):
    """The appender, which learns how groups ended."""

    def group_appended(self, group: AppendGroup, outcome: Outcome) -> None:
        """The group took effect; `outcome` is that of its first append."""

    def group_failed(self, group: AppendGroup, fault: StorageError) -> None:
        """The group did not take effect, or its outcome is unknown (LinkLost)."""

    def guard_idle(self) -> None:
        """No group is in flight any more."""


class GuardedAppends:
    """The guarded appends of one log, in flight and gathered."""

    __slots__ = (
        "_guard_prefix",
        "_owner",
        "_seal",
        "_state",
        "_xadd_start",
        "gathering",
        "in_flight",
        "link",
    )

    def __init__(self, state: LogState, gate: bytes, owner: GuardedOwner) -> None:
        """`gate`: the key under which the stream is renamed; see Keyspace.gate."""
        stream, index, meta, _ = state.keys
        self._state = state
        self._owner = owner
        self._xadd_start = xadd_start(gate)
        keys = stream, index, meta, gate
        self._guard_prefix = pack_arguments("FCALL", named("korvet_guard"), len(keys), *keys, state.bias)
        self._seal = pack_command("FCALL", named("korvet_seal"), 2, stream, gate) + _EXEC
        self.in_flight: deque[AppendGroup] = deque()
        """The groups that Redis has not answered, the oldest first."""
        self.gathering: AppendGroup | None = None
        """The group to which the next append is added, before it is sent."""
        self.link = state.links.write
        """The link of the groups in flight and gathered."""

    def append(self, append: ProducedAppend, form: AppendCommands) -> None:
        """Send an append whose position is not before `next_position`: at once if Redis has nothing to do and
        nothing follows, else with others later.
        """
        state = self._state
        self.link = state.links.write
        if self.gathering is not None and self.gathering.appends[0].epoch != append.epoch:
            self._send_gathered()
        group = self.gathering
        if group is None:
            group = AppendGroup(state.next_position)
            if self.in_flight or append.followed:
                self.gathering = group
                self.link.loop.call_soon(self._turn_ended)
        group.add(append, form)
        state.next_position = form.position + form.record_count
        if self.gathering is None:
            self._send(group)
        elif group.size_bytes >= _GROUP_BYTES:
            self._send_gathered()

    def take_gathered(self) -> AppendGroup | None:
        """The gathered group, which is not sent then."""
        group, self.gathering = self.gathering, None
        return group

    def _turn_ended(self) -> None:
        if len(self.in_flight) < _GROUPS_IN_FLIGHT:
            self._send_gathered()

    def _send_gathered(self) -> None:
        # The guard would refuse it after an append that failed.
        if self.gathering is not None and self._state.next_position >= 0:
            group, self.gathering = self.gathering, None
            self._send(group)

    def _send(self, group: AppendGroup) -> None:
        first = group.forms[0]
        self.in_flight.append(group)
        payload: Payload
        if group.gated:
            pieces: list[BytesLike] = [_MULTI + self._guard_command(group)]
            for form in group.forms:
                pieces += form.add or (self._xadd_head(form), *form.pieces)
            payload = (*pieces, self._seal)
            self.link.send(payload, self._answered, group.command_count + _GATE_REPLIES)
        else:
            payload = (self._guard_command(group), *first.pieces)
            if first.size_bytes < _UNCOPIED_BYTES:
                payload = b"".join(payload)
            self.link.send(payload, self._answered)

    def _guard_command(self, group: AppendGroup) -> bytes:
        """The call of korvet_guard, up to the entry that it adds itself if the group is not gated."""
        first = group.forms[0]
        arguments = pack_arguments(
            group.appends[0].epoch,
            entry_id(group.previous_position - 1),
            first.position,
            entry_id(first.position + group.record_count - 1),
            group.record_count,
            group.entry_count,
            pack_sequences(
                [append.producer for append in group.appends], [form.record_count for form in group.forms]
            ),
            group.largest_bytes,
            b"".join([_span_argument(span) for span in group.spans]),
        )
        fields = 0 if group.gated else first.first_argc
        return b"*%d\r\n%b%b" % (_GUARD_FIXED_ARGUMENTS + fields, self._guard_prefix, arguments)

    def _xadd_head(self, form: AppendCommands) -> bytes:
        """The beginning of the XADD of a batch's first entry, up to its fields."""
        head = b"*%d\r\n" % (_XADD_FIXED_ARGUMENTS + form.first_argc)
        return head + self._xadd_start + pack_arguments(entry_id(form.first_entry))

    def _answered(self, replies: memoryview | StorageError) -> None:
        group = self.in_flight[0]
        if isinstance(replies, StorageError):
            if group.gated:
                # Without MULTI, which the user may not run any more, each command took effect alone, or none.
                self.link.transacts = self.link.transacts and not isinstance(replies, RedisFault)
                replies = LinkLost(f"Redis did not take a transaction: {replies}")
            self._failed(replies)
            return
        numbers = read_numbers(self._state, replies, group.command_count if group.gated else 0)
        if numbers is None:
            self._failed(self._refusal_in(replies))
            return
        self.in_flight.popleft()
        outcome = read_outcome(self._state, numbers, group.forms[0])
        if outcome.appended.duplicate:
            # Nothing was added: the groups after it have wrong positions.
            self._state.next_position = -1
        self._owner.group_appended(group, outcome)
        self._group_ended()

    def _failed(self, fault: StorageError) -> None:
        """Groups in flight after the failed one are refused as well."""
        group = self.in_flight.popleft()
        self._state.next_position = -1
        self._owner.group_failed(group, fault)
        self._group_ended()

    def _group_ended(self) -> None:
        if len(self.in_flight) < _GROUPS_IN_FLIGHT:
            self._send_gathered()
        if not self.in_flight:
            self._owner.guard_idle()

    def _refusal_in(self, replies: memoryview) -> StorageError:
        """The error in the replies to a guarded append that did not succeed."""
        group = self.in_flight[0]
        queued = _OK + _QUEUED * (group.command_count + 2)
        # The guard's reply. Those to the commands that add do not matter.
        first = b""
        if bytes(replies[: len(queued)]) == queued:
            first = bytes(replies[len(queued) : len(queued) + _REFUSAL_BYTES])
        error = _GUARD_REFUSAL.match(first)
        if error is not None:
            # The guard's, or EXEC's if the slot moved after all commands were queued.
            message = error[1].decode("utf-8", "replace")
            return RedisFault(message, message.partition(" ")[0])
        if _DISCARDED.search(bytes(replies[-_DISCARDED_BYTES:])):
            if group.needs_module:
                # A command that adds was refused. Whether it was KORVET.ADD, the replies do not always show.
                self._state.links.server.module.refused()
            return RedisFault("the transaction was discarded", "REFUSED")
        return irregular_reply(self._state, replies)


def _span_argument(span: Span) -> bytes:
    return b"%d %d %d %d;" % (span.records, span.entries, span.size_bytes, span.newest_ms)
