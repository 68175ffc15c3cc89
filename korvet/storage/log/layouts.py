"""How a topic's records lie in its streams (storage.layout): an entry for each record, or one for each batch.

A layout encodes a producer's batch for an append. Reading needs no layout: each entry shows what it holds
(docs/reference/redis.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from korvet.offsets.entry_fields import BATCH
from korvet.offsets.packing import entry_id
from korvet.offsets.record_batch import (
    LAST_OFFSET_DELTA_AT,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
)
from korvet.records import kernel
from korvet.records.assembly import assemble_batch
from korvet.records.batch import AppendArguments, AppendCommands, Span
from korvet.records.control import control_batch
from korvet.storage.log.tail_cache import as_stored

if TYPE_CHECKING:
    from korvet.records.batch import RecordSummary
    from korvet.records.control import ControlMarker
    from korvet.storage.log.state import LogState
    from korvet.storage.log.values import Form, ReceivedBatch


# The fewest records that go to the server module as one KORVET.ADD. A lone batch of three costs broker and
# Redis the same either way, compressed or not. Four save Redis 1/10, and 1/4 if other batches share the
# guard; 64 KB of 100 B save Redis 2/3, and the broker 1/3.
_FEWEST_ADDED: Final = 4
# Strings of a KORVET.ADD.
_ADD_STRINGS: Final = 6
_BATCH_NAME: Final = kernel.pack_arguments(BATCH)
_LINE_END: Final = b"\r\n"


class Layout(Protocol):
    """What an appender needs of a layout. `position`: the first record's offset as an entry ID."""

    append_function: str
    """The function of script appends."""
    guards: bool
    """Whether guarded appends are possible: they are not if the script does more per record than adding
    it."""

    def arguments(self, received: ReceivedBatch) -> AppendArguments:
        """The form for the script. Raises BatchError."""

    def commands(self, received: ReceivedBatch, position: int) -> AppendCommands:
        """The form for the guard. Raises BatchError."""

    def as_read(self, received: ReceivedBatch, form: Form, base_offset: int) -> bytes | None:
        """The batch as a Fetch returns it, with `base_offset` set; None if a Fetch would return different
        bytes.
        """

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """The control batch that is stored as a marker's entry, without its base offset; empty if markers
        have fields of their own.
        """


class RecordLayout:
    """An entry for each record (storage.layout=record)."""

    append_function = "korvet_append"

    def __init__(self, state: LogState, gate: bytes) -> None:
        """`gate`: the key through which guarded appends add their entries; see Keyspace.gate."""
        self._state = state
        self._xadd = xadd_start(gate)
        self._add = b"*%d\r\n%b" % (_ADD_STRINGS, kernel.pack_arguments("KORVET.ADD", gate))
        topic = state.topic
        self._with_timestamps = state.with_timestamps
        self._log_append_time = topic.log_append_time
        self.guards = not topic.keeps_latest and not (topic.log_append_time and state.bias == 1)

    def arguments(self, received: ReceivedBatch) -> AppendArguments:
        """See Layout."""
        return kernel.encode_append(received.data, 0, received.header, received.plain, self._with_timestamps)

    def commands(self, received: ReceivedBatch, position: int) -> AppendCommands:
        """See Layout."""
        data, header, plain = received.data, received.header, received.plain
        replicas = self._state.links.server.module.replicas
        if replicas is None or header.record_count < _FEWEST_ADDED:
            return kernel.encode_commands(data, 0, header, plain, self._with_timestamps, position, self._xadd)
        arguments = kernel.pack_arguments(entry_id(position), int(self._with_timestamps), replicas)
        command = self._add + arguments
        return kernel.encode_add(data, 0, header, plain, self._with_timestamps, position, command)

    def as_read(self, received: ReceivedBatch, form: Form, base_offset: int) -> bytes | None:
        """See Layout."""
        if self._log_append_time or not as_stored(received.header, form):
            return None
        return kernel.place_batch(received.data, base_offset, self._state.leader_epoch)

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """See Layout."""
        del marker, now_ms
        return b""


