"""Appends to a log and reads from it, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.redis.futures import awaited

if TYPE_CHECKING:
    from korvet.log.partition_log import PartitionLog
    from korvet.log.values import Appended, Fetched, ProducerSequence
    from korvet.records.batch import AppendArguments


def admit(summary: AppendArguments) -> None:
    """Admits every batch that is appended."""


async def append_own(
    log: PartitionLog,
    arguments: AppendArguments,
    producer: ProducerSequence | None = None,
    *,
    epoch: int | None = None,
) -> Appended:
    """PartitionLog.append_own; raises the error with which it ends."""
    return await awaited(lambda done: log.append_own(arguments, producer, done, epoch=epoch))


async def read_log(log: PartitionLog, offset: int, max_bytes: int) -> Fetched:
    """PartitionLog.read; raises the error with which it ends."""
    return await awaited(lambda done: log.read(offset, max_bytes, done))
