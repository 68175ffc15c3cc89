"""Appends to a log and reads from it, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from korvet.storage.link.futures import awaited

if TYPE_CHECKING:
    from korvet.records.batch import AppendArguments
    from korvet.storage.log.partition_log import PartitionLog
    from korvet.storage.log.values import Appended, Fetched, ProducerSequence, Summary


def admit(summary: Summary) -> None:
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
