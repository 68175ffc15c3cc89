"""How a topic's records lie in its streams (storage.layout): an entry for each record, or one for each batch.

A layout encodes a producer's batch for an append. Reading needs no layout: each entry shows what it holds
(docs/reference/redis.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from korvet.log.tail_cache import as_stored
from korvet.offsets.entry_fields import BATCH
from korvet.offsets.record_batch import (
    CODEC_AT,
    CODEC_MASK,
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LENGTH_AT,
    LENGTH_EXCLUDES_BYTES,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    PRODUCER_ID_AT,
    TRANSACTIONAL,
)
from korvet.records import kernel
from korvet.records.assembly import assemble_batch
from korvet.records.batch import AppendArguments, AppendForm
from korvet.records.control import control_batch

if TYPE_CHECKING:
    from korvet.log.state import LogState
    from korvet.log.values import ReceivedBatch
    from korvet.records.batch import BytesLike
    from korvet.records.control import ControlMarker


# The fewest records that go to the server module. Three cost broker and Redis the same either way, compressed
# or not. Four save Redis 1/10; 64 KB of 100 B save Redis 2/3, and the broker 1/3.
_FEWEST_PACKED: Final = 4
# The offset after the last record that readers have seen, as append functions take it.
_NOT_NEEDED: Final = -1
_UNKNOWN: Final = 0
# The timestamps of entries: none, those that producers sent, or the append time.
_NO_STAMPS: Final = 0
_SENT: Final = 1
_APPEND_TIME: Final = 2


class Layout(Protocol):
    """What an appender needs of a layout."""

    stamps: int
    """The timestamps of entries, as korvet_append takes them."""

    def encode(self, received: ReceivedBatch, *, packed: bool) -> AppendArguments:
        """The batch as arguments of korvet_append. `packed`: whether the server module may unpack it. Raises
        BatchError.
        """

    @property
    def seen_end(self) -> int:
        """The offset after the last record that readers have seen, as korvet_append takes it."""

    def as_read(self, received: ReceivedBatch, form: AppendArguments, base_offset: int) -> bytes | None:
        """The batch as a Fetch returns it, with `base_offset` set; None if a Fetch would return different
        bytes.
        """

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """The control batch that is stored as a marker's entry, without its base offset; empty if markers
        have fields of their own.
        """


class RecordLayout:
    """An entry for each record (storage.layout=record)."""

    seen_end = _NOT_NEEDED

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._with_timestamps = state.with_timestamps
        self._log_append_time = state.topic.log_append_time
        overwrites = state.bias == 1 and self._log_append_time
        self.stamps = _APPEND_TIME if overwrites else _SENT if self._with_timestamps else _NO_STAMPS
        # The module neither notes the newest entry per key nor knows the append time.
        self._packs = not (state.topic.keeps_latest or overwrites)

    def encode(self, received: ReceivedBatch, *, packed: bool) -> AppendArguments:
        """See Layout."""
        data, header, plain = received.data, received.header, received.plain
        if not (packed and self._packs) or header.record_count < _FEWEST_PACKED:
            return kernel.encode_append(data, 0, header, plain, self._with_timestamps)
        found = kernel.check_entries(data, 0, header, plain, self._with_timestamps)
        head, batch = b"", data if len(data) == header.size else memoryview(data)[: header.size]
        if header.codec:
            assert plain is not None, "a compressed batch comes without its records"
            head, batch = _plain_header(data, plain), plain
        return AppendArguments(
            resp=b"$%d\r\n%b" % (len(head) + len(batch), head),
            argc=1,
            record_count=header.record_count,
            max_timestamp_ms=found.max_timestamp_ms,
            min_timestamp_ms=found.min_timestamp_ms,
            payload_bytes=found.payload_bytes,
            keyless_count=found.keyless_count,
            largest_bytes=found.largest_bytes,
            entry_count=header.record_count,
            form=AppendForm.PACKED,
            batch=batch,
        )

    def as_read(self, received: ReceivedBatch, form: AppendArguments, base_offset: int) -> bytes | None:
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

    The broker sets leader epoch, and corrects timestamp type and largest timestamp if they differ, as Kafka
    does; korvet_append sets the base offset.
    """

    stamps = _NO_STAMPS

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._log_append_time = state.topic.log_append_time

    @property
    def seen_end(self) -> int:
        """See Layout."""
        known = self._state.known
        # Until both ends were read, a failover may have taken back what readers saw.
        return known.ends.log_end if known.loaded else _UNKNOWN

    def encode(self, received: ReceivedBatch, *, packed: bool) -> AppendArguments:
        """See Layout."""
        del packed
        header = received.header
        found = kernel.check_records(received.data, 0, header, received.plain)
        append_ms = self._state.links.clock.now_ms() if self._log_append_time else -1
        newest_ms = found.max_timestamp_ms if append_ms < 0 else append_ms
        return AppendArguments(
            resp=kernel.pack_arguments(newest_ms) + b"$%d\r\n" % header.size,
            argc=2,
            record_count=header.record_count,
            max_timestamp_ms=found.max_timestamp_ms,
            min_timestamp_ms=found.min_timestamp_ms,
            payload_bytes=header.size,
            keyless_count=found.keyless_count,
            largest_bytes=len(BATCH) + header.size,
            entry_count=1,
            form=AppendForm.WHOLE,
            batch=self._stored(received, newest_ms),
            append_ms=append_ms,
        )

    def as_read(self, received: ReceivedBatch, form: AppendArguments, base_offset: int) -> bytes | None:
        """See Layout."""
        del received
        return kernel.place_batch(form.batch, base_offset, self._state.leader_epoch)

    def marker(self, marker: ControlMarker, now_ms: int) -> bytes:
        """See Layout."""
        append_time = LOG_APPEND_TIME if self._log_append_time else 0
        return control_batch(marker, now_ms, self._state.leader_epoch, append_time)

    def _stored(self, received: ReceivedBatch, newest_ms: int) -> bytes:
        """The batch as it is stored, but for its base offset."""
        data, header = received.data, received.header
        attributes = header.codec | (LOG_APPEND_TIME if self._log_append_time else 0)
        if header.transactional:
            attributes |= TRANSACTIONAL
        if header.attributes != attributes or header.max_timestamp_ms != newest_ms:
            return assemble_batch(
                0,
                self._state.leader_epoch,
                attributes.to_bytes(2, "big"),
                memoryview(data)[LAST_OFFSET_DELTA_AT:MAX_TIMESTAMP_AT],
                newest_ms.to_bytes(8, "big", signed=True),
                memoryview(data)[PRODUCER_ID_AT:],
            )
        return kernel.place_batch(data, 0, self._state.leader_epoch)


def layout_of(state: LogState) -> Layout:
    """The layout of a log's topic."""
    return BatchLayout(state) if state.topic.storage_layout == "batch" else RecordLayout(state)


def _plain_header(data: BytesLike, plain: bytes) -> bytes:
    """The header of a compressed batch for its decompressed records. The CRC stays."""
    head = bytearray(memoryview(data)[:HEADER_BYTES])
    length = HEADER_BYTES + len(plain) - LENGTH_EXCLUDES_BYTES
    head[LENGTH_AT : LENGTH_AT + 4] = length.to_bytes(4, "big")
    head[CODEC_AT] &= ~CODEC_MASK
    return bytes(head)
