"""What the module must do with an input of module_fuzz.c, by the kernel of the broker."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from korvet.offsets import record_batch
from korvet.offsets.packing import entry_id
from korvet.records.batch import AppendCommands, BatchError
from korvet.records.kernel import crc32c, encode_commands, pack_arguments, parse_batch

if TYPE_CHECKING:
    from tests.fuzz.harness import Answer

_COMMAND: Final = pack_arguments("XADD", "g", "NOMKSTREAM")
_ID: Final = re.compile(r"(\d+)(?:-(\d+))?")
_MAX_POSITION: Final = (1 << 63) - 1
_MAX_SEQUENCE: Final = 1023
_SEQUENCE_BITS: Final = 10
_MALFORMED_ARGUMENT: Final = 12
# Values of module_fuzz.c: how the command is called, and what the key is.
BY_CLIENT_TOO_LATE: Final = 1
NO_STREAM, OTHER_TYPE, LATER_ID, TWO_ENTRIES = 4, 5, 6, 7
_NO_PRODUCER: Final = b"\xff" * 14


def check(answer: Answer) -> bool:
    """Fail if the module did not do what the kernel does. Returns whether it added the batch."""
    text, timestamps, caller, stream, odd = answer.arguments.decode().split()
    position = position_of(text)
    commands = None
    if position is not None and int(odd) < _MALFORMED_ARGUMENT:
        commands = kernel_commands(answer.given[2:], timestamps == "1", position)
    if commands is None:
        kind, entries = b"-ERR ", b""
    else:
        kind, entries = outcome(commands, int(caller), int(stream))
    assert answer.reply.startswith(kind), f"{kind!r}, not {answer.reply!r}: {answer.line}"
    assert answer.entries == entries, f"{entries!r}, not {answer.entries!r}: {answer.line}"
    return kind.startswith(b"+")


def outcome(commands: AppendCommands, caller: int, stream: int) -> tuple[bytes, bytes]:
    """The beginning of the reply, and the entries as XADD commands, for a sound batch."""
    if caller == BY_CLIENT_TOO_LATE or stream in {NO_STREAM, LATER_ID}:
        return b"-REFUSED ", b""
    if stream == OTHER_TYPE:
        return b"-WRONGTYPE ", b""
    if commands.position == 0:
        # A stream has no entry 0-0.
        return b"-REFUSED ", b""
    whole = b"*%d\r\n%b%b%b%b" % (
        4 + commands.first_argc,
        _COMMAND,
        pack_arguments(entry_id(commands.position)),
        commands.first,
        commands.rest,
    )
    if stream == TWO_ENTRIES and commands.record_count > 2:
        return b"-ERR ", first_two(commands, whole)
    return b"+%b" % entry_id(commands.position + commands.record_count - 1).encode(), whole


def first_two(commands: AppendCommands, whole: bytes) -> bytes:
    """The first two of the XADD commands."""
    third = pack_arguments(entry_id(commands.position + 2))
    return whole[: whole.index(_COMMAND + third)].rpartition(b"*")[0]


def position_of(text: str) -> int | None:
    """An entry ID as one number, or None if it is none of a record."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    position = int(match[1]) << _SEQUENCE_BITS | (sequence := int(match[2] or 0))
    return position if sequence <= _MAX_SEQUENCE and position <= _MAX_POSITION else None


def kernel_commands(batch: bytes, timestamps: bool, position: int) -> AppendCommands | None:
    """The kernel's XADD commands for a batch, or None if it refuses the batch.

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
        commands = encode_commands(batch, 0, header, None, timestamps, position, _COMMAND)
    except BatchError:
        return None
    return commands if position + commands.record_count - 1 <= _MAX_POSITION else None