class BatchLayout:
    """One entry for each batch, as its producer sent it (storage.layout=batch).

    The broker sets base offset and leader epoch, and corrects timestamp type and largest timestamp if they
    differ, as Kafka does.
    """

    append_function = "korvet_append_batch"
    guards = True

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._log_append_time = state.topic.log_append_time

    def arguments(self, received: ReceivedBatch) -> AppendArguments:
        """See Layout."""
        summary, append_ms = self._check(received)
        newest_ms = summary.max_timestamp_ms if append_ms < 0 else append_ms
        return AppendArguments(
            resp=kernel.pack_arguments(newest_ms, self._state.seen_end, self._stored(received, newest_ms, 0)),
            argc=3,
            record_count=received.header.record_count,
            max_timestamp_ms=summary.max_timestamp_ms,
            min_timestamp_ms=summary.min_timestamp_ms,
            payload_bytes=received.header.size,
            keyless_count=summary.keyless_count,
            entry_count=1,
            append_ms=append_ms,
        )

    def commands(self, received: ReceivedBatch, position: int) -> AppendCommands:
        """See Layout."""
        summary, append_ms = self._check(received)
        newest_ms = summary.max_timestamp_ms if append_ms < 0 else append_ms
        count, size = received.header.record_count, received.header.size
        entry_bytes = len(BATCH) + size
        first = b"%b$%d\r\n" % (_BATCH_NAME, size)
        return AppendCommands(
            position=position,
            first=first,
            first_argc=2,
            batch=self._stored(received, newest_ms, position - self._state.bias),
            rest=b"",
            record_count=count,
            max_timestamp_ms=summary.max_timestamp_ms,
            min_timestamp_ms=summary.min_timestamp_ms,
            payload_bytes=size,
            keyless_count=summary.keyless_count,
            largest_bytes=entry_bytes,
            size_bytes=len(first) + size,
            spans=(Span(count, 1, entry_bytes, newest_ms),),
            entry_count=1,
            append_ms=append_ms,
        )

    def as_read(self, received: ReceivedBatch, form: Form, base_offset: int) -> bytes | None:
        """See Layout."""
        if isinstance(form, AppendCommands):
            return form.batch
        # The batch is the last string.
        batch = memoryview(form.resp)[-len(_LINE_END) - received.header.size : -len(_LINE_END)]
        return kernel.place_batch(batch, base_offset, self._state.leader_epoch)

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """See Layout."""
        append_time = LOG_APPEND_TIME if self._log_append_time else 0
        return control_batch(marker, now_ms, self._state.leader_epoch, append_time)

    def _check(self, received: ReceivedBatch) -> tuple[RecordSummary, int]:
        """The checked records, and their append time (ms), -1 for none. Raises BatchError."""
        summary = kernel.check_records(received.data, 0, received.header, received.plain)
        return summary, self._state.links.clock.now_ms() if self._log_append_time else -1

    def _stored(self, received: ReceivedBatch, newest_ms: int, base_offset: int) -> bytes:
        """The batch as it is stored."""
        data, header = received.data, received.header
        attributes = header.codec | (LOG_APPEND_TIME if self._log_append_time else 0)
        if header.transactional:
            attributes |= TRANSACTIONAL
        if header.attributes != attributes or header.max_timestamp_ms != newest_ms:
            return assemble_batch(
                base_offset,
                self._state.leader_epoch,
                attributes.to_bytes(2, "big"),
                memoryview(data)[LAST_OFFSET_DELTA_AT:MAX_TIMESTAMP_AT],
                newest_ms.to_bytes(8, "big", signed=True),
                memoryview(data)[PRODUCER_ID_AT:],
            )
        return kernel.place_batch(data, base_offset, self._state.leader_epoch)


def layout_of(state: LogState, gate: bytes) -> Layout:
    """The layout of a log's topic; see RecordLayout for `gate`."""
    if state.topic.storage_layout == "batch":
        return BatchLayout(state)
    return RecordLayout(state, gate)


def xadd_start(gate: bytes) -> bytes:
    """The strings before the entry ID in an XADD through the gate."""
    return kernel.pack_arguments("XADD", gate, "NOMKSTREAM")
