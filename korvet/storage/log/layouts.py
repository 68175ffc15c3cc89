"""How a topic's records lie in its streams (storage.layout): an entry for each record, or one for each batch.

A layout makes of a producer's batch what an append sends. Reading needs none: each entry shows what it is
(docs/redis.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from korvet.offsets.entry_fields import BATCH
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
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.values import Form, ReceivedBatch


_BATCH_NAME: Final = kernel.pack_arguments(BATCH)
_LINE_END: Final = b"\r\n"


class Layout(Protocol):
    """What an appender asks of a layout. `position` is a first record's offset as an entry ID."""

    append_function: str
    """The function that appends by script."""
    guards: bool
    """Whether the guard can append: the script does more per record than adding it."""

    def arguments(self, received: ReceivedBatch) -> AppendArguments:
        """The form for the script. Raises BatchError."""

    def commands(self, received: ReceivedBatch, position: int) -> AppendCommands:
        """The form for the guard. Raises BatchError."""

    def as_read(self, received: ReceivedBatch, form: Form, base_offset: int) -> bytes | None:
        """The batch that readers of the entries get, who find it at `base_offset`; None where they get
        another.
        """

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """The control batch that is the entry of a marker, but for its base offset; empty where its entry has
        fields of its own.
        """


class RecordLayout:
    """An entry for each record (storage.layout=record)."""

    append_function = "korvet_append"

    def __init__(self, log: PartitionLog, command: bytes) -> None:
        """`command` is what stands before the entry ID in each XADD, as RESP bulk strings."""
        self._log = log
        self._command = command
        topic = log.topic
        self._with_timestamps = log.with_timestamps
        self._log_append_time = topic.log_append_time
        self.guards = not topic.keeps_latest and not (topic.log_append_time and log.bias == 1)

    def arguments(self, received: ReceivedBatch) -> AppendArguments:
        """See Layout."""
        return kernel.encode_append(received.data, 0, received.header, received.plain, self._with_timestamps)

    def commands(self, received: ReceivedBatch, position: int) -> AppendCommands:
        """See Layout."""
        return kernel.encode_commands(
            received.data,
            0,
            received.header,
            received.plain,
            self._with_timestamps,
            position,
            self._command,
        )

    def as_read(self, received: ReceivedBatch, form: Form, base_offset: int) -> bytes | None:
        """See Layout."""
        if self._log_append_time or not as_stored(received.header, form):
            return None
        return kernel.place_batch(received.data, base_offset, self._log.leader_epoch)

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """See Layout."""
        del marker, now_ms
        return b""


class BatchLayout:
    """One entry for each batch, as its producer sent it (storage.layout=batch).

    What the broker says of a batch is put into it: base offset and leader epoch, and where they are others,
    timestamp type and largest timestamp, as Kafka does.
    """

    append_function = "korvet_append_batch"
    guards = True

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._log_append_time = log.topic.log_append_time

    def arguments(self, received: ReceivedBatch) -> AppendArguments:
        """See Layout."""
        summary, append_ms = self._check(received)
        newest_ms = summary.max_timestamp_ms if append_ms < 0 else append_ms
        return AppendArguments(
            resp=kernel.pack_arguments(newest_ms, self._kept(received, newest_ms, 0)),
            argc=2,
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
            batch=self._kept(received, newest_ms, position - self._log.bias),
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
        # The last of its strings.
        batch = memoryview(form.resp)[-len(_LINE_END) - received.header.size : -len(_LINE_END)]
        return kernel.place_batch(batch, base_offset, self._log.leader_epoch)

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """See Layout."""
        append_time = LOG_APPEND_TIME if self._log_append_time else 0
        return control_batch(marker, now_ms, self._log.leader_epoch, append_time)

    def _check(self, received: ReceivedBatch) -> tuple[RecordSummary, int]:
        """What the records are, and the append time (ms) that they are to have, -1 for none. Raises
        BatchError.
        """
        summary = kernel.check_records(received.data, 0, received.header, received.plain)
        return summary, self._log.links.clock.now_ms() if self._log_append_time else -1

    def _kept(self, received: ReceivedBatch, newest_ms: int, base_offset: int) -> bytes:
        """The batch as it is to be kept."""
        data, header = received.data, received.header
        attributes = header.codec | (LOG_APPEND_TIME if self._log_append_time else 0)
        if header.transactional:
            attributes |= TRANSACTIONAL
        if header.attributes != attributes or header.max_timestamp_ms != newest_ms:
            return assemble_batch(
                base_offset,
                self._log.leader_epoch,
                attributes.to_bytes(2, "big"),
                memoryview(data)[LAST_OFFSET_DELTA_AT:MAX_TIMESTAMP_AT],
                newest_ms.to_bytes(8, "big", signed=True),
                memoryview(data)[PRODUCER_ID_AT:],
            )
        return kernel.place_batch(data, base_offset, self._log.leader_epoch)


def layout_of(log: PartitionLog, command: bytes) -> Layout:
    """The layout of a log's topic; see RecordLayout for `command`."""
    if log.topic.storage_layout == "batch":
        return BatchLayout(log)
    return RecordLayout(log, command)
