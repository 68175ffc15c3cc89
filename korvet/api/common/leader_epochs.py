"""Checks a client's leader epoch of a partition against the partition's own (KIP-320)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from korvet.log.partition_log import PartitionLog


def check_leader_epoch(epoch: int, log: PartitionLog) -> ErrorCode:
    """The error for a client that takes `epoch` for the current leader epoch; -1 if the client sends none."""
    if log.closed:
        return ErrorCode.not_leader_or_follower
    if epoch in (-1, log.leader_epoch):
        return ErrorCode.none
    return ErrorCode.fenced_leader_epoch if epoch < log.leader_epoch else ErrorCode.unknown_leader_epoch
