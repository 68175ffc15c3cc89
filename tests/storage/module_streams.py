"""Appending record batches to a stream by the server module, and by the XADDs that do the same."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import redis

from korvet.offsets.packing import SEQUENCE_BITS, entry_id
from korvet.offsets.record_batch import HEADER_BYTES, RECORD_COUNT_AT
from korvet.records import kernel
from korvet.records.batch import AppendForm
from korvet.records.kernel import pack_command
from korvet.redis.functions import named
from tests.unit.records.forms import MIN_INT64, Reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.support.redis_server import Server
    from tests.unit.records.forms import Record


UNPACK: Final = named("korvet_unpack")
APPEND: Final = named("korvet_append")
SPAN_RECORDS: Final = 256
# The numbers of korvet_append for a call, and for each batch.
_CALL_NUMBERS: Final = struct.Struct(">7d")
_BATCH_NUMBERS: Final = struct.Struct(">6d")
_LEAD_CAP_MS: Final = 10_000
_SENT: Final = 1
_NOT_NEEDED: Final = -1


def put_command(key: str, position: int, batch: bytes, *, timestamps: bool = True) -> bytes:
    """The KORVET.PUT of a batch, encoded."""
    return pack_command("KORVET.PUT", key, entry_id(position), int(timestamps), UNPACK, batch)


def put(server: Server, key: str, position: int, batch: bytes, *, timestamps: bool = True) -> Any:
    """Append a batch by KORVET.PUT. Returns the reply, which may be an error."""
    return send(server, put_command(key, position, batch, timestamps=timestamps), 1)[0]


def append_command(stream: str, *batches: bytes, function: str = APPEND, serial: int = 1) -> bytes:
    """The FCALL of korvet_append that appends batches to a dense topic by the module, encoded."""
    keys = keys_of(stream)
    arguments = [_CALL_NUMBERS.pack(1, _LEAD_CAP_MS, _SENT, 0, serial, serial, _NOT_NEEDED), b""]
    for batch in batches:
        (count,) = struct.unpack_from(">i", batch, RECORD_COUNT_AT)
        arguments += _BATCH_NUMBERS.pack(AppendForm.PACKED, 1, count, -1, -1, 0), batch
    return pack_command("FCALL", function, len(keys), *keys, *arguments)


def keys_of(stream: str) -> tuple[str, str, str]:
    """The keys of a log: stream, index, meta."""
    return stream, f"{stream}:index", f"{stream}:meta"


def unpack(server: Server, key: str, position: int, batch: bytes, *, timestamps: bool = True) -> Any:
    """Append a batch as a replica does. Returns the reply, which may be an error."""
    return send(server, pack_command("FCALL", UNPACK, 1, key, entry_id(position), int(timestamps), batch), 1)[
        0
    ]


def send(server: Server, resp: bytes, replies: int) -> list[Any]:
    """Send encoded commands, and return their replies; errors are among these."""
    connection = server.client.connection_pool.get_connection()
    try:
        connection.send_packed_command([resp])
        return [_reply(connection) for _ in range(replies)]
    finally:
        server.client.connection_pool.release(connection)


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def xadds(key: str, position: int, batch: bytes, *, timestamps: bool = True) -> list[bytes]:
    """The XADDs of a batch. Raises BatchError."""
    header = kernel.parse_batch(batch, 0)
    # The broker checks what it gives to the module.
    kernel.check_entries(batch, 0, header, None, timestamps)
    producer = [b"pid", header.producer_id, b"epoch", header.producer_epoch] if header.transactional else []
    reader = Reader(batch[HEADER_BYTES:])
    commands = []
    for at in range(position, position + header.record_count):
        _, record = reader.record(header.base_timestamp_ms)
        fields = [*_fields_of(record, at >> SEQUENCE_BITS, timestamps=timestamps), *producer]
        commands.append(pack_command("XADD", key, entry_id(at), *(fields or (b"ts", 0))))
    return commands


def _fields_of(record: Record, ms: int, *, timestamps: bool) -> list[bytes | int]:
    """The fields of a record's entry at that time."""
    fields: list[bytes | int] = []
    if record.key is not None:
        fields += b"key", record.key
    if record.value is not None:
        fields += b"value", record.value
    if timestamps:
        # Timestamps so far before 1970 are not exact.
        fields += b"ts", max(record.timestamp_ms - ms, MIN_INT64)
    for name, value in record.headers:
        fields += (b"nullheader." + name, b"") if value is None else (b"header." + name, value)
    return fields


def add_plainly(server: Server, key: str, position: int, batch: bytes, *, timestamps: bool = True) -> None:
    """Append a batch by XADDs. Raises BatchError."""
    commands = xadds(key, position, batch, timestamps=timestamps)
    replies = send(server, b"".join(commands), len(commands))
    assert all(isinstance(reply, bytes) for reply in replies), replies[:3]


def spans_of(
    server: Server, key: str, position: int, records: Sequence[Record], *, timestamps: bool = True
) -> list[bytes | int]:
    """What KORVET.PUT returns for records, by the entries that the stream has of them."""
    last = position + len(records) - 1
    (entries,) = send(server, pack_command("XRANGE", key, entry_id(position), entry_id(last)), 1)
    sizes = [sum(map(len, fields)) for _, fields in entries]
    times = [
        record.timestamp_ms if timestamps else int(name.partition(b"-")[0])
        for record, (name, _) in zip(records, entries, strict=True)
    ]
    spans = []
    for first in range(0, len(records), SPAN_RECORDS):
        part = slice(first, first + SPAN_RECORDS)
        spans.append(struct.pack(">3d", len(sizes[part]), sum(sizes[part]), max(times[part])))
    return [b"".join(spans), max(sizes)]


def dumps(server: Server, keys: Iterable[str]) -> list[bytes]:
    """The dumps of streams."""
    return [server.client.dump(key) for key in keys]
