"""The commands of script appends and markers: calls of korvet_append, korvet_append_batch and korvet_mark.

While Redis is at maxmemory, records of groups go through korvet_append_within, markers through
korvet_mark_within.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from korvet.records.kernel import pack_arguments, pack_command
from korvet.storage.link.functions import named
from korvet.storage.log.appends import OwnAppend
from korvet.storage.log.producer_sequences import pack_sequences

if TYPE_CHECKING:
    from collections.abc import Callable

    from korvet.records.batch import AppendArguments
    from korvet.storage.keys import Keyspace
    from korvet.storage.link.calls import Payload
    from korvet.storage.link.server import Links
    from korvet.storage.log.appends import MarkerAppend, ProducedAppend
    from korvet.storage.log.layouts import Layout
    from korvet.storage.log.state import LogState

# Arguments of an append function apart from keys and records.
_FIXED_ARGUMENTS: Final = 10


class ScriptCommands:
    """Packs the script appends of one log."""

    __slots__ = ("_argc", "_is_full", "_keyspace", "_layout", "_prefix", "_state")

    def __init__(
        self, state: LogState, keyspace: Keyspace, layout: Layout, is_full: Callable[[Links], bool]
    ) -> None:
        """`is_full`: whether the server of a log is at maxmemory, as far as is known."""
        self._state = state
        self._is_full = is_full
        self._keyspace = keyspace
        self._layout = layout
        self._argc = _FIXED_ARGUMENTS + len(self._keys)
        self._prefix = self._prefix_with((), layout.append_function)

    @property
    def _keys(self) -> tuple[bytes, ...]:
        """The keys of an append, apart from those of `_pending_keys`."""
        return self._state.keys if self._state.topic.keeps_latest else self._state.keys[:3]

    def _prefix_with(self, pending: tuple[bytes, ...], function: str) -> bytes:
        """The first strings of an append, after the number of its strings."""
        state, topic = self._state, self._state.topic
        keys = (*self._keys, *pending)
        append_time = topic.log_append_time and state.bias == 1
        return pack_arguments(
            "FCALL",
            named(function),
            len(keys),
            *keys,
            state.bias,
            state.lead_cap_ms,
            int(topic.keeps_latest),
            int(append_time),
        )

    def _pending_keys(self, producer_id: int) -> tuple[bytes, ...]:
        """The key that names the records of an open transaction, on topics that coordinators load."""
        topic = self._state.topic
        if not topic.keeps_latest:
            return ()
        return (self._keyspace.pending(topic.name, self._state.partition, producer_id),)

    def _goes_within(self, append: OwnAppend | MarkerAppend) -> bool:
        """Whether an append goes the way that is open at maxmemory (lua/_memory.lua): groups must be able to
        commit and to leave, and transactions to end, so that consumers get on and memory can be freed.
        """
        append.within = append.within or self._is_full(self._state.links)
        return append.within

    def append(self, append: ProducedAppend | OwnAppend, arguments: AppendArguments) -> Payload:
        """The packed append of records in the form for the script."""
        within = isinstance(append, OwnAppend) and self._goes_within(append)
        function = "korvet_append_within" if within else self._layout.append_function
        prefix, argc = self._prefix, self._argc + arguments.argc
        producer = append.producer
        pending: tuple[bytes, ...] = ()
        if producer is not None and producer.transactional:
            pending = self._pending_keys(producer.producer_id)
        if pending or within:
            prefix, argc = self._prefix_with(pending, function), argc + len(pending)
        sequences = pack_sequences((producer,), (arguments.record_count,))
        tail = pack_arguments(append.epoch, arguments.record_count, sequences)
        return (b"*%d\r\n" % argc + prefix + tail, arguments.resp)

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
            named("korvet_mark_within" if self._goes_within(mark) else "korvet_mark"),
            len(keys),
            *keys,
            state.bias,
            mark.epoch,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            "commit" if marker.committed else "abort",
            self._layout.marker(marker, state.links.clock.now_ms()),
            marker.decided_ms,
        )
