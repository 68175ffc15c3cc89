"""Projecting commits of Kafka groups onto the Redis consumer group of the same name.

A commit of N acknowledges everything below N in the Redis group and lets its native readers continue at N.
Each call names the position of its record in `__consumer_offsets`: the call may be repeated, and a late call
has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from korvet.offsets.packing import entry_id
from korvet.records.kernel import pack_arguments, pack_command
from korvet.redis.calls import parse_reply
from korvet.redis.errors import StorageError, domain_error
from korvet.redis.functions import named

if TYPE_CHECKING:
    from korvet.redis.commands import Commands

# Limits the pending entries that one call acknowledges: about a millisecond of Redis.
ACKNOWLEDGED_AT_ONCE: Final = 1_000
# The COUNT of one HSCAN of a meta hash for projected commits.
SCANNED_AT_ONCE: Final = 1_000

_COMMIT_FIELD: Final = b"commit:"
# Takes the place of the offset after a deletion that left the group to its native consumers.
_DELETED: Final = b"-"
# The arguments of a call of korvet_project: fixed ones, and those of each commit.
_PROJECT_FIXED_ARGUMENTS: Final = 8
_COMMIT_ARGUMENTS: Final = 6
# The reply of korvet_project for a commit with remaining pending entries.
_MORE: Final = 2

Dropped: TypeAlias = Callable[[StorageError | None], None]
Projected: TypeAlias = "Callable[[Sequence[GroupCommit] | StorageError], None]"


class GroupCommit(msgspec.Struct, frozen=True, gc=False):
    """A commit of `offset` (a packed offset: the next one to be read) by a group.

    position: packed offset of the commit's record in `__consumer_offsets`. earliest: the offset of the first
    of the commits that this one replaces, itself included; None if a later one of them went back. native: the
    position of the Redis group, as an offset, when the commit was exported from it; None for other commits.
    restored: the commit was read from the log, which does not record whether it was exported from the Redis
    group.
    """

    group: str
    position: int
    offset: int
    earliest: int | None
    native: int | None = None
    restored: bool = False


def entry_id_before(offset: int, bias: int) -> str:
    """ID of the entry before `offset`: the last delivered ID of a Redis group that reads `offset` next; "0-0"
    for offset 0 or less.

    bias is 1 on a dense topic, else 0. Raises AddressError above 2^63-1.
    """
    return entry_id(offset - 1, bias) if offset > 0 else "0-0"


def _pack_commit(commit: GroupCommit, bias: int) -> bytes:
    """The packed arguments of korvet_project for one commit, in one step: there are thousands per second."""
    group, position = commit.group.encode(), b"%d" % commit.position
    offset = b"%d" % max(commit.offset, 0)
    earliest = b"" if commit.earliest is None else b"%d" % max(commit.earliest, 0)
    before = entry_id_before(commit.offset, bias).encode()
    native = (b"?" if commit.restored else b"") if commit.native is None else b"%d" % commit.native
    return b"$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        *(len(group), group, len(position), position, len(offset), offset),
        *(len(earliest), earliest, len(before), before, len(native), native),
    )


class Projection:
    """Moves, drops and looks up projected commits. Calls take effect in their order."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._keyspace = commands.keyspace

    def project(
        self, topic: str, partition: int, commits: Sequence[GroupCommit], *, bias: int, done: Projected
    ) -> None:
        """Move the Redis groups of one partition to commits (XACK, XGROUP SETID); `bias` is that of the
        topic. A commit that was exported from a Redis group is only recorded.

        Calls done([]) when all groups have moved, or a later commit was projected before. Calls done(commits)
        with the commits that have pending entries left: send them again. Calls done(error) otherwise; the
        call may be repeated then. Function korvet_project.
        """
        arguments = pack_arguments(
            "FCALL",
            named("korvet_project"),
            3,
            self._keyspace.stream(topic, partition),
            self._keyspace.index(topic, partition),
            self._keyspace.meta(topic, partition),
            bias,
            max(1, ACKNOWLEDGED_AT_ONCE // len(commits)),
        )
        count = _PROJECT_FIXED_ARGUMENTS + _COMMIT_ARGUMENTS * len(commits)
        packed = [_pack_commit(commit, bias) for commit in commits]
        command = b"".join((b"*%d\r\n" % count, arguments, *packed))
        links = self._commands.links(self._keyspace.stream(topic, partition))
        links.write_functions.send(command, partial(self._projected, commits, done))

    def drop(
        self,
        group: str,
        topic: str,
        partition: int,
        position: int,
        *,
        bias: int,
        force: bool,
        done: Dropped,
    ) -> None:
        """Forget a group's commits up to log position `position` and destroy its Redis group (XGROUP
        DESTROY); `bias` is that of the topic.

        With `force` False a Redis group stays that has native consumers or pending entries, or existed before
        any commit. It is marked: the Kafka group comes back only when the Redis group moves. A missing group
        or stream is no error. Calls done(None) on success, else done(error). Function korvet_drop_group.
        """
        command = pack_command(
            "FCALL",
            named("korvet_drop_group"),
            3,
            self._keyspace.stream(topic, partition),
            self._keyspace.index(topic, partition),
            self._keyspace.meta(topic, partition),
            bias,
            group,
            position,
            int(force),
        )
        links = self._commands.links(self._keyspace.stream(topic, partition))
        links.write_functions.send(command, lambda reply: done(_error_of(reply)))

    async def forget(self, topic: str, partition: int, groups: Sequence[str]) -> None:
        """Forget the newest projected commits of these groups, so that older records can be projected. The
        Redis groups stay. Raises StorageError. Redis command HDEL.
        """
        meta = self._keyspace.meta(topic, partition)
        fields = [_COMMIT_FIELD + group.encode() for group in groups]
        await self._commands.links(meta).write_functions.call("HDEL", meta, *fields)

    async def projected(self, topic: str, partition: int) -> dict[str, int]:
        """By group: the position of its newest projected commit in one partition. Raises StorageError. Redis
        command HSCAN.
        """
        meta = self._keyspace.meta(topic, partition)
        found: dict[bytes, bytes] = {}
        cursor = b"0"
        while True:
            cursor, fields = await self._commands.links(meta).read.call(
                "HSCAN", meta, cursor, "MATCH", _COMMIT_FIELD + b"*", "COUNT", SCANNED_AT_ONCE
            )
            found.update(zip(fields[::2], fields[1::2], strict=True))
            if cursor == b"0":
                break
        return {
            field[len(_COMMIT_FIELD) :].decode(): int(position)
            for field, value in found.items()
            for position, offset, *_ in (value.split(b" "),)
            if offset != _DELETED
        }

    def _projected(
        self, commits: Sequence[GroupCommit], done: Projected, reply: memoryview | StorageError
    ) -> None:
        if isinstance(reply, StorageError):
            done(domain_error(reply))
            return
        states = parse_reply(reply)
        done([commit for commit, state in zip(commits, states, strict=True) if state == _MORE])


def _error_of(reply: memoryview | StorageError) -> StorageError | None:
    return domain_error(reply) if isinstance(reply, StorageError) else None
