"""Dead letters (KIP-1191): the records that stand for what share groups have given up, and batches of them.

A dead letter says in its headers which record it stands for, and why. Its headers are text, as Kafka writes
them. The headers of the record are not in it. No I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from korvet.api.sharing.batches import (
    NULL,
    batch_bytes,
    encoded,
    encoded_number,
    fitting,
    record_batch,
)
from korvet.offsets.entry_fields import Record, read_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from korvet.groups.share.messages import SharePartition
    from korvet.redis_groups.share import DeadRecord

_REJECTED: Final = "Offset rejected by client."
_EXHAUSTED: Final = "Offset delivery count exceeded the threshold."


class Letter(NamedTuple):
    """A dead letter, and what it stands for."""

    dead: DeadRecord
    body: bytes
    """The encoded record from its key on."""


def letter_of(
    place: SharePartition, dead: DeadRecord, native: Callable[[list[bytes]], bytes], max_bytes: int
) -> Letter:
    """The dead letter of a record of a group's partition. It has no key and value if the fields of the record
    are not known, or if a batch with it would exceed `max_bytes`. native: the value of a native entry.
    """
    headers = {
        "topic": place.topic,
        "partition": place.partition,
        "offset": dead.offset,
        "group": place.group_id,
        "delivery.count": dead.deliveries,
        "message": _REJECTED if dead.rejected else _EXHAUSTED,
    }
    pieces = [encoded_number(len(headers))]
    for name, value in headers.items():
        pieces += (encoded(f"__dlq.errors.{name}".encode()), encoded(str(value).encode()))
    rest = b"".join(pieces)
    body = _content(list(dead.fields), native) + rest
    return Letter(dead, body if batch_bytes([body]) <= max_bytes else NULL + NULL + rest)


def batches_of(
    letters: Sequence[Letter], now_ms: int, max_bytes: int
) -> Iterator[tuple[list[DeadRecord], bytes]]:
    """Record batches with all letters, in order, of up to `max_bytes` each unless one letter is larger, and
    what the records of each batch stand for. now_ms: the timestamp of the records.
    """
    for some in fitting(letters, lambda letter: letter.body, max_bytes):
        batch = record_batch([letter.body for letter in some], now_ms)
        yield [letter.dead for letter in some], batch


def _content(fields: list[bytes], native: Callable[[list[bytes]], bytes]) -> bytes:
    """The encoded key and value of an entry."""
    if not fields:
        return NULL + NULL
    entry = read_entry(fields, 0)
    key, value = (entry.key, entry.value) if isinstance(entry, Record) else (None, native(fields))
    return encoded(key) + encoded(value)
