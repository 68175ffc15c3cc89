"""Claiming a partition: appends of those who led it before are refused from then on (function
korvet_claim).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from korvet.causes import Causes
from korvet.cluster.assignment import writer_epochs
from korvet.records.kernel import pack_command
from korvet.redis.errors import FencedEpoch, StorageError
from korvet.redis.functions import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from korvet.cluster.topic import Topic
    from korvet.redis.commands import Commands
    from korvet.redis.keys import Keyspace

UNCUT: Final = 2**63
"""In place of the end of a log that continues."""
_AT_ONCE: Final = 256

causes = Causes(logging.getLogger(__name__))


async def claim_all(
    commands: Commands, claims: Sequence[tuple[Topic, int, int]], fenced: Callable[[FencedEpoch], None]
) -> None:
    """Claim partitions, each with its topic, number and leader epoch; fenced(error) is called for each that a
    later leader has claimed. What fails otherwise is logged: the log claims its partition too when it is
    opened.
    """
    for start in range(0, len(claims), _AT_ONCE):
        some = claims[start : start + _AT_ONCE]
        outcomes = await asyncio.gather(*(claim(commands, *each) for each in some), return_exceptions=True)
        for (topic, partition, _), outcome in zip(some, outcomes, strict=True):
            place = topic.name, partition
            if isinstance(outcome, FencedEpoch):
                fenced(outcome)
            elif isinstance(outcome, StorageError):
                causes.warn(outcome, "%s-%d could not be claimed yet: %s", *place, outcome, work=place)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                causes.ended(place)


async def claim(
    commands: Commands, topic: Topic, partition: int, leader_epoch: int, *, new_writer: bool = False
) -> int:
    """Have Redis refuse appends of earlier leaders; with `new_writer`, also those of earlier writers of this
    leader epoch.

    Returns the writers' epoch to append with. Raises FencedEpoch if a later leader has claimed the partition,
    and StorageError.
    """
    links = commands.links(commands.keyspace.stream(topic.name, partition))
    history = links.server.history.id
    call = packed_claim(commands.keyspace, topic, partition, leader_epoch, history, new_writer=new_writer)
    return int(await links.write_functions.call_packed(call))


async def end_at_claim(commands: Commands, topic: str, partition: int, leader_epoch: int) -> int | None:
    """The log end that the leader of this epoch found when it claimed the partition in another history of the
    server's data; UNCUT if it has claimed it in the same history, None if it has not claimed it yet. Raises
    StorageError. Redis command HMGET; see note_cut in registry.lua.
    """
    lowest = writer_epochs(leader_epoch).start
    meta = commands.keyspace.partition_keys(topic, partition)[2]
    epoch, leaders = await commands.call("HMGET", meta, "epoch", "leaders")
    if int(epoch or 0) < lowest:
        return None
    cuts = dict(one.split(b":") for one in (leaders or b"").split())
    return int(cuts.get(b"%d" % lowest, UNCUT))


def packed_claim(
    keyspace: Keyspace,
    topic: Topic,
    partition: int,
    leader_epoch: int,
    history: str,
    *,
    new_writer: bool = False,
) -> bytes:
    """The packed call of `claim`. `history`: of the server that executes it (History.id)."""
    epochs = writer_epochs(leader_epoch)
    stream, _, meta, _ = keyspace.partition_keys(topic.name, partition)
    limits = epochs.start, epochs.stop - 1
    topic_id, flag = str(topic.topic_id), int(new_writer)
    rest = topic_id, flag, topic.bias, history
    return pack_command("FCALL", named("korvet_claim"), 2, meta, stream, *limits, *rest)
