"""What the module must do with an input of module_fuzz.c, by the kernel of the broker."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from korvet.offsets import record_batch
from korvet.records.batch import BatchError
from korvet.records.kernel import check_entries, crc32c, encode_append, pack_command, parse_batch
from tests.unit.records.forms import MIN_INT64, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from korvet.records.batch import AppendArguments
    from tests.fuzz.harness import Answer

_ID: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_POSITION: Final = (1 << 63) - 1
_MAX_SEQUENCE: Final = 1023
_SEQUENCE_BITS: Final = 10
_SPAN_RECORDS: Final = 256
# Values of module_fuzz.c: what is wrong with the arguments, who calls which command, and what the key is.
_MALFORMED_ARGUMENTS: Final = frozenset((12, 13, 15))
_OTHER_FUNCTION: Final = 14
PUT_BY_CLIENT, ADD_BY_CLIENT = 0, 1
NO_STREAM, OTHER_TYPE, LATER_ID, TWO_ENTRIES = 4, 5, 6, 7
_NO_PRODUCER: Final = b"\xff" * 14


class Added(NamedTuple):
    """An entry of a batch."""

    command: bytes
    """The XADD command."""
    size: int
    """Bytes of field names and values."""
    time_ms: int
    """The record's timestamp if entries have it, else that of the entry ID."""


def check(answer: Answer) -> bool:
    """Fail if the module did not do what the kernel does. Returns whether it added the batch."""
    text, *numbers = answer.arguments.decode().split()
    timestamps, caller, stream, odd = map(int, numbers)
    position = position_of(text)
    entries = None
    if position is not None and not is_malformed(caller, odd):
        entries = kernel_entries(answer.given[2:], timestamps == 1, position)
    if caller == ADD_BY_CLIENT:
        kind, added = b"-REFUSED ", b""
    elif entries is None or position is None:
        kind, added = b"-ERR ", b""
    else:
        kind, added = outcome(entries, position, stream)
    if kind.startswith(b"*"):
        assert answer.reply == kind, f"{kind!r}, not {answer.reply!r}: {answer.line}"
    assert answer.reply.startswith(kind), f"{kind!r}, not {answer.reply!r}: {answer.line}"
    assert answer.entries == added, f"{added!r}, not {answer.entries!r}: {answer.line}"
    return kind.startswith(b"*")


def is_malformed(caller: int, odd: int) -> bool:
    """Whether the arguments are malformed."""
    return odd in _MALFORMED_ARGUMENTS or (odd == _OTHER_FUNCTION and caller == PUT_BY_CLIENT)


def outcome(entries: list[Added], position: int, stream: int) -> tuple[bytes, bytes]:
    """The reply, or the beginning of an error, and the entries as XADD commands, for a sound batch."""
    if stream == OTHER_TYPE:
        return b"-WRONGTYPE ", b""
    # A stream has no entry 0-0.
    if stream == LATER_ID or position == 0:
        return b"-REFUSED ", b""
    if stream == TWO_ENTRIES and len(entries) > 2:
        return b"-ERR ", entries[0].command + entries[1].command
    return spans_reply(entries), b"".join(entry.command for entry in entries)


def spans_reply(entries: list[Added]) -> bytes:
    """The reply for entries that were added."""
    parts = []
    for at in range(0, len(entries), _SPAN_RECORDS):
        part = entries[at : at + _SPAN_RECORDS]
        newest_ms = max(entry.time_ms for entry in part)
        parts.append(struct.pack(">ddd", len(part), sum(entry.size for entry in part), newest_ms))
    return b"*%b:%d" % (b"".join(parts), max(entry.size for entry in entries))


def position_of(text: str) -> int | None:
    """An entry ID as one number, or None if it is none of a record."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    position = int(match[1]) << _SEQUENCE_BITS | (sequence := int(match[2] or 0))
    return position if sequence <= _MAX_SEQUENCE and position <= _MAX_POSITION else None


def kernel_entries(batch: bytes, timestamps: bool, position: int) -> list[Added] | None:
    """The entries of a batch by the kernel, or None if it refuses the batch.

    The broker checks the CRC and the producer's fields before, and refuses control batches of clients.
    """
    at, end = record_batch.PRODUCER_ID_AT, record_batch.RECORD_COUNT_AT
    body = batch[record_batch.ATTRIBUTES_AT : at] + _NO_PRODUCER + batch[end:]
    mended = batch[: record_batch.CRC_AT] + crc32c(body).to_bytes(4, "big") + body
    try:
        header = parse_batch(mended, 0)
        if header.size != len(batch) or header.codec or header.control:
            return None
        header = msgspec.structs.replace(
            header,
            producer_id=int.from_bytes(batch[at : at + 8], "big", signed=True),
            producer_epoch=int.from_bytes(batch[at + 8 : at + 10], "big", signed=True),
        )
    except BatchError:
        return None
    # The broker checks what it gives to the module by `check_entries`.
    try:
        check_entries(batch, 0, header, None, timestamps)
    except BatchError:
        return None
    arguments = encode_append(batch, 0, header, None, timestamps)
    if position + arguments.record_count - 1 > _MAX_POSITION:
        return None
    return list(added_by(arguments, position))


def added_by(arguments: AppendArguments, position: int) -> Iterator[Added]:
    """The entries that the arguments of korvet_append name."""
    for number, (fields, place) in enumerate(records_of(arguments), position):
        time_ms = ms = number >> _SEQUENCE_BITS
        if place:
            time_ms = int(fields[place - 1])
            # Timestamps so far before 1970 are not exact.
            fields[place - 1] = b"%d" % max(time_ms - ms, MIN_INT64)
        entry_id = f"{ms}-{number & _MAX_SEQUENCE}"
        command = pack_command("XADD", "g", "NOMKSTREAM", entry_id, *fields)
        yield Added(command, sum(map(len, fields)), time_ms)
