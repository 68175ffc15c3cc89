"""The open transactions in the partitions that a broker leads, as Redis holds them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from korvet.log.transactions import parse_open, parse_producer
from korvet.outlook.findings import OpenTransaction, UnreadableTransactions
from korvet.redis.errors import StorageError
from korvet.slices import gathered, sliced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from korvet.observe.parts import Parts
    from korvet.outlook.findings import TransactionNote
    from korvet.redis.commands import Commands


async def open_transactions(parts: Parts, timeout_s: float) -> Sequence[TransactionNote] | None:
    """Returns them, or None if Redis does not report all of them in this time. Redis command HGET."""
    led: list[tuple[str, int]] = []
    async for topic in sliced(parts.topics.all()):
        led += [
            (topic.name, number)
            for number in range(topic.partitions)
            if parts.member.leadership.leader_epoch_of(topic.name, number) is not None
        ]
    try:
        async with asyncio.timeout(timeout_s):
            found = await gathered(_of_partition(parts.store.commands, *each) for each in led)
    except (StorageError, TimeoutError):
        return None
    return [each for of_partition in found for each in of_partition]


async def _of_partition(commands: Commands, topic: str, number: int) -> list[TransactionNote]:
    meta, stream = commands.keyspace.meta(topic, number), commands.keyspace.stream(topic, number)
    read = commands.links(meta).read
    found: list[TransactionNote] = []
    try:
        for producer_id, first_offset in parse_open(await read.call("HGET", meta, "open")).items():
            noted = await read.call("HGET", meta, f"p:{producer_id}")
            # Without it, the transaction has ended since.
            if noted is not None:
                seen_ms = parse_producer(b"p:%d" % producer_id, noted, None, first_offset).seen_ms
                found.append(OpenTransaction(stream.decode(), producer_id, first_offset, seen_ms))
    except ValueError as error:
        found.append(UnreadableTransactions(stream.decode(), str(error)))
    return found
