"""Calls of korvet_append without a broker."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from korvet.redis.functions import named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.log.values import ProducerSequence

_CALL_NUMBERS = struct.Struct(">7d")
_BATCH_NUMBERS = struct.Struct(">6d")
_SENT = 1
_RECORDS = 1


def call_append(
    client: Any,
    keys: Sequence[bytes],
    *batches: tuple[ProducerSequence | None, Sequence[Sequence[bytes | str | int]]],
    bias: int = 1,
    lead_cap_ms: int = 10_000,
    epoch: int | str = "",
    session: int = 0,
    serial: int = 1,
) -> list[Any]:
    """Append batches, each with its producer and the field arguments of its records, which have no `ts`.

    Returns the reply of korvet_append. Raises redis.ResponseError.
    """
    arguments: list[Any] = [_CALL_NUMBERS.pack(bias, lead_cap_ms, _SENT, session, serial, serial, -1), epoch]
    for producer, records in batches:
        heads = b"".join(struct.pack(">HB", len(record) // 2, 0) for record in records)
        strings = [heads, *(string for record in records for string in record)]
        sequence, identity = (-1, -1, 0), b""
        if producer is not None:
            sequence = producer.producer_epoch, producer.base_sequence, int(producer.transactional)
            identity = b"%d" % producer.producer_id
        arguments += [
            _BATCH_NUMBERS.pack(_RECORDS, len(strings), len(records), *sequence) + identity,
            *strings,
        ]
    reply: list[Any] = client.fcall(named("korvet_append"), len(keys), *keys, *arguments)
    return reply


def verdicts(reply: Sequence[Any]) -> list[int | str]:
    """The base offset of each batch, -1 minus its base offset if it was there before, or the code of its
    error.
    """
    return [each if isinstance(each, int) else str(each.decode()).partition(" ")[0] for each in reply[6:]]
