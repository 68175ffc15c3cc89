"""The calls of a log's append functions, and their replies: korvet_append, korvet_mark and korvet_begin.

While Redis is at maxmemory, records of groups go through korvet_append_within, markers through
korvet_mark_within.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.log.values import Appended
from korvet.offsets.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE
from korvet.records.kernel import integer_array, pack_arguments, pack_command
from korvet.redis.calls import parse_reply
from korvet.redis.errors import RedisFault
from korvet.redis.functions import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.log.appends import AnyAppend, Group, MarkerAppend, RecordsAppend
    from korvet.log.layouts import Layout
    from korvet.log.state import LogState
    from korvet.records.batch import BytesLike
    from korvet.redis.calls import Payload
    from korvet.redis.keys import Keyspace
    from korvet.redis.server import Links

# The numbers of a call and those of a batch.
_CALL_NUMBERS: Final = struct.Struct(">7d")
_BATCH_NUMBERS: Final = struct.Struct(">6d")
# Calls of this size and larger are handed to the socket in pieces; smaller ones are joined.
_UNCOPIED_BYTES: Final = 4096
LACKS_MODULE: Final = 2
"""In place of 1: also, the server has no module, or not for this user, although a batch was sent for it."""


class AppendCalls:
    """Packs the calls of one log."""

    __slots__ = ("_is_full", "_keyspace", "_prefix", "_state", "layout")

    def __init__(
        self, state: LogState, keyspace: Keyspace, layout: Layout, is_full: Callable[[Links], bool]
    ) -> None:
        """`is_full`: whether the server of a log is at maxmemory, as far as is known."""
        self._state = state
        self._is_full = is_full
        self._keyspace = keyspace
        self.layout = layout
        self._prefix = self._prefix_with("korvet_append")

    def _prefix_with(self, function: str, pending: tuple[bytes, ...] = ()) -> tuple[int, bytes]:
        """The first strings of an append: their number, and what they are packed as."""
        keys = (*self._keys, *pending)
        return 3 + len(keys), pack_arguments("FCALL", named(function), len(keys), *keys)

    @property
    def _keys(self) -> tuple[bytes, ...]:
        """The keys of an append, apart from those of `_pending_keys`."""
        return self._state.keys if self._state.topic.keeps_latest else self._state.keys[:3]

    def _pending_keys(self, producer_id: int) -> tuple[bytes, ...]:
        """The key that names the records of an open transaction, on topics that coordinators load."""
        topic = self._state.topic
        if not topic.keeps_latest:
            return ()
        return (self._keyspace.pending(topic.name, self._state.partition, producer_id),)

    def goes_within(self, append: AnyAppend) -> bool:
        """Whether an append goes the way that is open at maxmemory (lua/_memory.lua): groups must be able to
        commit and to leave, and transactions to end, so that consumers get on and memory can be freed.
        """
        append.within = append.within or self._is_full(self._state.links)
        return append.within

    def append(self, group: Group, session: int, unanswered: int) -> Payload:
        """The packed append of a group in this session. `unanswered`: the serial number of the oldest call
        without a reply.
        """
        first, state, layout = group.appends[0], self._state, self.layout
        within = first.received is None and self.goes_within(first)
        pending: tuple[bytes, ...] = ()
        if first.producer is not None and first.producer.transactional:
            pending = self._pending_keys(first.producer.producer_id)
        count, prefix = self._prefix
        if within or pending:
            count, prefix = self._prefix_with("korvet_append_within" if within else "korvet_append", pending)
        numbers = (
            state.bias,
            state.lead_cap_ms,
            layout.stamps,
            session,
            group.serial,
            unanswered,
            layout.seen_end,
        )
        pieces: list[BytesLike] = [b"", pack_arguments(_CALL_NUMBERS.pack(*numbers), first.epoch)]
        count, size = count + 2, 0
        for append in group.appends:
            pieces += (_batch_numbers(append), *append.form.pieces)
            count += 1 + append.form.argc
            size += append.form.size_bytes
        pieces[0] = b"*%d\r\n%b" % (count, prefix)
        return b"".join(pieces) if size < _UNCOPIED_BYTES else pieces

    def begin(self, epoch: int | str, session: int) -> bytes:
        """The packed begin of a session after `session`, 0 for the first one."""
        keys = self._state.keys[:3]
        return pack_command("FCALL", named("korvet_begin"), 3, *keys, self._state.bias, epoch, session)

    def mark(self, mark: MarkerAppend) -> bytes:
        """The packed append of a marker."""
        state, marker = self._state, mark.marker
        pending = self._pending_keys(marker.producer_id)
        latest = state.keys[3:] if pending else ()
        # The key is missing before the first abort. While the slot moves, a node refuses commands that name
        # keys of which it has some and not all.
        aborted = () if marker.committed else (state.aborted_key,)
        keys = (*state.keys[:3], *aborted, *latest, *pending)
        return pack_command(
            "FCALL",
            named("korvet_mark_within" if self.goes_within(mark) else "korvet_mark"),
            len(keys),
            *keys,
            state.bias,
            mark.epoch,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            "commit" if marker.committed else "abort",
            self.layout.marker(marker, state.links.clock.now_ms()),
            marker.decided_ms,
        )


def _batch_numbers(append: RecordsAppend) -> bytes:
    """What korvet_append reads before the other arguments of a batch."""
    form, producer = append.form, append.producer
    if producer is None:
        nobody = NO_PRODUCER_EPOCH, NO_SEQUENCE, 0
        packed = _BATCH_NUMBERS.pack(form.form, form.argc, form.record_count, *nobody)
    else:
        sequence = producer.producer_epoch, producer.base_sequence, producer.transactional
        packed = _BATCH_NUMBERS.pack(form.form, form.argc, form.record_count, *sequence)
        packed += b"%d" % producer.producer_id
    return b"$%d\r\n%b\r\n" % (len(packed), packed)


def read_decisions(
    reply: memoryview, appends: Sequence[RecordsAppend]
) -> tuple[list[Appended | RedisFault], int, int]:
    """The decision on each append that a reply of korvet_append states, Redis's time (ms), and whether the
    index lacks entries of native clients: 0, 1, or LACKS_MODULE.

    Raises ValueError for any other reply, and AssertionError if it contradicts itself.
    """
    numbers = integer_array(reply)
    found = parse_reply(reply) if numbers is None else numbers
    try:
        previous_end, start, now_ms, lead_ms, index_stale, stable, *verdicts = found
    except TypeError as error:
        raise ValueError("the reply is no array") from error
    if numbers is None and not all(isinstance(each, int) for each in found[: len(found) - len(verdicts)]):
        raise ValueError("a number is missing")
    decisions: list[Appended | RedisFault] = []
    for append, verdict in zip(appends, verdicts, strict=True):
        if not isinstance(verdict, int):
            decisions.append(_fault(verdict))
            continue
        base, duplicate = max(verdict, -1 - verdict), verdict < 0
        outcome = Appended(base, start, previous_end, _append_ms(append, now_ms), lead_ms, duplicate, stable)
        _check(append, outcome)
        decisions.append(outcome)
        if not duplicate:
            previous_end = base + append.record_count
    return decisions, now_ms, index_stale


def _fault(verdict: object) -> RedisFault:
    if not isinstance(verdict, bytes):
        raise ValueError("a verdict is neither a number nor an error")
    message = verdict.decode("utf-8", "replace")
    return RedisFault(message, message.partition(" ")[0])


class Session(NamedTuple):
    """A session that has begun."""

    number: int
    log_start: int
    now_ms: int
    effects: dict[int, tuple[int, int]]
    """Of the caller's earlier calls that took effect, by serial number: the offset of the first record, and a
    bit for each batch from the lowest bit on.
    """


def read_session(reply: Sequence[int]) -> Session:
    """The session that a parsed reply of korvet_begin states. Raises ValueError or TypeError for another
    reply.
    """
    number, log_end, start, now_ms, *calls = reply
    if start > log_end:
        raise ValueError(f"the log starts at {start} and ends at {log_end}")
    found = zip(calls[::3], calls[1::3], calls[2::3], strict=True)
    return Session(number, start, now_ms, {serial: (base, bits) for serial, base, bits in found})


def effects_of(
    session: Session, serial: int, appends: Sequence[RecordsAppend]
) -> tuple[list[tuple[RecordsAppend, Appended]], list[RecordsAppend]]:
    """The outcomes of a call whose reply was lost, and its appends that have not taken effect."""
    if serial not in session.effects:
        return [], list(appends)
    base, bits = session.effects[serial]
    appended, rest = [], []
    for place, append in enumerate(appends):
        if not bits >> place & 1:
            rest.append(append)
            continue
        append_ms = _append_ms(append, session.now_ms)
        # The log may have been cut since.
        start = min(session.log_start, base)
        outcome = Appended(base, start, base, append_ms, 0, duplicate=False, last_stable_offset=-1)
        appended.append((append, outcome))
        base += append.record_count
    return appended, rest


def _append_ms(append: RecordsAppend, now_ms: int) -> int:
    return now_ms if append.form.append_ms < 0 else append.form.append_ms


def _check(append: RecordsAppend, appended: Appended) -> None:
    """Assert that an outcome is possible."""
    base, start, end = appended.base_offset, appended.log_start, appended.previous_end
    if appended.duplicate:
        assert start <= end, f"the log starts at {start} and ends at {end}"
        assert base + append.record_count <= end, f"{base} was appended before {end}"
    else:
        assert start <= base, f"the log starts at {start}, after {base}"
        assert end <= base, f"{base} was appended at {end}"
