"""Claiming a partition: appends of those who led it before are refused from then on (function
korvet_claim).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.records.kernel import pack_command
from korvet.storage.brokers.assignment import writer_epochs
from korvet.storage.link.functions import named

if TYPE_CHECKING:
    from korvet.storage.keys import Keyspace
    from korvet.storage.link.commands import Commands
    from korvet.storage.topic import Topic


async def claim(
    commands: Commands, topic: Topic, partition: int, leader_epoch: int, *, new_writer: bool = False
) -> int:
    """Have Redis refuse appends of earlier leaders; with `new_writer`, also those of earlier writers of this
    leader epoch.

    Returns the writers' epoch to append with. Raises FencedEpoch if a later leader has claimed the partition,
    and StorageError.
    """
    links = commands.links(commands.keyspace.stream(topic.name, partition))
    history = links.server.write.history
    call = packed_claim(commands.keyspace, topic, partition, leader_epoch, history, new_writer=new_writer)
    return int(await links.write_functions.call_packed(call))


def packed_claim(
    keyspace: Keyspace,
    topic: Topic,
    partition: int,
    leader_epoch: int,
    history: str,
    *,
    new_writer: bool = False,
) -> bytes:
    """The packed call of `claim`. `history`: of the server that executes it (RedisLink.history)."""
    epochs = writer_epochs(leader_epoch)
    stream, _, meta, _ = keyspace.partition_keys(topic.name, partition)
    limits = epochs.start, epochs.stop - 1
    topic_id, flag = str(topic.topic_id), int(new_writer)
    rest = topic_id, flag, topic.bias, history
    return pack_command("FCALL", named("korvet_claim"), 2, meta, stream, *limits, *rest)
