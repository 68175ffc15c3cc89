"""How far all Redis groups of a partition are done (function korvet_accepted)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from korvet.redis.commands import Commands


async def accepted_before(commands: Commands, topic: str, partition: int, bias: int) -> int | None:
    """The offset before which every Redis group has acknowledged all records of a partition. So every share
    group has accepted or archived them, and every other Kafka group has committed them. None without groups.

    bias is that of the topic. Raises StorageError.
    """
    keyspace = commands.keyspace
    keys = [keyspace.stream(topic, partition), keyspace.meta(topic, partition)]
    offsets: list[int] = []
    examined = 0
    while True:
        examined, lowest = await commands.fcall("korvet_accepted", keys, bias, examined)
        if lowest:
            offsets.append(int(lowest))
        if not examined:
            return min(offsets, default=None)
